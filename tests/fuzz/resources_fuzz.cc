// linux.resources: what is accepted must survive writing and reading, and planning must never fail badly.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "agent/core/cgroup_plan.h"
#include "agent/core/device_filter.h"
#include "agent/core/resources.h"

using namespace berth::core;

namespace {

CgroupFacts facts() {
    CgroupFacts all;
    for (const char* file :
         {"cpu.weight", "cpu.idle", "cpu.max", "cpu.max.burst", "cpu.uclamp.min", "cpu.uclamp.max",
          "cpuset.cpus", "cpuset.mems", "memory.min", "memory.low", "memory.high", "memory.max",
          "memory.swap.max", "memory.oom.group", "pids.max", "io.weight", "io.max", "rdma.max"}) {
        all.files.emplace_back(file);
        all.current[file] = "1 2";
    }
    return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::string_view text(reinterpret_cast<const char*>(data), size);
    Result<Resources> resources = parse_resources_text(text, "resources");
    if (!resources.ok()) {
        if (resources.error().message.empty()) abort();
        return 0;
    }
    Result<Resources> again = parse_resources_text(serialize_resources(*resources), "resources");
    if (!again.ok() || !(*again == *resources)) abort();
    static const CgroupFacts kFacts = facts();
    for (PlanMode mode : {PlanMode::kCreate, PlanMode::kUpdate}) {
        Result<CgroupPlan> plan = plan_resources(*resources, *resources, kFacts, mode);
        if (!plan.ok()) continue;
        (void)plan_restore(*plan, plan->writes.size(), kFacts.current);
        // What was stored can be asked again.
        if (!plan_resources(plan->merged, {}, kFacts, PlanMode::kUpdate).ok()) abort();
    }
    if (resources->devices) (void)build_device_filter(*resources->devices, {}).ok();
    return 0;
}
