// Containers of this guest: what the services call, and nothing of any wire.
//
// Every operation validates its request whole, then changes things, and takes back what it changed when a
// step fails. Nothing here waits: what takes time ends in a completion. Errors carry the object ("create
// "web": ...").
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/core/container_plan.h"
#include "agent/core/ids.h"
#include "agent/core/keeper_protocol.h"
#include "agent/core/limits.h"
#include "agent/core/rootfs_plan.h"
#include "agent/loop/loop.h"
#include "agent/runtime/container.h"
#include "agent/runtime/device_programs.h"
#include "agent/runtime/event_hub.h"
#include "agent/runtime/freeze_job.h"
#include "agent/runtime/guest_facts.h"
#include "agent/runtime/hook_run.h"
#include "agent/runtime/keeper_link.h"
#include "agent/runtime/process.h"
#include "agent/runtime/seccomp_cache.h"
#include "agent/runtime/spawner_link.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/stream_table.h"

namespace berth::runtime {

struct CreateRequest {
    core::ContainerId id;
    std::string containerd_namespace;
    std::string bundle;     // as the caller gave it; recorded
    std::string spec_json;  // empty: BUNDLE/config.json of the guest is read
    std::vector<core::RootfsMount> rootfs;
    StdioPaths stdio;
    PassedFiles passed;  // its descriptors are those that "fd:N" stdio paths index
    // The guest's directory that relative paths of spec_json start from; empty: an empty one of ours.
    std::string source_bundle{};
    std::string name{};  // what hooks are told as the id; empty: the id
    // Asked for by root of a machine that has its own init, over the local socket: nothing that root could
    // not do itself, so device numbers are the machine's.
    bool is_owners = false;
    const void* caller = nullptr;  // who may take it back (cancel_launch): an address, never looked at
};

struct ExecRequest {
    core::ContainerId id;
    core::ExecId exec_id;
    std::string process_json;
    StdioPaths stdio;
    PassedFiles passed;
    std::string sub_cgroup{};  // below the container's, "/" for itself; empty: wherever it may go
    bool remove_when_ended = false;
    bool is_owners = false;  // as in CreateRequest: capabilities that the init does not have may be asked for
};

struct ProcessState {
    TaskStatus status = TaskStatus::kUnknown;
    int pid = 0;
    std::string bundle;
    StdioPaths stdio;
    ExitRecord exit;  // meaningful when stopped
    bool exited = false;
};

struct DeleteOutcome {
    int pid = 0;
    ExitRecord exit;
};

struct PidEntry {
    int pid = 0;
    std::string exec_id;  // empty for the init and for what the container started by itself
};

class Runtime {
 public:
    Runtime(loop::Loop& loop, KeeperLink& keeper, const core::AgentConfig& config);
    ~Runtime();

    // Before serving: takes back from the keeper and the state files whatever an agent before us had.
    core::Status adopt(Welcome& welcome);

    void create(CreateRequest request, Done<uint32_t> done);
    core::Status add_exec(ExecRequest request);
    void start(const core::ContainerId& id, const core::ExecId& exec_id, Done<uint32_t> done);
    // Takes back the create of `caller`, or an exec's start, that is under way (its deadline passed). The
    // completion runs with `why`.
    void cancel_launch(const core::ContainerId& id, const core::ExecId& exec_id, const void* caller,
                       core::Error why);
    void remove(const core::ContainerId& id, const core::ExecId& exec_id, Done<DeleteOutcome> done);
    core::Status kill(const core::ContainerId& id, const core::ExecId& exec_id, int signal, bool all);
    void pause(const core::ContainerId& id, Done<core::Unit> done);
    void resume(const core::ContainerId& id, Done<core::Unit> done);
    // New limits, as one transaction (update_job.h): `resources_json` is a linux.resources object; what it
    // does not name stays. FAILED_PRECONDITION: the container has stopped, is being deleted, or another
    // update of it is under way (one at a time: the caller knows best what the second one should be merged
    // with).
    void update(const core::ContainerId& id, std::string_view resources_json, Done<core::Unit> done);
    // Takes back an update that is under way (its deadline passed).
    void cancel_update(const core::ContainerId& id, core::Error why);
    // The same for the sandbox, the cgroup that all containers are in.
    void update_sandbox(std::string_view resources_json, Done<core::Unit> done);
    void cancel_sandbox_update(core::Error why);

    core::Result<ProcessState> state(const core::ContainerId& id, const core::ExecId& exec_id);
    core::Result<std::vector<PidEntry>> pids(const core::ContainerId& id);
    core::Status resize(const core::ContainerId& id, const core::ExecId& exec_id, uint32_t rows,
                        uint32_t columns);
    core::Status close_stdin(const core::ContainerId& id, const core::ExecId& exec_id);

    // Parks `waiter` until the process has ended (at once, when it has). The id takes it back.
    core::Result<uint64_t> wait(const core::ContainerId& id, const core::ExecId& exec_id,
                                core::Callback<void(const ExitRecord&)> waiter);
    void cancel_wait(const core::ContainerId& id, const core::ExecId& exec_id, uint64_t waiter);

    // Powers the guest off (or ends the helper). FAILED_PRECONDITION... never: containers left and not `now`
    // means that nothing happens, as in runc's shim; true when it is going down.
    bool shutdown(bool now);
    bool shutting_down() const { return shutting_down_; }

