// What Berth wants of a kernel: one table for those who try it in the guest (runtime/guest_facts.h) and for
// those who read a kernel's config (berth --check-kernel).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/kernel_config.h"

namespace berth::core {

// How a running guest finds out.
enum class FeatureProbe : uint8_t {
    kRunning,        // without it nothing runs that could ask
    kCgroupFile,     // a fresh cgroup below the sandbox has the file `subject`
    kFilesystem,     // /proc/filesystems names `subject`
    kPath,           // `subject` exists; of several, with a space between, one does
    kVsock,          // socket(AF_VSOCK)
    kDeviceProgram,  // BPF_PROG_LOAD of a program for cgroup devices
    kAppArmor,       // the module says that it is on
    kConfigOnly,     // gone again, or nowhere to be seen, once the agent serves
};

enum class FeatureNeed : uint8_t { kRequired, kOptional };

struct KernelFeature {
    std::string_view name;  // as Info gives it
    std::string_view
        options;  // without CONFIG_, space separated, all needed; "A|B": either; "!A": has to be off
    FeatureProbe probe;
    const char* subject;  // see FeatureProbe
    FeatureNeed need;     // required: the guest does not boot, or serves nobody
    const char* refused;  // what is refused, or left out, without it
};

// In the order in which people read them. The options are those of Linux 6.1 and later, x86_64.
std::span<const KernelFeature> kernel_features();

struct FeatureVerdict {
    enum class State : uint8_t { kBuiltIn, kModule, kMissing };
    const KernelFeature* feature;
    State state;
    std::string options;  // those that are missing, or modules: "CONFIG_A, CONFIG_B or CONFIG_C"
};

// One for each feature.
std::vector<FeatureVerdict> check_kernel_config(const KernelConfig& config);

struct KernelCheck {
    std::string text;  // for people: a line for each feature that is not built in, and one that counts them
    bool serves;       // nothing that is required is missing
};

KernelCheck print_kernel_check(std::span<const FeatureVerdict> verdicts);

}  // namespace berth::core
