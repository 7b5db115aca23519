#include "agent/keeper/boot.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "agent/core/boot_options.h"
#include "agent/keeper/cgroups.h"
#include "agent/keeper/fatal.h"
#include "agent/keeper/guest_setup.h"
#include "agent/keeper/key_page.h"
#include "agent/keeper/leave_initramfs.h"
#include "agent/keeper/resources.h"
#include "agent/keeper/secret.h"
#include "agent/sys/listener.h"
#include "agent/sys/log.h"
#include "agent/sys/power.h"
#include "agent/sys/small_file.h"

namespace berth::keeper {
namespace {

using core::BootOptions;
using core::Result;
using core::Status;
using sys::LogLevel;
using sys::UniqueFd;

constexpr size_t kCommandLineBytes = 64 * 1024;
constexpr char kRunDir[] = "/run/berth";
constexpr char kRcProgram[] = "/berth/rc";

void require(const Status& status) {
    if (!status.ok()) stop_boot(status.error().message);
}
template <typename T>
T require(Result<T> result) {
    if (!result.ok()) stop_boot(result.error().message);
    return std::move(result).value();
}

// How long each step took. The first steps come before the log level is known.
class Trace {
 public:
    Trace() : last_ns_(boottime_ns()) {}
    void step(const char* name) {
        int64_t now_ns = boottime_ns();
        if (count_ < sizeof steps_ / sizeof steps_[0]) steps_[count_++] = {name, now_ns, now_ns - last_ns_};
        last_ns_ = now_ns;
    }
    void print() {
        for (size_t i = 0; i < count_; ++i) {
            sys::log(LogLevel::kDebug, "boot.step", "%s took %lld us, done %lld us after the kernel's start",
                     steps_[i].name, static_cast<long long>(steps_[i].took_ns / 1000),
                     static_cast<long long>(steps_[i].at_ns / 1000));
        }
        count_ = 0;
    }

