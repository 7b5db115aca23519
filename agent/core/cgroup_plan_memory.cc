// memory.*: the limits, and memory.swap.max from OCI's total.
#include <array>
#include <cstdint>

#include "agent/core/cgroup_plan_internal.h"
#include "agent/core/swap.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::core::plan {
namespace {

// One file of the five that order matters for. -1: "max".
struct Target {
    std::string_view file;
    int64_t fresh = 0;  // the value in a new cgroup
    std::optional<int64_t> value;
};

enum Index : size_t { kMin, kLow, kHigh, kMax, kSwap, kTargets };
using Targets = std::array<Target, kTargets>;

bool above(int64_t a, int64_t b) {
    return static_cast<uint64_t>(a) > static_cast<uint64_t>(b);  // -1 is above everything
}

int64_t unified_bytes(const std::string& value) {
    std::optional<int64_t> bytes = parse_limit(value);
    BERTH_CHECK(bytes.has_value());
    return *bytes;
}

// The memory limit that counts for the swap total, see the table in swap.h.
std::optional<int64_t> effective_limit(const Planner& p) {
    if (const std::string* held = p.merged_unified("memory.max")) return unified_bytes(*held);
    if (p.merged.memory.limit) return p.merged.memory.limit;
    if (p.mode == PlanMode::kUpdate) {
        std::optional<int64_t> in_file = parse_limit(p.current("memory.max"));
        if (in_file && *in_file >= 0) return in_file;
    }
    return std::nullopt;
}

Status plan_swap(const Planner& p, bool limit_asked, std::optional<int64_t> limit, Target& target) {
    std::optional<int64_t> asked = p.request.memory.swap;
    bool swap_asked = asked.value_or(0) != 0;
    const std::string* unified = p.asked_unified("memory.swap.max");
    std::optional<int64_t> computed;
    if (swap_asked || limit_asked) {
        // Checked even when unified overrides it: a contradiction in a request is an error.
        SwapQuestion question{.total = swap_asked ? asked : p.merged.memory.swap, .memory_limit = limit};
        BERTH_ASSIGN(computed, swap_max(question));
    }
    if (unified != nullptr) {
        target.value = unified_bytes(*unified);
        return ok();
    }
    if (!computed) return ok();
    // A swap limit that was asked for through unified before stays: only an asked total may replace it.
    if (!swap_asked && p.merged_unified("memory.swap.max") != nullptr) return ok();
    if (!p.facts.has(target.file)) {
        // No swap accounting: no limit and no swap are both already true.
        if (*computed == kNoLimit || *computed == 0) return ok();
        return missing_file("memory.swap", target.file);
    }
    target.value = computed;
    return ok();
}

Status check_usage(const Planner& p, bool limit_asked, std::optional<int64_t> limit, const Target& swap) {
    if (p.mode != PlanMode::kUpdate || !p.merged.memory.check_before_update.value_or(false)) return ok();
    std::optional<int64_t> used = parse_limit(p.current("memory.current"));
    std::optional<int64_t> swapped = parse_limit(p.current("memory.swap.current"));
    // As runc: the total first. Unsigned: two limits of unified can be as large as they like.
    if (swap.value && limit_asked && limit && used && *swap.value != kNoLimit && *limit != kNoLimit) {
        uint64_t total = static_cast<uint64_t>(*limit) + static_cast<uint64_t>(*swap.value);
        uint64_t in_use = static_cast<uint64_t>(*used) + static_cast<uint64_t>(swapped.value_or(0));
        if (in_use > total) {
            return make_error(
                Code::kFailedPrecondition,
                format("memory.swap: %llu is below the %llu bytes of memory and swap in use "
                       "(checkBeforeUpdate)",
                       static_cast<unsigned long long>(total), static_cast<unsigned long long>(in_use)));
        }
    }
    if (limit_asked && limit && used && above(*used, *limit)) {
        return make_error(Code::kFailedPrecondition, "memory.limit: " + std::to_string(*limit) +
                                                         " is below the " + std::to_string(*used) +
                                                         " bytes in use (checkBeforeUpdate)");
    }
    if (swap.value && swapped && above(*swapped, *swap.value)) {
        return make_error(Code::kFailedPrecondition, "memory.swap: leaves " + std::to_string(*swap.value) +
                                                         " bytes of swap, below the " +
                                                         std::to_string(*swapped) +
                                                         " in use (checkBeforeUpdate)");
    }
    return ok();
}

// What is raised goes first, from the outermost limit inwards; then what is lowered: protections before
// limits, so that nothing keeps the reclaim from its pages, swap before memory.max, so that what grows at its
// cost is there, and memory.max last, since it kills when reclaim is not enough.
void write_ordered(Planner& p, const Targets& targets) {
    auto is_raise = [&](const Target& target) {
        int64_t old = parse_limit(p.current(target.file)).value_or(target.fresh);
        return above(*target.value, old);
    };
    for (Index i : {kMax, kHigh, kSwap, kLow, kMin}) {
        const Target& target = targets[i];
        if (target.value && is_raise(target)) {
            p.write(target.file, page_rounded(*target.value, p.facts.page_size));
        }
    }
    for (Index i : {kMin, kLow, kSwap, kHigh, kMax}) {
        const Target& target = targets[i];
        if (target.value && !is_raise(target)) {
            p.write(target.file, page_rounded(*target.value, p.facts.page_size));
        }
    }
}

}  // namespace

Status plan_memory(Planner& p) {
    const MemoryResources& asked = p.request.memory;
    Targets targets = {{{"memory.min", 0, {}},
                        {"memory.low", 0, {}},
                        {"memory.high", -1, {}},
                        {"memory.max", -1, {}},
                        {"memory.swap.max", -1, {}}}};
    if (asked.limit.value_or(0) != 0) {
        BERTH_TRY(p.require("memory.limit", "memory.max"));
        targets[kMax].value = asked.limit;
    }
    if (asked.reservation.value_or(0) != 0) {
        BERTH_TRY(p.require("memory.reservation", "memory.low"));
        targets[kLow].value = asked.reservation;
    }
    for (Index i : {kMin, kLow, kHigh, kMax}) {
        if (const std::string* value = p.asked_unified(targets[i].file))
            targets[i].value = unified_bytes(*value);
    }
    bool limit_asked = targets[kMax].value.has_value();
    std::optional<int64_t> limit = effective_limit(p);
    BERTH_TRY(plan_swap(p, limit_asked, limit, targets[kSwap]));
    BERTH_TRY(check_usage(p, limit_asked, limit, targets[kSwap]));
    // Before the limits, so that an OOM kill on their way is already the group's.
    if (const std::string* value = p.asked_unified("memory.oom.group")) p.write("memory.oom.group", *value);
    write_ordered(p, targets);
    return ok();
}

}  // namespace berth::core::plan
