// Shared by the cgroup_plan*.cc files only.
#pragma once

#include <string>
#include <string_view>

#include "agent/core/cgroup_plan.h"

namespace berth::core::plan {

// One planning run.
struct Planner {
    const Resources& stored;
    const Resources& request;
    const CgroupFacts& facts;
    PlanMode mode;
    CgroupPlan& out;
    Resources& merged;  // out.merged: already merged when the planning functions run

    // What the request itself says about a file in unified, or null.
    const std::string* asked_unified(std::string_view key) const;
    // What holds after the merge, or null.
    const std::string* merged_unified(std::string_view key) const;
    // The trimmed content of a file, or empty.
    std::string_view current(std::string_view file) const;

    // FAILED_PRECONDITION when `file` does not exist; `what` is the field that asked for it.
    Status require(std::string_view what, std::string_view file) const;
    // Appends a write and its snapshot.
    void write(std::string_view file, std::string value);
    void snapshot(std::string_view file);
};

// Refuses what can never be written on cgroup v2, whatever the guest has. Pure on the request.
Status check_request(const Resources& request, PlanMode mode);

// By kernel file, see cgroup_plan.h.
Resources merge(const Resources& stored, const Resources& request);

Status plan_cpuset(Planner& planner);
Status plan_cpu(Planner& planner);
Status plan_memory(Planner& planner);  // memory, swap
Status plan_io(Planner& planner);      // io
Status plan_others(Planner& planner);  // pids, hugetlb, rdma

// "cpu" of "cpu.max", and so on.
std::string_view controller_of(std::string_view file);

// A limit in a file: bytes or a count; -1 for "max"; absent when it is neither.
std::optional<int64_t> parse_limit(std::string_view text);

}  // namespace berth::core::plan
