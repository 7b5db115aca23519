#include "agent/keeper/helper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/boot_options.h"
#include "agent/core/cgroup_mount.h"
#include "agent/core/text.h"
#include "agent/keeper/cgroups.h"
#include "agent/keeper/fatal.h"
#include "agent/keeper/guest_setup.h"
#include "agent/keeper/key_page.h"
#include "agent/keeper/resources.h"
#include "agent/keeper/secret.h"
#include "agent/sys/listener.h"
#include "agent/sys/log.h"
#include "agent/sys/small_file.h"

namespace berth::keeper {
namespace {

using core::HelperOptions;
using core::Result;
using core::Status;
using sys::LogLevel;
using sys::UniqueFd;

constexpr size_t kProcFileBytes = 1u << 20;
constexpr int kEndWaitMs = 5000;

struct Cgroups {
    CgroupLayout layout;
    std::string home;        // where the helper was started; it goes back there at its end
    bool elsewhere = false;  // containers may lie outside the layout
};

// Held for the life of the helper; a second one with the same run directory is refused.
Result<UniqueFd> lock_run_dir(const std::string& run_dir) {
    std::string path = run_dir + "/lock";
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return core::errno_error(errno, "open " + path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
    if (errno == EWOULDBLOCK) {
        return core::make_error(core::Code::kAlreadyExists, "another berth --helper already serves " +
                                                                run_dir + " (--run-dir chooses another)");
    }
    return core::errno_error(errno, "lock " + path);
}

Result<Cgroups> find_cgroups(const HelperOptions& options) {
    BERTH_ASSIGN(std::string mountinfo, sys::read_small_file("/proc/self/mountinfo", kProcFileBytes));
    std::optional<std::string> mount = core::find_cgroup2_mount(mountinfo);
    if (!mount) {
        return core::make_error(core::Code::kFailedPrecondition,
                                "no cgroup2 file system is mounted: berth needs cgroup v2");
    }
    BERTH_ASSIGN(std::string own, sys::read_small_file("/proc/self/cgroup", kProcFileBytes));
    Cgroups cgroups;
    cgroups.layout = plan_cgroups(*mount, options.cgroup_parent);
    cgroups.elsewhere = options.cgroups_path_from != core::CgroupsPathFrom::kOwn;
    cgroups.home = *mount + core::find_own_cgroup2(own).value_or("");
    if (::access(cgroups.layout.parent.c_str(), F_OK) != 0) {
        return core::errno_error(errno, "--cgroup-parent " + options.cgroup_parent);
    }
    return cgroups;
}

Status load_secret(const HelperOptions& options, core::AgentConfig& config, KeyPage& keys) {
    if (options.secret_file.empty()) return core::ok();
    BERTH_TRY(read_secret_file(options.secret_file, keys.keys()));
    config.has_secret = 1;
    return core::ok();
}

// The paths of the sockets that were made; unlinked at the end.
class Sockets {
 public:
    Sockets() = default;
    Sockets(const Sockets&) = delete;
    Sockets& operator=(const Sockets&) = delete;
    ~Sockets() {
        for (const std::string& path : paths_) ::unlink(path.c_str());
    }
    Status listen(const std::string& path, const char* name, FdStore& store) {
        BERTH_ASSIGN(UniqueFd listener, sys::listen_unix(path));
        paths_.push_back(path);
        return store.put(name, std::move(listener));
    }

 private:
    std::vector<std::string> paths_;
};

// vsock when it was asked for, or when there is a device and a way to authenticate: never a listener that can
// only refuse.
Status open_listeners(const HelperOptions& options, core::AgentConfig& config, FdStore& store,
                      Sockets& sockets) {
    BERTH_TRY(sockets.listen(options.run_dir + "/berth.sock", "listener/local", store));
    if (!options.listen_unix.empty()) {
        BERTH_TRY(sockets.listen(options.listen_unix, "listener/unix", store));
        config.auth_unix = 1;
    }
    bool can_authenticate = config.has_secret != 0 || options.boot.auth_host_cid;
    bool by_default = options.listen_unix.empty() && can_authenticate && ::access("/dev/vsock", F_OK) == 0;
    if (!options.listen_vsock && !by_default) {
        sys::log(LogLevel::kInfo, "helper.listen", "vsock is not served (%s)",
                 can_authenticate ? "not asked for, or no /dev/vsock" : "no --secret-file");
        return core::ok();
    }
    BERTH_ASSIGN(UniqueFd listener, sys::listen_vsock(options.boot.port));
    return store.put("listener/vsock", std::move(listener));
}

void reap_all() {
    while (::waitpid(-1, nullptr, WNOHANG | __WALL) > 0) {
    }
}

std::string own_oom_score() {
    Result<std::string> text = sys::read_small_file("/proc/self/oom_score_adj", 64);
    return text.ok() ? std::string(core::trim(*text)) : std::string();
}

// Only what this helper made; also when it could not start.
void remove_own_cgroups(const Cgroups& cgroups) {
    // First out of the cgroup that is to be removed.
    Status moved = sys::write_existing_file((cgroups.home + "/cgroup.procs").c_str(), "0");
    if (!moved.ok()) sys::log(LogLevel::kWarn, "helper.cgroup", "%s", moved.error().message.c_str());
    // Agent and spawner have seen the end of their sockets; whatever is left is killed.
    const CgroupLayout& layout = cgroups.layout;
    if (cgroups.elsewhere) remove_marked_cgroups(layout, kEndWaitMs, reap_all);
    if (moved.ok()) {
        remove_cgroups({&layout.sandbox, &layout.spawner, &layout.agent}, kEndWaitMs, reap_all);
    } else {
        remove_cgroups({&layout.sandbox, &layout.spawner}, kEndWaitMs, reap_all);
    }
}

// A helper that was killed leaves containers that nobody can account for any more.
void clear_leftovers(const CgroupLayout& layout) {
    if (::access(layout.sandbox.c_str(), F_OK) != 0) return;
    sys::log(LogLevel::kWarn, "helper.leftovers", "%s is of a helper that was killed: it is emptied",
             layout.sandbox.c_str());
    remove_marked_cgroups(layout, kEndWaitMs, reap_all);
    remove_cgroups({&layout.sandbox, &layout.spawner}, kEndWaitMs, reap_all);
}

Status become_keeper(const Cgroups& cgroups, KeeperSetup& setup) {
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return core::errno_error(errno, "PR_SET_CHILD_SUBREAPER");
    BERTH_TRY(prepare_cgroups(cgroups.layout));
    ::prctl(PR_SET_DUMPABLE, 0);
    raise_descriptor_limit();
    setup.spawner_oom_score = own_oom_score();
    Status oom = sys::write_existing_file("/proc/self/oom_score_adj", "-1000");
    if (!oom.ok()) sys::log(LogLevel::kInfo, "helper.oom", "%s", oom.error().message.c_str());
    setup.agent_cgroup = cgroups.layout.agent + "/cgroup.procs";
    setup.spawner_cgroup = cgroups.layout.spawner + "/cgroup.procs";
    return core::ok();
}

// The keeper ends with this function, and with it every socket to its children.
Result<core::ShutdownMode> serve(KeeperSetup setup, FdStore store, const KeyPage& keys) {
    Keeper keeper(std::move(setup), std::move(store), keys.keys());
    return keeper.run();
}

// Everything behind the lock and the sockets.
Status run_with(const Cgroups& cgroups, const core::AgentConfig& config, FdStore store, const KeyPage& keys) {
    KeeperSetup setup;
    BERTH_TRY(store_memory_files(store));
    BERTH_ASSIGN(setup.program, own_program());
    UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null.valid()) return core::errno_error(errno, "open /dev/null");
    Status ready = become_keeper(cgroups, setup);
    Result<core::ShutdownMode> mode = core::ShutdownMode::kExitHelper;
    if (ready.ok()) {
        setup.config = config;
        setup.input = null.get();
        setup.output = STDERR_FILENO;
        mode = serve(std::move(setup), std::move(store), keys);
    }
    remove_own_cgroups(cgroups);
    if (!ready.ok()) return ready;
    if (!mode.ok()) return std::move(mode).error();
    sys::log(LogLevel::kInfo, "helper.exit", "done");
    return core::ok();
}

Status run(const HelperOptions& options) {
    BERTH_TRY(sys::make_directory(options.run_dir.c_str(), 0700));
    BERTH_ASSIGN(UniqueFd lock, lock_run_dir(options.run_dir));
    BERTH_ASSIGN(Cgroups cgroups, find_cgroups(options));
    BERTH_ASSIGN(KeyPage keys, KeyPage::create());
    BERTH_ASSIGN(core::AgentConfig config,
                 make_agent_config(options.boot, cgroups.layout.sandbox, options.run_dir));
    config.is_helper = 1;
    config.cgroups_path_from = options.cgroups_path_from;
    BERTH_TRY(load_secret(options, config, keys));
    FdStore store;
    Sockets sockets;
    BERTH_TRY(open_listeners(options, config, store, sockets));
    BERTH_ASSIGN(UniqueFd cgroup_lock, lock_cgroups(cgroups.layout));
    clear_leftovers(cgroups.layout);
    config.boot_monotonic_ns = boottime_ns();
    return run_with(cgroups, config, std::move(store), keys);
}

// A line for the person at the terminal. (The agent's binary has no stdio.)
void say(const core::Error& error) {
    std::string line = "berth: " + error.message + "\n";
    (void)!::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

int run_helper(std::span<const std::string_view> flags) {
    constexpr int kExitFailed = 1;
    constexpr int kExitUsage = 2;
    ::umask(022);
    block_signals();
    ::signal(SIGPIPE, SIG_IGN);
    install_fatal_handlers({.fd = STDERR_FILENO, .is_init = false});
    Result<HelperOptions> options = core::parse_helper_flags(flags);
    if (!options.ok()) {
        say(options.error());
        return kExitUsage;
    }
    sys::set_log(STDERR_FILENO, static_cast<LogLevel>(options->boot.log_level), "berth-keeper");
    Status ended = run(*options);
    if (ended.ok()) return 0;
    say(ended.error());
    return kExitFailed;
}

}  // namespace berth::keeper
