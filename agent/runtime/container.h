// One container: what was asked, where it lives, and its processes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/container_plan.h"
#include "agent/core/container_spec.h"
#include "agent/core/device_filter.h"
#include "agent/core/ids.h"
#include "agent/core/rootfs_plan.h"
#include "agent/runtime/cgroup_dirs.h"
#include "agent/runtime/memory_watch.h"
#include "agent/runtime/process.h"
#include "agent/runtime/state_file.h"
#include "proto/berth/guest.pb.h"
#include "proto/berth/state.pb.h"

namespace berth::runtime {

inline constexpr uint32_t kStateVersion = 1;  // of the state file

class Runtime;
class CreateJob;
class FreezeJob;
class HookRun;
class UpdateJob;

class Container {
 public:
    Container(Runtime& runtime, core::ContainerId id_value);
    ~Container();
    Container(const Container&) = delete;
    Container& operator=(const Container&) = delete;

    // ---- what the state file keeps ----
    core::ContainerId id;
    std::string containerd_namespace;
    std::string name;  // what hooks are told as the id; empty: the id
    std::string bundle;
    std::string root_place;   // while it is created: where its root file system is put together
    std::string cgroup_path;  // below the sandbox
    int64_t created_at_ns = 0;
    bool paused = false;
    std::string resources_json;
    bool stdio_drop = false;
    bool is_owners = false;  // CreateRequest::is_owners
    std::map<std::string, std::string> annotations;
    core::MemoryEvents memory_total;
    core::MemoryEvents memory_local;
    uint64_t memory_sequence = 0;
    uint64_t exit_oom_kill_local = 0;
    std::string update_undo;  // see update_job.h; empty: no update is under way

    // ---- live ----
    core::ContainerSpec spec;                                     // what execs need of it
    std::shared_ptr<const core::SeccompProgram> seccomp_profile;  // compiled; null: the spec has none
    std::vector<core::RootfsMount> rootfs;                        // until the create event is out
    CgroupDirs cgroup;
    // The mount namespace that its root is in, when it is not its own; the keeper has one, too.
    sys::UniqueFd mounts;
    std::shared_ptr<MemoryWatch> memory;
    std::map<std::string, std::unique_ptr<Process>> execs;
    std::unique_ptr<CreateJob> create_job;  // while it is being created
    std::shared_ptr<FreezeJob> freeze_job;  // while a pause or resume is under way
    std::shared_ptr<UpdateJob> update_job;  // while an update is under way
    std::shared_ptr<HookRun> hook_run;      // while hooks of it run
    bool deleting = false;
    core::Callback<void()> on_execs_ended;  // a deletion that waits for the last exits

    // Which block devices its rules may name.
    core::BlockDevices block_devices() const {
        return is_owners ? core::BlockDevices::kEvery : core::BlockDevices::kAttached;
    }

    Runtime& runtime() { return runtime_; }
    const std::string& told_id() const { return name.empty() ? id.text() : name; }
    Process& init() { return *init_; }
    const Process& init() const { return *init_; }
    void set_init(std::unique_ptr<Process> process) { init_ = std::move(process); }
    // By exec id, empty for the init; null when there is none.
    Process* find_process(std::string_view exec_id);
    const Process* find_process(std::string_view exec_id) const;

    TaskStatus status() const;

    // Keeps of the spec what an exec is planned from; the rest would cost every container tens of KiB.
    void keep_for_execs(core::ContainerSpec full);

    // An event about this container, with its id and namespace filled in.
    v1::Event event(const core::ExecId& exec_id) const;

    // Reads the counters now and logs what grew. Before every exit and before the cgroup goes.
    void check_memory();
    void on_memory(const MemoryReading& reading);
    void fill_memory(v1::MemoryEvents& out) const;

    // Adds a record to /run/berth/state/ID/state. A failure is logged: tmpfs is full, and a restart
    // would not know the newest facts.
    core::Status save(bool creating = false) const;
    // The same when nothing but this process, or `exit_oom_kill_local`, is new; or the exec is `removed`.
    core::Status save_process(const Process& process, bool removed = false) const;

    // Names in the keeper's store.
    std::string fd_prefix() const { return "c/" + id.text() + "/"; }
    // The prefix of both: they are stored, and dropped, in one message.
    std::string launch_prefix(const core::ExecId& exec_id) const {
        // "@init" is no exec's id: their alphabet has no "@".
        return fd_prefix() + "launch/" + (exec_id.is_init() ? "@init" : exec_id.text()) + "/";
    }
    std::string mounts_name() const { return fd_prefix() + "mounts"; }
    std::string gate_name(const core::ExecId& exec_id) const { return launch_prefix(exec_id) + "0"; }
    std::string plan_name(const core::ExecId& exec_id) const { return launch_prefix(exec_id) + "1"; }

 private:
    Runtime& runtime_;
    std::unique_ptr<Process> init_;
    mutable StateLog state_log_;
};

}  // namespace berth::runtime
