// One process of a container, the init or an exec, from its launch to its deletion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/container_plan.h"
#include "agent/core/ids.h"
#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"
#include "agent/runtime/launch.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class Container;
class ProcessStdio;

// containerd's task status numbers.
enum class TaskStatus : uint8_t {
    kUnknown = 0,
    kCreated = 1,
    kRunning = 2,
    kStopped = 3,
    kPaused = 4,
    kPausing = 5
};

struct StdioPaths {
    std::string in;
    std::string out;
    std::string err;
    bool terminal = false;
    bool console = false;  // the terminal's master goes to a socket of the caller's, there are no streams
    bool plain_newlines = false;  // the terminal puts no CR before LF
};

// What a caller of the local socket passes on besides stdio.
struct PassedFiles {
    std::vector<sys::UniqueFd> descriptors;  // that came with the request
    std::vector<core::ExtraFd> files;        // which of them the process finds from 3 upwards
    sys::UniqueFd console;                   // a connected socket for the terminal's master
    bool empty() const { return files.empty() && !console.valid(); }
};

struct ExitRecord {
    uint32_t status = 0;  // the exit code, or 128 + the signal's number
    int64_t at_unix_ns = 0;
    bool oom_likely = false;
};

// The value of a completion: run exactly once, later from the loop or at once.
template <typename Value>
using Done = core::Callback<void(core::Result<Value>)>;

class Process final : public LaunchObserver {
 public:
    Process(Container& container, core::ExecId exec_id, StdioPaths paths)
        : container_(container), exec_id_(std::move(exec_id)), paths_(std::move(paths)) {}
    ~Process() override;

    const core::ExecId& exec_id() const { return exec_id_; }
    const StdioPaths& paths() const { return paths_; }
    bool is_init() const { return exec_id_.is_init(); }
    Container& container() { return container_; }

    // ---- the record that the state file keeps ----
    uint64_t key = 0;
    int pid = 0;
    TaskStatus status = TaskStatus::kUnknown;  // kUnknown: an exec that was added, or a create under way
    std::optional<ExitRecord> exit;
    std::string spec_json;                    // an exec that was added and not started yet
    std::unique_ptr<core::ProcessSpec> spec;  // the same, parsed; null after a restart
    std::string sub_cgroup;                   // of an exec, as ExecOptions has it
    PassedFiles passed;                       // gone when the agent restarts
    bool with_passed_files = false;
    bool remove_when_ended = false;  // an exec
    bool stdin_closed = false;
    bool is_owners = false;       // ExecRequest::is_owners
    uint64_t added_sequence = 0;  // of the event that told of an exec
    uint64_t start_sequence = 0;  // of the event that told its start; 0: not told

    // ---- live ----
    sys::UniqueFd pidfd;
    std::shared_ptr<Launch> launch;
    std::unique_ptr<ProcessStdio> stdio;
    uint32_t console_rows = 0;  // asked for before the terminal was there
    uint32_t console_columns = 0;
    // The keeper reported the exit while the launch was still being told apart: handled when that is over.
    std::optional<core::ProcessRecord> held_exit;
    Done<uint32_t> on_started;               // Start of an exec or init under way; value: pid
    std::optional<core::Error> start_error;  // of an init: on_started gets it once the process is gone
    bool starting = false;
    bool start_failed =
        false;  // an exec that never became its program: deleted like any other, but it has no exit event
    bool retried_in_init_cgroup = false;
    bool launch_is_stored = false;  // a created init's gate and plan, with the keeper

    // Sends a signal through the pidfd. NOT_FOUND: finished, or not started yet.
    core::Status signal(int number) const;

    // Parked Wait calls: `waiter` runs once with the exit, or is taken back by its id.
    uint64_t add_waiter(core::Callback<void(const ExitRecord&)> waiter);
    void remove_waiter(uint64_t id);
    void wake_waiters();

    // Drops the launch: nothing of it is heard any more; a process that waits behind its gate ends.
    void end_launch();

 private:
    void on_spawned(int pid, sys::UniqueFd pidfd) override;
    void on_ready() override;
    void on_executed() override;
    void on_launch_failed(core::Error error) override;
    void on_pty(sys::UniqueFd master) override;
    void on_mounts(sys::UniqueFd mount_namespace) override;
    void on_seccomp_listener(sys::UniqueFd listener) override;
    void on_hook(uint32_t point) override;

    Container& container_;
    core::ExecId exec_id_;
    StdioPaths paths_;
    uint64_t last_waiter_ = 0;
    std::vector<std::pair<uint64_t, core::Callback<void(const ExitRecord&)>>> waiters_;
};

}  // namespace berth::runtime
