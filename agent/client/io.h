// Blocking input and output with a deadline. Descriptors are non-blocking; waiting is a poll().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::client {

// CLOCK_MONOTONIC in nanoseconds; deadlines are of this clock. kNoDeadline: wait for ever.
int64_t now_ns();
inline constexpr int64_t kNoDeadline = INT64_MAX;
// now + milliseconds; kNoDeadline when `milliseconds` is negative.
int64_t deadline_after_ms(int64_t milliseconds);

// True when the descriptor is ready for `events` (POLLIN, POLLOUT) or has ended; false at the deadline.
core::Result<bool> wait_ready(sys::FdRef fd, short events, int64_t deadline_ns);

// Reads what there is, at most `into`, after waiting for it. 0: the peer closed (a reset counts as that).
// DEADLINE_EXCEEDED when nothing came in time.
core::Result<size_t> read_some(sys::FdRef fd, std::span<std::byte> into, int64_t deadline_ns);

// Reads exactly `into`. UNAVAILABLE with err ECONNRESET when the connection ends before.
core::Status read_exactly(sys::FdRef fd, std::span<std::byte> into, int64_t deadline_ns);

// Writes all of it; never raises SIGPIPE on sockets. UNAVAILABLE with err EPIPE when the peer is gone.
core::Status write_all(sys::FdRef fd, std::span<const std::byte> data, int64_t deadline_ns);

// True for errors that mean "the connection is gone", after which dialing again is sensible.
bool is_disconnect(const core::Error& error);

}  // namespace berth::client
