// Plans for the stage.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/core/launch_plan.h"

namespace berth::test {

struct StepOperands {
    uint64_t a = 0;
    uint64_t b = 0;
    uint64_t c = 0;
    std::string_view s1 = {};
    std::string_view s2 = {};
    int32_t slot = core::kNoSlot;
    uint16_t flags = 0;
    std::string_view label = {};
};

class PlanWriter {
 public:
    explicit PlanWriter(core::PlanKind kind) : builder(kind) {}
    void add(core::PlanOp op, const StepOperands& operands = {});
    int32_t slot();
    core::LaunchPlan finish(const std::vector<std::string>& argv, const std::vector<std::string>& envp = {});

    // New namespaces, the root at `root`, /proc, /dev with null and pts.
    void container_begin(const std::string& root, uint64_t extra_clone_flags = 0);
    void pivot();
    void devices();

    core::LaunchPlanBuilder builder;
};

}  // namespace berth::test
