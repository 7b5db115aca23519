#include "agent/spawner/spawner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "agent/child/entry.h"
#include "agent/core/keeper_protocol.h"
#include "agent/core/limits.h"
#include "agent/core/spawner_protocol.h"
#include "agent/core/uninitialized.h"
#include "agent/spawner/launch.h"
#include "agent/sys/log.h"
#include "agent/sys/memfd.h"
#include "agent/sys/socket.h"

namespace berth::spawner {

using core::SpawnReply;
using core::SpawnRequest;
using sys::FdRef;
using sys::UniqueFd;

namespace {

const FdRef kKeeper{core::kKeeperSocketFd};
const FdRef kAgent{core::kSpawnerAgentSocketFd};

[[noreturn]] void give_up(const char* what) {
    sys::log(sys::LogLevel::kError, "spawner.start", "%s: errno %d", what, errno);
    ::_exit(1);
}

void reply(const SpawnReply& answer, std::span<const int> fds) {
    // An agent that is gone asked for nothing; the loop sees the end of its socket.
    core::Status sent = sys::send_with_fds(kAgent, sys::bytes_of(answer), fds);
    if (!sent.ok()) sys::log(sys::LogLevel::kWarn, "spawner.reply", "%s", sent.error().message.c_str());
}

void reply_failure(uint64_t request, Outcome outcome) {
    SpawnReply answer;
    answer.request = request;
    answer.err = outcome.err;
    std::strncpy(answer.step, outcome.step, sizeof(answer.step) - 1);
    reply(answer, {});
}

// Makes the child known to the keeper, then to the agent, then lets it run: in this order no process runs
// that nobody knows of.
Outcome announce(const SpawnRequest& request, const Child& child) {
    const int pidfd = child.pidfd.get();
    core::RegisterProcess record;
    record.process_key = request.process_key;
    record.pid = child.pid;
    core::Status sent = sys::send_with_fds(kKeeper, sys::bytes_of(record), std::span<const int>(&pidfd, 1));
    if (!sent.ok()) return Outcome{sent.error().err, "register with the keeper"};
    SpawnReply answer;
    answer.request = request.request;
    answer.pid = child.pid;
    sent = sys::send_with_fds(kAgent, sys::bytes_of(answer), std::span<const int>(&pidfd, 1));
    if (!sent.ok()) return Outcome{sent.error().err, "reply to the agent"};
    // Should the child be gone already, its exit says why.
    [[maybe_unused]] ssize_t written = ::write(child.go.get(), &core::kGoByte, 1);
    return {};
}

// A request, with its plan behind it when that is small.
struct Inbox {
    SpawnRequest request;
    alignas(8) std::byte plan[limits::kInlinePlanBytes];
};
static_assert(offsetof(Inbox, plan) == sizeof(SpawnRequest));

Outcome serve(const Surroundings& surroundings, const SpawnRequest& request, std::span<std::byte> plan,
              std::span<const UniqueFd> fds) {
    if (fds.size() > limits::kLaunchPlanFds) return Outcome{EINVAL, "too many descriptors"};
    if (!core::validate_launch_plan(plan, fds.size())) return Outcome{EINVAL, "plan is malformed"};
    int slots[limits::kLaunchPlanFds];
    size_t count = 0;
    for (const UniqueFd& fd : fds) slots[count++] = fd.get();

    Child child;
    Outcome outcome = launch(surroundings, plan, std::span<const int>(slots, count), child);
    if (outcome.failed()) return outcome;
    outcome = announce(request, child);
    if (outcome.failed()) kill_child(child);
    return outcome;
}

Outcome serve_memfd(const Surroundings& surroundings, const SpawnRequest& request,
                    std::span<const UniqueFd> received) {
    if (received.empty()) return Outcome{EINVAL, "plan is missing"};
    core::Result<size_t> size = sys::sealed_size(received[0], limits::kLaunchPlanBytes);
    if (!size.ok()) return Outcome{EINVAL, "plan is not a sealed memfd"};
    core::Result<sys::Mapping> plan = sys::map_private(received[0], *size);
    if (!plan.ok()) return Outcome{plan.error().err, "mmap plan"};
    return serve(surroundings, request, plan->bytes(), received.subspan(1));
}

// False at the end of the agent's socket.
bool serve_next(const Surroundings& surroundings) {
    BERTH_UNINITIALIZED Inbox inbox;
    core::Result<sys::Received> received = sys::receive_with_fds(kAgent, sys::writable_bytes_of(inbox));
    if (!received.ok()) give_up("receive");
    if (received->end) return false;
    const SpawnRequest& request = inbox.request;
    if (received->bytes < sizeof(request) || received->bytes - sizeof(request) != request.plan_bytes) {
        sys::log(sys::LogLevel::kError, "spawner.request", "%zu bytes are not a request", received->bytes);
        return true;
    }
    Outcome outcome;
    if (received->truncated) {
        outcome = Outcome{EMFILE, "receive descriptors"};
    } else if (request.plan_bytes == 0) {
        outcome = serve_memfd(surroundings, request, received->fds);
    } else {
        outcome = serve(surroundings, request, std::span(inbox.plan, request.plan_bytes), received->fds);
        // The next child has a copy of our stack, and is another container's.
        ::explicit_bzero(inbox.plan, request.plan_bytes);
    }
    if (outcome.failed()) reply_failure(request.request, outcome);
    return true;
}

// False at the end of the keeper's socket; the keeper has nothing to say.
bool drain_keeper() {
    std::byte ignored[64];
    core::Result<sys::Received> received = sys::receive_with_fds(kKeeper, ignored, MSG_DONTWAIT);
    if (!received.ok()) return received.error().err == EAGAIN;
    return !received->end;
}

// What children inherit: no descriptor of ours, plain signals, no core dump, no look inside.
void shed() {
    ::prctl(PR_SET_DUMPABLE, 0);
    int log_fd = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, core::kSpawnerAgentSocketFd + 1);
    sys::set_log(log_fd, sys::LogLevel::kInfo, "spawner");
    const int keep[] = {kKeeper.get(), kAgent.get(), log_fd};
    child::close_all_but(keep, 3);
    for (FdRef socket : {kKeeper, kAgent}) {
        if (::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) give_up("socket");
    }
    UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC | O_NOCTTY));
    if (!null.valid()) give_up("open /dev/null");
    for (int fd = 0; fd <= 2; ++fd) {
        if (::dup2(null.get(), fd) < 0) give_up("dup2");
    }
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    // Inherited by containers: the keeper's -1000 is not for them. Going up to 0 needs no privilege.
    UniqueFd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
    if (score.valid()) [[maybe_unused]]
        ssize_t written = ::write(score.get(), "0", 1);
}

}  // namespace

[[noreturn]] void run_spawner() {
    shed();
    Surroundings surroundings;
    surroundings.proc.reset(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
    surroundings.pid_namespace.reset(::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
    surroundings.time_namespace.reset(::open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC));
    if (!surroundings.proc.valid() || !surroundings.pid_namespace.valid()) give_up("open /proc");
    while (true) {
        pollfd polled[2] = {{kAgent.get(), POLLIN, 0}, {kKeeper.get(), POLLIN, 0}};
        if (::poll(polled, 2, -1) < 0) {
            if (errno == EINTR) continue;
            give_up("poll");
        }
        if (polled[1].revents != 0 && !drain_keeper()) ::_exit(0);
        if (polled[0].revents != 0 && !serve_next(surroundings)) ::_exit(0);
    }
}

}  // namespace berth::spawner
