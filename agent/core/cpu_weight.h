// CPU shares and block I/O weights in cgroup v2's scale.
#pragma once

#include <cstdint>

namespace berth::core {

// cpu.weight for OCI cpu.shares by the current opencontainers formula:
// ceil(10^((L^2 + 125 L) / 612 - 7/34)) with L = log2(shares), so that 2 -> 1, 1024 -> 100, 262144 -> 10000.
// Below 2 counts as 2, above 262144 as 262144. `shares` of 0 means unset and must not come here.
uint32_t cpu_weight_from_shares(uint64_t shares);

// io.weight for OCI blockIO.weight (10 to 1000): 10 -> 1, 100 -> 910, 1000 -> 10000.
uint32_t io_weight_from_blkio(uint16_t weight);

}  // namespace berth::core
