// Create, from a request to a process that waits behind its gate.
//
//   read config.json (when the request has none) -> plan everything -> intent on disk -> cgroups, limits,
//   device program, memory.events armed -> stdio -> spawner -> the child's set-up -> kReady -> state on disk
//   -> event -> answer
//
// A failure at any point takes back, in reverse, what was done, and only then is it answered.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

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
    core::Status open_config();
    void on_config_read(loop::Op& op, int32_t result);
    void proceed(std::string_view json);
    core::Status plan(std::string_view json, Plans& plans);
    core::Status plan_devices(const core::ContainerSpec& spec);
    core::Status check_bind_sources(const std::vector<std::string>& sources, const core::GuestFacts& facts);
    core::Status check_bound_device(const std::string& source, const struct stat& found);
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
    sys::UniqueFd config_fd_;
    std::string config_;
    size_t config_read_ = 0;
    loop::Op read_op_{loop::Op::to<&CreateJob::on_config_read>(), this};
};

}  // namespace berth::runtime
