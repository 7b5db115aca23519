#include "agent/core/cpu_weight.h"

#include <cmath>

#include "agent/core/check.h"

namespace berth::core {

uint32_t cpu_weight_from_shares(uint64_t shares) {
    BERTH_CHECK(shares != 0);
    if (shares <= 2) return 1;
    if (shares >= 262'144) return 10'000;
    double l = std::log2(static_cast<double>(shares));
    double weight = std::pow(10.0, (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0);
    // 1024 is exactly 100 on paper; a libm that says 100.0000000001 must not make it 101. No other value of
    // shares comes this close above an integer.
    constexpr double kRounding = 1e-9;
    return static_cast<uint32_t>(std::ceil(weight - kRounding));
}

uint32_t io_weight_from_blkio(uint16_t weight) {
    BERTH_CHECK(weight >= 10 && weight <= 1000);
    return 1 + (static_cast<uint32_t>(weight) - 10) * 9999 / 990;
}

}  // namespace berth::core
