// memory.swap.max from OCI's numbers. OCI's memory.swap is memory + swap together; the kernel's is swap only.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "agent/core/result.h"

namespace berth::core {

inline constexpr int64_t kNoLimit = -1;

struct SwapQuestion {
    std::optional<int64_t> total;         // T, asked now or stored; absent or 0: unset
    std::optional<int64_t> memory_limit;  // M, effective: bytes, kNoLimit, or absent when none is known
};

// What to write into memory.swap.max: bytes, kNoLimit for "max", or absent for no write.
//   T = -1 -> max; T unset -> max when M = -1, else nothing; T > 0: T - M for a finite M <= T, T for M = -1.
// INVALID_ARGUMENT: T < M, T without a known M, T or M below -1.
Result<std::optional<int64_t>> swap_max(const SwapQuestion& question);

}  // namespace berth::core
