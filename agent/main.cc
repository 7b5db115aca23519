// One binary, four processes: argv[0] and the process id tell which this is.
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "agent/core/keeper_protocol.h"
#include "agent/core/kernel_features.h"
#include "agent/core/limits.h"
#include "agent/keeper/boot.h"
#include "agent/keeper/helper.h"
#include "agent/service/agent_main.h"
#include "agent/spawner/spawner.h"
#include "agent/sys/small_file.h"

namespace {

constexpr int kExitRefused = 1;
constexpr int kExitUsage = 2;

constexpr char kUsage[] =
    "berth " BERTH_VERSION
    ", the container agent of a microVM\n"
    "\n"
    "As PID 1 it boots the guest; its options are the kernel command line's keys:\n"
    "  berth.port=N berth.ready=N berth.auth=secret|host-cid berth.log=error|warn|info|debug\n"
    "  berth.hostname=NAME berth.local=0|1 berth.allow_local=0|1\n"
    "\n"
    "Under another init, as root, in the foreground:\n"
    "  berth --helper [--secret-file FILE] [--listen vsock|unix:///PATH]... [--port N] [--ready N]\n"
    "                 [--auth secret|host-cid] [--allow-local] [--run-dir DIR] [--cgroup-parent PATH]\n"
    "                 [--cgroups-path local|own|mount] [--log error|warn|info|debug]\n"
    "  The local socket is DIR/berth.sock (DIR is /run/berth). SIGHUP restarts the agent, SIGTERM ends it "
    "all.\n"
    "\n"
    "  berth --check-kernel CONFIG\n"
    "  What a kernel of that config (a .config; - reads stdin) would refuse. Status 1: it would not serve.\n"
    "\n"
    "  berth --version | --help\n";

std::string_view base_name(std::string_view path) {
    size_t slash = path.rfind('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// The binary has no stdio: it would be a fifth of its size.
void print(int fd, std::string_view text) {
    (void)!::write(fd, text.data(), text.size());
}

void print_error(const berth::core::Error& error) {
    print(STDERR_FILENO, "berth: " + error.message + "\n");
}

int check_kernel(const char* path) {
    std::string_view name = path;
    auto text =
        berth::sys::read_small_file(name == "-" ? "/dev/stdin" : path, berth::limits::kKernelConfigBytes);
    if (!text.ok()) {
        print_error(text.error());
        return kExitUsage;
    }
    auto config = berth::core::KernelConfig::parse(*text);
    if (!config.ok()) {
        print_error(config.error());
        return kExitUsage;
    }
    auto check = berth::core::print_kernel_check(berth::core::check_kernel_config(*config));
    print(STDOUT_FILENO, check.text);
    return check.serves ? 0 : kExitRefused;
}

}  // namespace

int main(int argc, char** argv, char** envp) {
    std::string_view name = argc > 0 ? base_name(argv[0]) : std::string_view();
    if (name == "berth-agent") berth::service::run_agent(berth::core::kKeeperSocketFd);
    if (name == "berth-spawner") berth::spawner::run_spawner();
    std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "--helper") {
        std::vector<std::string_view> flags(argv + 2, argv + argc);
        return berth::keeper::run_helper(flags);
    }
    if (command == "--check-kernel" && argc == 3) return check_kernel(argv[2]);
    if (command == "--version") {
        print(STDOUT_FILENO, "berth " BERTH_VERSION "\n");
        return 0;
    }
    if (command == "--help") {
        print(STDOUT_FILENO, kUsage);
        return 0;
    }
    // The kernel hands words of its command line that it does not know to its init: they are not ours.
    if (::getpid() == 1) berth::keeper::run_boot(argc > 0 ? argv[0] : "", envp);
    print(STDERR_FILENO, kUsage);
    return kExitUsage;
}
