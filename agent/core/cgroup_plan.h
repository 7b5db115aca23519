// Resources into cgroup v2 writes: create and update are the same code.
//
//     facts (read) -> plan_resources() -> snapshot of plan.snapshot_files (read) -> plan.writes, one by one
//                                         on failure: plan_restore() -> those writes, in order
//
// Planning refuses everything that can be known to fail before the first write. Merging is by kernel file: a
// newer request beats what was asked before in either spelling (memory.limit or unified "memory.max"); within
// one request unified wins. The merged request holds each file in one spelling only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/resources.h"
#include "agent/core/result.h"

namespace berth::core {

enum class PlanMode : uint8_t { kCreate, kUpdate };

// What the planner must know about one cgroup. On create the cgroup may not exist yet: the names are then
// those of any cgroup beside it, since equal controllers give equal files.
struct CgroupFacts {
    std::vector<std::string> files;  // names in the cgroup's directory, in any order
    uint64_t page_size = 4096;
    // Contents of those of wanted_facts() that could be read; on create empty.
    std::map<std::string, std::string, std::less<>> current;

    bool has(std::string_view file) const;
};

// The files whose contents plan_resources() looks at for an update by `request`: those of the controllers
// that it names. Reading those of them that exist is enough.
std::vector<std::string_view> wanted_facts(const Resources& request);

struct CgroupWrite {
    std::string file;
    std::string value;  // one write(2), no newline
    std::string label;  // "cgroup.write memory.max=67108864": the step's name in errors
    // May reclaim inside write(2), for seconds: on update a ring operation, never inline.
    bool may_reclaim = false;
    bool operator==(const CgroupWrite&) const = default;
};

struct CgroupPlan {
    // In an order in which each can succeed: on create for a fresh cgroup, on update from facts.current.
    std::vector<CgroupWrite> writes;
    // To be read before the first write, for plan_restore(). Sorted, each once.
    std::vector<std::string> snapshot_files;
    Resources merged;              // what to store as "asked before" once every write succeeded
    bool devices_changed = false;  // merged.devices is new: build and attach (or replace) the device program
};

// Decides everything, touches nothing. `stored` is the merged request of before (empty on create).
//   INVALID_ARGUMENT    a value out of its range, contradictory, or one that cgroup v2 has no word for
//                       (realtime, kernel memory, swappiness, disableOOMKiller, network, leafWeight)
//   FAILED_PRECONDITION a file that this guest lacks (named with its controller), or with checkBeforeUpdate a
//                       limit below what is in use
// An empty request plans no write.
Result<CgroupPlan> plan_resources(const Resources& stored, const Resources& request, const CgroupFacts& facts,
                                  PlanMode mode);

// The writes that bring back the old values after the first `attempted` of plan.writes were tried (the one
// that failed included), in reverse order, from the contents that plan.snapshot_files had. Files that are
// missing in `snapshot` are left out.
std::vector<CgroupWrite> plan_restore(const CgroupPlan& plan, size_t attempted,
                                      const std::map<std::string, std::string, std::less<>>& snapshot);

// One error for a file that the guest does not have, because the controller is missing or the kernel was
// built without it: FAILED_PRECONDITION `WHAT: this guest has no FILE (controller CONTROLLER)`.
Error missing_file(std::string_view what, std::string_view file);

}  // namespace berth::core
