// Create, from a request to a process that waits behind its gate.
//
//   read config.json (when the request has none) -> look at bind sources -> plan everything -> intent on disk
//   -> cgroups, limits, device program, memory.events armed -> stdio -> spawner -> the child's set-up ->
//   kReady -> state on disk
//   -> event -> answer
//
// A failure at any point takes back, in reverse, what was done, and only then is it answered.
#pragma once

#include <linux/openat2.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/core/cgroup_path.h"
#include "agent/core/cgroup_plan.h"
#include "agent/core/container_plan.h"
#include "agent/loop/loop.h"
#include "agent/runtime/cgroup_teardown.h"
#include "agent/runtime/process.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class Container;
struct DeviceProgram;
class Runtime;
struct CreateRequest;

class CreateJob {
 public:
    CreateJob(Runtime& runtime, Container& container, CreateRequest request, Done<uint32_t> done);
    ~CreateJob();

    void begin();
    void on_hook();
    void on_ready();
    void fail(core::Error error);

    // A create of the same id, while this one is taken back: its caller was told already (its deadline
    // passed), and whoever hears that may ask again at once. Begins when everything is back; one can wait.
    // False, and nothing is taken: this one is not being taken back, or another waits already.
    bool queue(CreateRequest& request, Done<uint32_t>& done);
    // The deadline of `caller` (CreateRequest::caller) passed: ends the create that is its own, here or
    // waiting.
    void cancel(const void* caller, core::Error why);

 private:
    struct Plans;
    // A path of the request's, which may lie on a file system that does not answer: opened by the ring.
    struct Look {
        std::string path;
        bool is_joined_mounts = false;  // linux.namespaces; else a bind source
    };
    void open_by_ring(const std::string& path, uint64_t flags);
    void on_opened(loop::Op& op, int32_t result);
    core::Status take_config(sys::UniqueFd fd, int32_t result);
    void on_config_read(loop::Op& op, int32_t result);
    void proceed();
    core::Status read_spec();
    void look_at_next();
    core::Status plan(Plans& plans);
    core::Status plan_devices(const core::ContainerSpec& spec);
    core::Status check_bind_source(const std::string& source, const sys::UniqueFd& fd);
    core::Status check_bound_device(const std::string& source, uint32_t major, uint32_t minor);
    core::Status apply(std::string_view json, Plans& plans);
    core::Status plan_cgroup(Plans& plans, const core::CgroupPowers& powers) const;
    core::Status make_cgroups(Plans& plans);
    core::Status adopt_empty_cgroup(const CgroupPlace& place);
    core::Status arm_memory_watch();
    core::Status launch(Plans& plans);
    void roll_back();
    void finish_roll_back();
    void finish();
    void end(core::Result<uint32_t> result);

    Runtime& runtime_;
    Container& container_;
    std::unique_ptr<CreateRequest> request_;
    Done<uint32_t> done_;
    const void* caller_;
    std::unique_ptr<CreateRequest> next_;  // null: nobody waits
    Done<uint32_t> next_done_;
    bool changed_ = false;  // there is something to take back
    bool failing_ = false;
    bool hooks_begun_ = false;
    std::shared_ptr<const DeviceProgram>
        device_program_;  // loaded before the clone, attached when the set-up is done
    core::Error error_;
    std::string open_path_;
    open_how open_how_{};
    loop::Op open_op_{loop::Op::to<&CreateJob::on_opened>(), this};
    sys::UniqueFd config_fd_;
    std::string config_;
    size_t config_read_ = 0;
    std::unique_ptr<Plans> plans_;
    std::vector<Look> looks_;  // what is still to be looked at, the next one last
    loop::Op read_op_{loop::Op::to<&CreateJob::on_config_read>(), this};
};

}  // namespace berth::runtime
