// The keeper's own children: when agent, spawner and rc start, and how they are ended.
#include <signal.h>

#include <cstring>

#include "agent/keeper/children.h"
#include "agent/keeper/keeper.h"
#include "agent/sys/log.h"
#include "agent/sys/socket.h"

namespace berth::keeper {
namespace {

using sys::LogLevel;

// Between SIGTERM and SIGKILL when the agent is restarted on purpose.
constexpr int64_t kAgentGraceNs = 2'000'000'000;
// A killed spawner that is still there holds up no agent for longer.
constexpr int64_t kSpawnerGraceNs = 1'000'000'000;
// Of each size malloc keeps seven freed blocks by default, wherever they lie, and a page with one of them in
// it cannot go back to the kernel: after many containers these are most of the agent's heap. So it keeps two,
// of small sizes, which costs next to nothing in time (the GNU C library's manual, "Memory Allocation
// Tunables").
constexpr const char* kAgentTunables =
    "GLIBC_TUNABLES=glibc.malloc.tcache_count=2:glibc.malloc.tcache_max=512";
// What the kernel is short of may be there again then.
constexpr int64_t kStartRetryNs = 20'000'000;

}  // namespace

void Keeper::start_what_is_due(int64_t now_ns) {
    // A new agent waits for the old one's spawner to be gone: its welcome then has every process that was
    // cloned.
    bool old_spawner_is_going = spawner_.pid != 0 && spawner_.is_ended_on_purpose;
    if (agent_.pid == 0 && now_ns >= agent_.start_at_ns && !old_spawner_is_going) start_agent(now_ns);
    if (agent_.pid != 0 && spawner_.pid == 0 && now_ns >= spawner_.start_at_ns) start_spawner(now_ns);
}

void Keeper::start_agent(int64_t now_ns) {
    core::Result<sys::SocketPair> pair = sys::make_seqpacket_pair();
    core::AgentConfig config = setup_.config;
    config.safe_mode = agent_.policy.safe_mode() ? 1 : 0;
    config.agent_starts = agent_starts_;
    std::strncpy(config.last_crash, last_crash_.c_str(), sizeof config.last_crash - 1);
    const char* argv[] = {"berth-agent", nullptr};
    const char* envp[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", kAgentTunables, nullptr};
    int fd = pair.ok() ? pair->second.get() : -1;
    core::Result<pid_t> pid = pair.ok() ? start_child({.program = setup_.program.c_str(),
                                                       .fallback = "/proc/self/exe",
                                                       .argv = argv,
                                                       .envp = envp,
                                                       .input = setup_.input,
                                                       .output = setup_.output,
                                                       .fds = {&fd, 1},
                                                       .cgroup_procs = setup_.agent_cgroup,
                                                       .keeps_nofile_limit = true,
                                                       .dies_with_keeper = true})
                                        : core::Result<pid_t>(std::move(pair).error());
    if (!pid.ok()) {
        sys::log(LogLevel::kError, "agent.start", "%s", pid.error().message.c_str());
        agent_.start_at_ns = agent_.policy.on_crash(now_ns) + kStartRetryNs;
        return;
    }
    agent_.pid = *pid;
    agent_.give_up_at_ns = kNever;
    agent_.is_ended_on_purpose = false;
    channel_.emplace(std::move(pair->first), config, store_, exits_);
    flushed_ = FlushResult::kDone;
    ++agent_starts_;
    sys::log(LogLevel::kInfo, "agent.start", "pid %d%s", *pid, config.safe_mode != 0 ? ", safe mode" : "");
}

void Keeper::start_spawner(int64_t now_ns) {
    core::Result<sys::SocketPair> to_keeper = sys::make_seqpacket_pair();
    core::Result<sys::SocketPair> to_agent = sys::make_seqpacket_pair();
    core::Result<pid_t> pid = core::make_error(core::Code::kResourceExhausted, "socketpair");
    if (to_keeper.ok() && to_agent.ok()) {
        const char* argv[] = {"berth-spawner", nullptr};
        const char* envp[] = {nullptr};
        int fds[] = {to_keeper->second.get(), to_agent->second.get()};
        pid = start_child(
            {.program = setup_.program.c_str(),
             .fallback = "/proc/self/exe",
             .argv = argv,
             .envp = envp,
             .input = setup_.input,
             .output = setup_.output,
             .fds = fds,
             .cgroup_procs = setup_.spawner_cgroup,
             .oom_score_adj = setup_.spawner_oom_score.empty() ? nullptr : setup_.spawner_oom_score.c_str(),
             .dies_with_keeper = true});
    }
    if (!pid.ok()) {
        sys::log(LogLevel::kError, "spawner.start", "%s", pid.error().message.c_str());
        spawner_.start_at_ns = spawner_.policy.on_crash(now_ns) + kStartRetryNs;
        return;
    }
    spawner_.pid = *pid;
    spawner_.socket = std::move(to_keeper->first);
    spawner_.give_up_at_ns = kNever;
    spawner_.is_ended_on_purpose = false;
    spawner_.policy.on_ready(now_ns);
    // The keeper keeps no end of the agent's socket: a request that nobody will answer must not be stored in
    // it.
    if (channel_) channel_->offer_spawner(std::move(to_agent->first));
    sys::log(LogLevel::kDebug, "spawner.start", "pid %d", *pid);
}

void Keeper::start_rc() {
    has_started_rc_ = true;
    if (setup_.rc_program.empty()) return;
    const char* argv[] = {setup_.rc_program.c_str(), nullptr};
    const char* envp[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "TERM=linux", nullptr};
    bool has_console = setup_.console >= 0;
    core::Result<pid_t> pid = start_child({.program = setup_.rc_program.c_str(),
                                           .argv = argv,
                                           .envp = envp,
                                           .input = has_console ? setup_.console : setup_.input,
                                           .output = has_console ? setup_.console : setup_.output,
                                           .cgroup_procs = setup_.rc_cgroup,
                                           .oom_score_adj = "0"});
    if (pid.ok()) {
        rc_pid_ = *pid;
        sys::log(LogLevel::kDebug, "rc.start", "pid %d", *pid);
    } else {
        sys::log(LogLevel::kError, "rc.start", "%s", pid.error().message.c_str());
    }
}

void Keeper::end_agent(int64_t now_ns) {
    if (agent_.pid == 0 || agent_.is_ended_on_purpose) return;
    agent_.is_ended_on_purpose = true;
    agent_.give_up_at_ns = now_ns + kAgentGraceNs;
    ::kill(agent_.pid, SIGTERM);
}

// It holds no state; what it was doing ends with it: an unfinished child sees end of file and exits.
void Keeper::end_spawner(int64_t now_ns) {
    if (spawner_.pid == 0 || spawner_.is_ended_on_purpose) return;
    spawner_.is_ended_on_purpose = true;
    spawner_.give_up_at_ns = now_ns + kSpawnerGraceNs;
    ::kill(spawner_.pid, SIGKILL);
}

void Keeper::enforce_deadlines(int64_t now_ns) {
    if (agent_.pid != 0 && now_ns >= agent_.give_up_at_ns) {
        ::kill(agent_.pid, SIGKILL);
        agent_.give_up_at_ns = kNever;
    }
    if (spawner_.pid != 0 && now_ns >= spawner_.give_up_at_ns) {
        sys::log(LogLevel::kError, "spawner.stuck", "pid %d does not end; going on without it", spawner_.pid);
        drain_registrations();
        spawner_.pid = 0;
        spawner_.socket.reset();
        spawner_.give_up_at_ns = kNever;
        spawner_.start_at_ns = now_ns;
    }
}

}  // namespace berth::keeper