    const std::map<std::string, std::shared_ptr<Container>>& containers() const { return containers_; }
    core::Result<Container*> find(const core::ContainerId& id);
    core::Result<Process*> find(const core::ContainerId& id, const core::ExecId& exec_id);

    // To be called by what frees much at once: malloc keeps the pages, and nobody else in the guest gets
    // them.
    void trim_heap_later() {
        if (!heap_trim_.armed()) heap_trim_.arm_after_ms(limits::kHeapTrimAfterMs);
    }

    EventHub& events() { return events_; }
    StreamTable& streams() { return streams_; }
    const GuestProbe& guest() const { return guest_; }
    const core::AgentConfig& config() const { return config_; }
    loop::Loop& loop() { return loop_; }
    sys::FdRef sandbox_cgroup() const { return sandbox_; }
    // Of a core::CgroupLayout's paths.
    CgroupPlace cgroup_place(const std::string& path) const;
    KeeperLink& keeper() { return keeper_; }
    SpawnerLink& spawner() { return spawner_; }
    OpenStateFile& open_state_file() { return open_state_file_; }

    // From the keeper.
    void on_exit(const core::ProcessRecord& record);

 private:
    friend class Process;
    friend class Container;
    friend class CreateJob;
    friend class HookRun;

    static std::string context(const char* verb, const core::ContainerId& id, const core::ExecId& exec_id);
    core::Status may_change() const;  // UNAVAILABLE while shutting down

    // ---- launching ----
    core::Status start_init(Container& container);
    core::Status start_exec(Container& container, Process& process);
    void on_process_executed(Container& container, Process& process);
    void tell_start(Container& container, Process& process);
    void run_start_hooks(Container& container);
    void run_poststart_hooks(Container& container);
    void finish_start(Container& container, Process& process);
    void on_process_failed(Container& container, Process& process, core::Error error);
    void record_failed_exec(Container& container, Process& process);
    uint64_t new_process_key();
    void give_key(Container& container, Process& process);
    core::SeccompPrograms seccomp_programs(const Container& container);
    core::Result<sys::UniqueFd> open_cgroup_of(const Process& process);
    static core::StdioLayout stdio_layout(const StdioPaths& paths, std::span<const core::ExtraFd> files);
    core::Result<sys::UniqueFd> open_sub_cgroup(const Container& container, const std::string& path);
    void remove_when_ended(Process& process);
    void remove_ended_execs();
    core::Status make_stdio(Container& container, Process& process);

    // ---- ending ----
    void finish_exit(Container& container, Process& process, const core::ProcessRecord& record);
    DeleteOutcome remove_exec(Container& container, Process& process);
    void remove_unstarted(Container& container, Done<DeleteOutcome> done);
    DeleteOutcome finish_remove(Container& container);
    void forget(Container& container);
    void on_heap_trim();
    static bool has_live_exec(const Container& container);
    void release_process(Container& container, Process& process);

    core::Status kill_all(Container& container, int signal);
    core::Result<std::vector<pid_t>> list_pids(const Container& container) const;
    void freeze(const core::ContainerId& id, FreezeGoal goal, Done<core::Unit> done);
    bool shares_pid_namespace(const Container& container) const;
    core::Status open_cgroup_dirs(Container& container, bool two_levels);
    void save_or_log(const Container& container);
    static void log_unless_saved(const Container& container, const core::Status& saved);
    void report_lost_output(const StreamId& stream, uint64_t bytes);

    // ---- after a restart (adopt.cc) ----
    core::Status adopt_container(Welcome& welcome, const std::string& id);
    void adopt_process(Welcome& welcome, Container& container, Process& process);
    bool adopt_gate(Welcome& welcome, Container& container, Process& process);
    core::Status take_back_creation(const std::string& id, const pb::state::Container& state);
    class LogReplay;
    void settle_freezer(Container& container);
    void kill_unclaimed(Welcome& welcome);
    void undo_update(Container& container);
    core::Status adopt_sandbox();
    core::Status save_sandbox();

    loop::Loop& loop_;
    KeeperLink& keeper_;
    core::AgentConfig config_;
    GuestProbe guest_;
    SpawnerLink spawner_{loop_};
    EventHub events_;
    StreamTable streams_;
    SeccompCache seccomp_;
    DevicePrograms device_programs_;
    OpenStateFile open_state_file_;
    sys::UniqueFd sandbox_;          // the sandbox's cgroup
    std::string sandbox_resources_;  // what was asked of it, JSON
    std::string sandbox_undo_;       // as Container::update_undo
    std::shared_ptr<UpdateJob> sandbox_update_;
    sys::UniqueFd hierarchy_;   // what is mounted there; unless --cgroups-path=own
    std::string cgroup_mount_;  // where cgroup2 is mounted in the guest
    std::map<uint64_t, std::pair<Container*, std::string>> keys_;  // process key -> container, exec id
    std::map<uint64_t, std::shared_ptr<HookRun>> hook_runs_;       // by process key
    std::map<std::string, std::shared_ptr<Container>> containers_;
    std::vector<std::pair<std::string, std::string>> ended_execs_;  // container, exec: to be removed
    loop::Task ended_execs_task_{loop_, loop::Task::to<&Runtime::remove_ended_execs, Runtime>(), this};
    bool shutting_down_ = false;
    loop::Timer heap_trim_{loop_, loop::Timer::to<&Runtime::on_heap_trim, Runtime>(), this};
};

}  // namespace berth::runtime
