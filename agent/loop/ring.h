// What the loop needs of an io_uring: the real one, or the fake of tests/support/loop that tests complete by
// hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "agent/core/result.h"

struct io_uring_sqe;

namespace berth::loop {

struct RingCompletion {
    // No initialisers: the loop has an array of these on the stack in each turn.
    uint64_t user_data;
    int32_t result;
    bool more;  // IORING_CQE_F_MORE: the multishot operation stays armed
};

class Ring {
 public:
    static constexpr int64_t kForever = -1;

    virtual ~Ring() = default;

    // A place for one submission, to be filled at once; null when the queue is full.
    virtual io_uring_sqe* next_sqe() = 0;
    // Hands what was queued to the kernel, without waiting. May leave some queued when the kernel is short of
    // memory or its completion queue overflowed: the next enter() tries again.
    virtual void submit() = 0;
    // Submits, lets the kernel post completions, and waits for at least one: `timeout_ns` 0 not at all,
    // kForever without an end. Returns early on a signal.
    virtual void enter(int64_t timeout_ns) = 0;
    // Takes up to into.size() completions; returns how many.
    virtual size_t reap(std::span<RingCompletion> into) = 0;
    virtual int64_t now_ns() = 0;  // CLOCK_MONOTONIC
};

// The kernel's ring with `entries` submissions (a power of two; the completion queue has four times as many).
// SINGLE_ISSUER | DEFER_TASKRUN, and where a kernel knows less: COOP_TASKRUN, then nothing. Close-on-exec,
// not mapped in children. Must be used by the thread that made it.
core::Result<std::unique_ptr<Ring>> create_kernel_ring(unsigned entries);

}  // namespace berth::loop
