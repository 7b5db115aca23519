// The keeper at work: reaps everything, keeps statuses and descriptors, restarts agent and spawner. One ppoll
// loop without a tick; it parses nothing that comes from the host or a container, and waits for nobody.
#pragma once

#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/keeper_protocol.h"
#include "agent/core/spawner_protocol.h"
#include "agent/keeper/agent_channel.h"
#include "agent/keeper/exit_table.h"
#include "agent/keeper/fd_store.h"
#include "agent/keeper/restart_policy.h"
#include "agent/sys/fd.h"

namespace berth::keeper {

struct KeeperSetup {
    core::AgentConfig config;  // safe_mode, agent_starts and last_crash are the keeper's to fill in
    std::string program;       // the one binary, executed as "berth-agent" and "berth-spawner"
    std::string agent_cgroup;  // cgroup.procs files; empty: children stay in the keeper's cgroup
    std::string spawner_cgroup;
    std::string rc_cgroup;
    std::string rc_program;         // run once after the first kAgentReady; empty: none
    std::string spawner_oom_score;  // empty: inherited
    int input = -1;                 // stdin of agent and spawner (/dev/null)
    int output = -1;                // their stdout and stderr
    int console = -1;               // stdin, stdout and stderr of rc; -1: input and output
    bool is_init = false;           // PID 1 of the machine: SIGTERM and SIGINT are ignored
};

class Keeper {
 public:
    // `store` holds the listeners and memfds already. `keys` must outlive the keeper.
    Keeper(KeeperSetup setup, FdStore store, const core::ClassKeys& keys);

    // Serves until it is told to stop: by the agent (kShutdown), or by SIGTERM or SIGINT as a helper. Agent,
    // spawner and containers still run then. Needs SIGCHLD, SIGHUP, SIGTERM, SIGINT blocked by
    // block_signals().
    core::Result<core::ShutdownMode> run();

    const ExitTable& exits() const { return exits_; }
    const FdStore& store() const { return store_; }

 private:
    struct Child {
        pid_t pid = 0;  // 0: not running
        sys::UniqueFd socket;
        RestartPolicy policy;
        int64_t start_at_ns = 0;
        int64_t give_up_at_ns =
            kNever;  // told to end: SIGKILL (agent), or forgotten (spawner), when it still runs then
        bool is_ended_on_purpose = false;
    };
    static constexpr int64_t kNever = INT64_MAX;

    void start_what_is_due(int64_t now_ns);
    void start_agent(int64_t now_ns);
    void start_spawner(int64_t now_ns);
    void start_rc();
    void end_agent(int64_t now_ns);
    void end_spawner(int64_t now_ns);
    void enforce_deadlines(int64_t now_ns);

    // What is to be looked at.
    struct Ready {
        bool signals = false;
        bool registrations = false;
        bool agent = false;
    };
    Ready wait_for_events(int64_t now_ns);
    int64_t next_deadline_ns() const;
    void on_signals(int64_t now_ns);

    void drain_registrations();
    void on_registration(const core::RegisterProcess& registration, sys::UniqueFd pidfd);
    void reap(int64_t now_ns);
    void on_agent_exit(int wait_status, int64_t now_ns);
    void on_spawner_exit(int wait_status, int64_t now_ns);

    void drain_agent(int64_t now_ns);
    void on_agent_message(const core::KeeperMessage& message, std::vector<sys::UniqueFd> fds, int64_t now_ns);
    void store(std::string_view name, std::vector<sys::UniqueFd> fds);
    void flush_agent(int64_t now_ns);
    void give_freed_memory_back();

    KeeperSetup setup_;
    FdStore store_;
    ExitTable exits_;
    size_t most_held_ = 0;  // descriptors and processes, since memory was last given back
    const core::ClassKeys& keys_;
    sys::UniqueFd signals_;
    Child agent_;
    Child spawner_;
    std::optional<AgentChannel> channel_;
    FlushResult flushed_ = FlushResult::kDone;
    int64_t flush_again_at_ns_ = kNever;
    bool has_started_rc_ = false;
    pid_t rc_pid_ = 0;
    std::string last_crash_;
    uint32_t agent_starts_ = 0;
    std::optional<core::ShutdownMode> stop_;
};

// Blocks the signals that the loop takes from its signalfd. Early: a SIGHUP before would end a helper.
void block_signals();

}  // namespace berth::keeper
