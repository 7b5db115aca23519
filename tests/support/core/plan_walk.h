// Touches everything in a launch plan that the child would: what validate_launch_plan() let through must be
// readable to its last byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "agent/core/launch_plan.h"

namespace berth::test {

inline uint64_t touch_string(std::span<const std::byte> blob, uint64_t offset) {
    return std::strlen(reinterpret_cast<const char*>(blob.data()) + offset);
}

// Returns a sum, so that nothing is optimised away. `blob` must be valid and 8-aligned.
inline uint64_t walk_plan(std::span<const std::byte> blob) {
    const auto* header = reinterpret_cast<const core::PlanHeader*>(blob.data());
    uint64_t sum = 0;
    for (core::PlanString text : {header->uid_map, header->gid_map, header->timens_offsets}) {
        if (text.offset != 0) sum += touch_string(blob, text.offset) + text.length;
    }
    const auto* steps = reinterpret_cast<const core::PlanStep*>(blob.data() + header->steps.offset);
    uint32_t visited = 0;
    for (uint32_t i = 0; i < header->steps.count; ++visited) {
        const core::PlanStep& step = steps[i];
        for (core::PlanString text : {step.s1, step.s2, step.label}) {
            if (text.offset == 0) continue;
            sum += touch_string(blob, text.offset);
            for (uint32_t at = 0; at <= text.length; ++at) {
                sum += static_cast<uint64_t>(blob[size_t{text.offset} + at]);
            }
        }
        if (step.slot != core::kNoSlot) sum += header->fd_count - static_cast<uint32_t>(step.slot);
        bool jumps = step.op == core::PlanOp::kTreeRoot || step.op == core::PlanOp::kTargetExisting;
        i = jumps && step.b == 1 ? static_cast<uint32_t>(step.c) : i + 1;
    }
    for (core::PlanArray array : {header->argv, header->envp}) {
        const auto* offsets = reinterpret_cast<const uint64_t*>(blob.data() + array.offset);
        for (uint32_t i = 0; i < array.count; ++i) sum += touch_string(blob, offsets[i]);
        if (offsets[array.count] != 0) __builtin_trap();
    }
    return sum + visited;
}

}  // namespace berth::test
