// The kernel command line, the module list, a kernel's config and the tables of the firmware and the kernel:
// the first byte chooses.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/boot_options.h"
#include "agent/core/cgroup_mount.h"
#include "agent/core/kernel_features.h"
#include "agent/core/smbios.h"
#include "agent/core/text.h"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

void check_command_line(std::string_view text) {
    auto options = berth::core::parse_kernel_command_line(text);
    if (!options.ok()) {
        const std::string& message = options.error().message;
        require(!message.empty() && message.find('\n') == std::string::npos && message.size() < 2048);
        return;
    }
    require(options->port != 0 && options->port != 0xffffffff && options->log_level <= 3);
    require(options->hostname.size() <= 64);
}

void check_flags(std::string_view text) {
    auto options = berth::core::parse_helper_flags(berth::core::split(text, ' '));
    if (options.ok()) require(options->run_dir.front() == '/');
}

void check_kernel_config(std::string_view text) {
    auto config = berth::core::KernelConfig::parse(text);
    if (!config.ok()) return;
    auto verdicts = berth::core::check_kernel_config(*config);
    require(verdicts.size() == berth::core::kernel_features().size());
    require(!berth::core::print_kernel_check(verdicts).text.empty());
}

void check_smbios(std::string_view text) {
    auto found =
        berth::core::find_oem_string(std::as_bytes(std::span(text.data(), text.size())), "berth.secret=");
    if (found)
        require(found->data() >= text.data() && found->data() + found->size() <= text.data() + text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0]) {
        case 'f': check_flags(text); break;
        case 'k': check_kernel_config(text); break;
        case 'm': (void)berth::core::parse_module_list(text).ok(); break;
        case 's': check_smbios(text); break;
        case 'c':
            (void)berth::core::find_cgroup2_mount(text);
            (void)berth::core::find_own_cgroup2(text);
            break;
        default: check_command_line(text); break;
    }
    return 0;
}
