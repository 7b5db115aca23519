#include "agent/core/cgroup_plan.h"

#include <algorithm>
#include <array>

#include "agent/core/cgroup_plan_internal.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::core {
namespace {

constexpr std::array<std::string_view, 12> kWanted = {
    "cpu.idle",   "cpu.max",    "cpu.max.burst",    "memory.current",  "memory.high",         "memory.low",
    "memory.max", "memory.min", "memory.oom.group", "memory.swap.max", "memory.swap.current", "pids.max",
};

bool names_controller(const Resources& request, std::string_view controller) {
    for (const auto& [key, value] : request.unified) {
        if (plan::controller_of(key) == controller) return true;
    }
    if (controller == "memory") return request.memory != MemoryResources();
    if (controller == "cpu") return request.cpu != CpuResources();
    return controller == "pids" && request.pids_limit.has_value();
}

}  // namespace

bool CgroupFacts::has(std::string_view file) const {
    return std::find(files.begin(), files.end(), file) != files.end();
}

std::vector<std::string_view> wanted_facts(const Resources& request) {
    std::vector<std::string_view> wanted;
    for (std::string_view file : kWanted) {
        if (names_controller(request, plan::controller_of(file))) wanted.push_back(file);
    }
    return wanted;
}

Error missing_file(std::string_view what, std::string_view file) {
    std::string text(what);
    text.append(": this guest has no ").append(file);
    text.append(" (controller ").append(plan::controller_of(file)).append(")");
    return make_error(Code::kFailedPrecondition, std::move(text));
}

Result<CgroupPlan> plan_resources(const Resources& stored, const Resources& request, const CgroupFacts& facts,
                                  PlanMode mode) {
    BERTH_TRY(plan::check_request(request, mode));
    CgroupPlan result;
    result.merged = plan::merge(stored, request);
    result.devices_changed = request.devices.has_value();
    plan::Planner planner{stored, request, facts, mode, result, result.merged};
    for (const auto& [key, value] : request.unified) {
        BERTH_TRY(planner.require("unified[" + quoted(key) + "]", key));
    }
    if (mode == PlanMode::kCreate) BERTH_TRY(plan::plan_cpuset(planner));
    BERTH_TRY(plan::plan_cpu(planner));
    BERTH_TRY(plan::plan_memory(planner));
    BERTH_TRY(plan::plan_io(planner));
    BERTH_TRY(plan::plan_others(planner));
    // Last: while tasks are in it, the kernel does not take "as the parent" (empty) back (ENOSPC).
    if (mode == PlanMode::kUpdate) BERTH_TRY(plan::plan_cpuset(planner));
    std::sort(result.snapshot_files.begin(), result.snapshot_files.end());
    result.snapshot_files.erase(std::unique(result.snapshot_files.begin(), result.snapshot_files.end()),
                                result.snapshot_files.end());
    return result;
}

namespace plan {

std::string_view controller_of(std::string_view file) {
    return file.substr(0, file.find('.'));
}

std::optional<int64_t> parse_limit(std::string_view text) {
    if (text == "max") return -1;
    std::optional<int64_t> number = parse_number<int64_t>(text);
    if (!number || *number < 0) return std::nullopt;
    return number;
}

const std::string* Planner::asked_unified(std::string_view key) const {
    auto found = request.unified.find(std::string(key));
    return found == request.unified.end() ? nullptr : &found->second;
}

const std::string* Planner::merged_unified(std::string_view key) const {
    auto found = merged.unified.find(std::string(key));
    return found == merged.unified.end() ? nullptr : &found->second;
}

std::string_view Planner::current(std::string_view file) const {
    auto found = facts.current.find(file);
    return found == facts.current.end() ? std::string_view() : trim(found->second);
}

Status Planner::require(std::string_view what, std::string_view file) const {
    if (!facts.has(file)) return missing_file(what, file);
    return ok();
}

void Planner::snapshot(std::string_view file) {
    out.snapshot_files.emplace_back(file);
}

void Planner::write(std::string_view file, std::string value) {
    CgroupWrite step;
    step.file = file;
    step.label = "cgroup.write " + step.file + "=" + value;
    step.value = std::move(value);
    step.may_reclaim = file.starts_with("memory.");
    out.writes.push_back(std::move(step));
    snapshot(file);
}

}  // namespace plan
}  // namespace berth::core
