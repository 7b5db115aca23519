#include "agent/keeper/children.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "agent/core/text.h"
#include "agent/sys/log.h"
#include "agent/sys/small_file.h"

namespace berth::keeper {
namespace {

constexpr int kFirstFd = 3;
constexpr size_t kMaxFds = 4;
constexpr int kExitCannotStart = 127;

// What systemd and container engines give an ordinary process.
constexpr rlimit kOrdinaryNofile = {1024, 524'288};

[[noreturn]] void give_up(const char* what) {
    sys::log(sys::LogLevel::kError, "child.start", "%s: %s", what, core::errno_name(errno).c_str());
    ::_exit(kExitCannotStart);
}

// Descriptors go above every target first: a source may be another one's target.
void place_descriptors(const ChildSetup& setup) {
    constexpr int kAbove = kFirstFd + static_cast<int>(kMaxFds);
    int sources[3 + kMaxFds] = {setup.input, setup.output, setup.output};
    size_t count = 3;
    for (int fd : setup.fds) sources[count++] = fd;
    for (size_t i = 0; i < count; ++i) {
        sources[i] = ::fcntl(sources[i], F_DUPFD_CLOEXEC, kAbove);
        if (sources[i] < 0) give_up("dup");
    }
    for (size_t i = 0; i < count; ++i) {
        if (::dup2(sources[i], static_cast<int>(i)) < 0) give_up("dup2");
    }
    if (::syscall(SYS_close_range, static_cast<unsigned>(count), ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
        give_up("close_range");
    }
}

[[noreturn]] void run_child(const ChildSetup& setup) {
    // A child inherits its parent's blocked signals through execve.
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (setup.dies_with_keeper) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setsid();
    if (!setup.cgroup_procs.empty()) {
        core::Status moved = sys::write_existing_file(setup.cgroup_procs.c_str(), "0");
        if (!moved.ok()) sys::log(sys::LogLevel::kError, "child.cgroup", "%s", moved.error().message.c_str());
    }
    if (setup.oom_score_adj != nullptr) {
        core::Status written = sys::write_existing_file("/proc/self/oom_score_adj", setup.oom_score_adj);
        if (!written.ok()) sys::log(sys::LogLevel::kWarn, "child.oom", "%s", written.error().message.c_str());
    }
    if (!setup.keeps_nofile_limit) ::setrlimit(RLIMIT_NOFILE, &kOrdinaryNofile);
    place_descriptors(setup);
    ::execve(setup.program, const_cast<char* const*>(setup.argv), const_cast<char* const*>(setup.envp));
    if (setup.fallback != nullptr) {
        ::execve(setup.fallback, const_cast<char* const*>(setup.argv), const_cast<char* const*>(setup.envp));
    }
    give_up(setup.program);
}

}  // namespace

core::Result<pid_t> start_child(const ChildSetup& setup) {
    BERTH_CHECK(setup.fds.size() <= kMaxFds);
    // Not fork: the keeper waits for the exec, and neither copies its memory nor pays for writing to it
    // after. What the child does meanwhile goes below this frame, and never returns.
    pid_t pid = ::vfork();
    if (pid < 0) return core::errno_error(errno, std::string("fork for ") + setup.argv[0]);
    if (pid == 0) run_child(setup);
    return pid;
}

std::string describe_wait_status(int wait_status) {
    if (WIFEXITED(wait_status)) return core::format("exit status %d", WEXITSTATUS(wait_status));
    if (WIFSIGNALED(wait_status)) {
        return core::format("signal %d%s", WTERMSIG(wait_status),
                            WCOREDUMP(wait_status) ? " (core dumped)" : "");
    }
    return core::format("wait status 0x%x", static_cast<unsigned>(wait_status));
}

}  // namespace berth::keeper
