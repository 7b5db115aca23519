// A ring that completes nothing by itself: tests look at what was submitted and complete it by hand.
#pragma once

#include <liburing.h>

#include <deque>
#include <vector>

#include "agent/loop/loop.h"
#include "agent/loop/ring.h"

namespace berth::test {

class FakeRing final : public loop::Ring {
 public:
    explicit FakeRing(size_t entries = 8) : queue_(entries) {}

    io_uring_sqe* next_sqe() override {
        if (queued_ == queue_.size()) return nullptr;
        queue_[queued_] = io_uring_sqe{};
        return &queue_[queued_++];
    }
    void submit() override {
        ++submits;
        if (refuse_submits > 0) {
            --refuse_submits;
            return;
        }
        for (size_t i = 0; i < queued_; ++i) submitted.push_back(queue_[i]);
        queued_ = 0;
    }
    void enter(int64_t timeout_ns) override {
        submit();
        timeouts.push_back(timeout_ns);
        if (on_enter != nullptr) on_enter(*this);
    }
    size_t reap(std::span<loop::RingCompletion> into) override {
        size_t count = 0;
        while (count < into.size() && !completions.empty()) {
            into[count++] = completions.front();
            completions.pop_front();
        }
        return count;
    }
    int64_t now_ns() override { return now; }

    void complete(const loop::Op& op, int32_t result, bool more = false) {
        completions.push_back({reinterpret_cast<uint64_t>(&op), result, more});
    }
    // The completion of a cancel request.
    void complete_nobody(int32_t result) { completions.push_back({0, result, false}); }

    std::vector<io_uring_sqe> submitted;
    std::vector<int64_t> timeouts;  // of every enter
    std::deque<loop::RingCompletion> completions;
    int64_t now = 1'000'000'000;
    int submits = 0;
    int refuse_submits = 0;  // the kernel takes nothing this many times
    void (*on_enter)(FakeRing&) = nullptr;

 private:
    std::vector<io_uring_sqe> queue_;
    size_t queued_ = 0;
};

}  // namespace berth::test
