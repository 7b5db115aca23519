// When a child that ended is started again. Pure: the caller brings the clock.
#pragma once

#include <cstdint>

namespace berth::keeper {

// At once, then after 100 ms, 1 s, 5 s, 5 s, ...; three crashes in a row mean safe mode. A child that said it
// was ready and then served for kSettledNs starts the count anew, and so does an end on purpose.
class RestartPolicy {
 public:
    static constexpr int64_t kSettledNs = 60'000'000'000;
    static constexpr uint32_t kSafeModeCrashes = 3;

    // The child said that it serves.
    void on_ready(int64_t now_ns) { ready_since_ns_ = now_ns; }

    // The child crashed: when to start the next one (monotonic, >= now_ns).
    int64_t on_crash(int64_t now_ns);

    // The child ended because it was told to: the next one starts at once.
    void on_purpose();

    bool safe_mode() const { return crashes_ >= kSafeModeCrashes; }
    uint32_t crashes() const { return crashes_; }

 private:
    static constexpr int64_t kNeverReady = -1;
    uint32_t crashes_ = 0;
    int64_t ready_since_ns_ = kNeverReady;
};

}  // namespace berth::keeper
