// Tickets: what OpenStream gives out and a stream connection shows. Random, short-lived, good once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "agent/core/limits.h"
#include "agent/core/result.h"

namespace berth::runtime {

inline constexpr size_t kTicketBytes = 32;
using Ticket = std::array<uint8_t, kTicketBytes>;

// What a ticket was good for.
struct StreamGrant {
    uint64_t stream_key = 0;
    std::optional<uint64_t> resume_offset;
};

class TicketBook {
 public:
    // `random`: 32 fresh random bytes, which become the ticket. RESOURCE_EXHAUSTED when limits::kTickets are
    // outstanding at `now_ns` (monotonic).
    core::Status add(const Ticket& random, StreamGrant grant, int64_t now_ns);
    // Uses the ticket up. PERMISSION_DENIED when it is unknown, expired or used; the time that this takes
    // does not depend on how much of it is right.
    core::Result<StreamGrant> take(std::span<const uint8_t, kTicketBytes> ticket, int64_t now_ns);
    // The stream is gone: its tickets are, too.
    void forget(uint64_t stream_key);
    void clear() { entries_.clear(); }
    size_t size() const { return entries_.size(); }

 private:
    struct Entry {
        Ticket ticket;
        StreamGrant grant;
        int64_t expires_ns;
    };
    void drop_expired(int64_t now_ns);
    std::vector<Entry> entries_;
};

}  // namespace berth::runtime
