// Resource plans as rows of text: a request in JSON, and the writes that come of it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "agent/core/cgroup_plan.h"

namespace berth::test {

using FileContents = std::map<std::string, std::string, std::less<>>;

// A cgroup with every controller and every file that a current kernel has, except what `without` lists
// (separated by blanks).
core::CgroupFacts full_facts(std::string_view without = "");

// "memory.max=1 pids.max=max": the writes; "CODE: message" for an error. `stored` "" means nothing.
std::string planned(std::string_view stored, std::string_view request, const core::CgroupFacts& facts,
                    core::PlanMode mode);

// The merged request that would be stored, as JSON; the request must be good.
std::string merged(std::string_view stored, std::string_view request);

core::Resources resources_of(std::string_view json);

}  // namespace berth::test
