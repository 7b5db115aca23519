// Specs and plans for tests.
#pragma once

#include <string>
#include <string_view>

#include "agent/core/container_plan.h"

namespace berth::test {

// The text of tests/data/specs/NAME; an empty text when it cannot be read.
std::string read_spec(std::string_view name);

// A small spec that is right, as JSON.
std::string base_spec();

// `json` changed by an RFC 7396 merge patch (null removes).
std::string patched(std::string_view json, std::string_view patch);

// A guest with everything: overlay, disks, cgroup namespaces.
core::GuestFacts guest();

// A launch of `spec` in guest(), with a root that lies in the guest, pipes as stdio, and one filter of ours
// of one instruction. `spec` and `facts` must outlive it.
core::ContainerLaunch launch_of(const core::ContainerSpec& spec, const core::GuestFacts& facts);
core::SeccompProgram filter_of(uint32_t value);

// A plan for people: the header's interesting fields, slots and steps, one a line. Filters show as their
// size.
std::string plan_text(const core::LaunchPlan& plan);

// The index of the first step with `op` (and `s1`, when given), or -1.
int find_step(const core::LaunchPlan& plan, core::PlanOp op, std::string_view s1 = {});

}  // namespace berth::test
