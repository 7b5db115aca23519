#include "agent/keeper/restart_policy.h"

namespace berth::keeper {

int64_t RestartPolicy::on_crash(int64_t now_ns) {
    constexpr int64_t kDelaysNs[] = {0, 100'000'000, 1'000'000'000, 5'000'000'000};
    constexpr uint32_t kLast = sizeof kDelaysNs / sizeof kDelaysNs[0] - 1;
    if (ready_since_ns_ != kNeverReady && now_ns - ready_since_ns_ >= kSettledNs) crashes_ = 0;
    ready_since_ns_ = kNeverReady;
    int64_t delay_ns = kDelaysNs[crashes_ < kLast ? crashes_ : kLast];
    if (crashes_ < UINT32_MAX) ++crashes_;
    return now_ns + delay_ns;
}

void RestartPolicy::on_purpose() {
    crashes_ = 0;
    ready_since_ns_ = kNeverReady;
}

}  // namespace berth::keeper