 private:
    struct Step {
        const char* name;
        int64_t at_ns;
        int64_t took_ns;
    };
    Step steps_[24] = {};
    size_t count_ = 0;
    int64_t last_ns_;
};

BootOptions read_options() {
    std::string text = require(sys::read_small_file("/proc/cmdline", kCommandLineBytes));
    if (core::ends_by_reset(text)) power_off_by_reset();
    return require(core::parse_kernel_command_line(text));
}

// As soon as the kernel has the address family: on kernels with modules after the first of them.
Result<UniqueFd> listen_early(uint32_t port, ModuleLoader& modules) {
    while (true) {
        Result<UniqueFd> listener = sys::listen_vsock(port);
        if (listener.ok() || listener.error().err != EAFNOSUPPORT || !modules.load_next()) return listener;
    }
}

void open_vsock_listener(const BootOptions& options, ModuleLoader& modules, FdStore& store) {
    Result<UniqueFd> listener = listen_early(options.port, modules);
    if (listener.ok()) {
        require(store.put("listener/vsock", std::move(listener).value()));
        return;
    }
    // Without vsock only the local socket is left; without that the guest would serve nobody.
    if (!options.local_socket) stop_boot(listener.error().message);
    sys::log(LogLevel::kWarn, "boot.listener", "%s", listener.error().message.c_str());
}

void load_secret(const BootOptions& options, core::AgentConfig& config, KeyPage& keys) {
    SecretSource source = require(read_boot_secret("", keys.keys()));
    config.has_secret = source != SecretSource::kNone ? 1 : 0;
    Status hidden = hide_fw_cfg();
    if (!hidden.ok()) sys::log(LogLevel::kWarn, "boot.secret", "%s", hidden.error().message.c_str());
    if (source != SecretSource::kNone) {
        sys::log(LogLevel::kInfo, "boot.secret", "from %s", secret_source_name(source));
    } else if (!options.auth_host_cid) {
        sys::log(LogLevel::kError, "boot.secret", "none was given: every vsock connection is refused");
    }
}

void open_local_socket(const BootOptions& options, FdStore& store) {
    require(sys::make_directory(kRunDir, 0700));
    if (!options.local_socket) return;
    require(store.put("listener/local", require(sys::listen_unix(std::string(kRunDir) + "/berth.sock"))));
}

// Everything is killed, written back and ended; what hangs is given up on.
[[noreturn]] void end_guest(core::ShutdownMode mode) {
    constexpr int kReapSteps = 200;
    constexpr int kSyncSteps = 1000;
    constexpr useconds_t kStepUs = 10'000;
    ::kill(-1, SIGKILL);
    for (int i = 0; i < kReapSteps; ++i) {
        pid_t pid = 0;
        while ((pid = ::waitpid(-1, nullptr, WNOHANG | __WALL)) > 0) {
        }
        if (pid < 0 && errno == ECHILD) break;
        ::usleep(kStepUs);
    }
    pid_t writer = ::fork();
    if (writer == 0) {
        ::sync();
        ::_exit(0);
    }
    for (int i = 0; i < kSyncSteps && writer > 0; ++i) {
        if (::waitpid(writer, nullptr, WNOHANG) != 0) break;
        ::usleep(kStepUs);
    }
    if (mode == core::ShutdownMode::kReboot) sys::end_machine(sys::PowerAction::kReboot);
    power_off_now();
}

[[noreturn]] void serve(KeeperSetup setup, FdStore store, const KeyPage& keys) {
    Keeper keeper(std::move(setup), std::move(store), keys.keys());
    Result<core::ShutdownMode> mode = keeper.run();
    if (!mode.ok()) stop_boot(mode.error().message);
    sys::log(LogLevel::kInfo, "keeper.shutdown", "%s",
             *mode == core::ShutdownMode::kReboot ? "rebooting" : "powering off");
    end_guest(*mode);
}

void protect_keeper() {
    ::prctl(PR_SET_DUMPABLE, 0);
    raise_descriptor_limit();
    Status oom = sys::write_existing_file("/proc/self/oom_score_adj", "-1000");
    if (!oom.ok()) sys::log(LogLevel::kWarn, "boot.oom", "%s", oom.error().message.c_str());
}

[[noreturn]] void boot_second_stage() {
    Trace trace;
    require(mount_first());
    UniqueFd log = open_console();
    install_fatal_handlers({.fd = log.get(), .is_init = true});
    trace.step("proc, sysfs, devtmpfs, console");
    BootOptions options = read_options();
    sys::set_log(log.get(), static_cast<LogLevel>(options.log_level), "berth-keeper");
    UniqueFd kernel_log(::open("/dev/kmsg", O_WRONLY | O_CLOEXEC));
    sys::set_log_overflow(kernel_log.get());

    FdStore store;
    ModuleLoader modules = require(ModuleLoader::open());
    open_vsock_listener(options, modules, store);
    int64_t listening_ns = boottime_ns();
    trace.step("vsock listener");

    require(mount_rest());
    trace.step("mounts");
    tune_kernel();
    set_hostname(options.hostname);
    bring_loopback_up();
    trace.step("sysctls, hostname, loopback");
    modules.load_all();
    trace.step("modules");
    mix_entropy();
    CgroupLayout cgroups = plan_cgroups("/sys/fs/cgroup", "");
    core::AgentConfig config = require(make_agent_config(options, cgroups.sandbox, kRunDir));
    config.boot_monotonic_ns = listening_ns;
    trace.step("entropy");
    KeyPage keys = require(KeyPage::create());
    load_secret(options, config, keys);
    trace.step("secret");
    require(prepare_cgroups(cgroups));
    trace.step("cgroups");
    open_local_socket(options, store);
    require(store_memory_files(store));
    protect_keeper();
    trace.step("local socket, memory files, limits");
    trace.print();

    UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    KeeperSetup setup;
    setup.config = config;
    setup.program = require(own_program());
    setup.agent_cgroup = cgroups.agent + "/cgroup.procs";
    setup.spawner_cgroup = cgroups.spawner + "/cgroup.procs";
    setup.rc_cgroup = cgroups.parent + "/cgroup.procs";
    setup.spawner_oom_score = "0";
    if (::access(kRcProgram, X_OK) == 0) setup.rc_program = kRcProgram;
    setup.input = null.get();
    setup.output = log.get();
    setup.console = STDIN_FILENO;
    setup.is_init = true;
    serve(std::move(setup), std::move(store), keys);
}

}  // namespace

void run_boot(const char* argv0, char** envp) {
    ::umask(022);
    block_signals();
    install_fatal_handlers({.fd = STDERR_FILENO, .is_init = true});
    if (is_on_initramfs() && std::string_view(argv0) != kSecondStageName) {
        core::Error error = leave_initramfs(envp);
        stop_boot(error.message);
    }
    boot_second_stage();
}

}  // namespace berth::keeper
