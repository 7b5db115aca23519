// Where an authenticated stream connection goes: the contract between the connections and whoever keeps the
// streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::service {

// What a ticket was good for. The connections do not look inside.
struct TicketGrant {
    uint64_t stream_key = 0;     // which stream, in the implementer's own numbering
    uint64_t resume_offset = 0;  // what OpenStream asked for; meaningful when has_resume_offset
    bool has_resume_offset = false;
};

class StreamGate {
 public:
    virtual ~StreamGate() = default;

    // Called once a connection has proved that it knows the key (or needs no proof), never before. Takes the
    // ticket: unknown, expired (limits::kTicketLifetimeMs) or used ones are errors, and this one is used up
    // by an ok. The comparison must not tell how much of a guess was right.
    virtual core::Result<TicketGrant> check_ticket(std::span<const uint8_t, 32> ticket) = 0;

    // The connection is the implementer's from here on, non-blocking and with nothing read past the
    // handshake: the first byte to read is the first byte of a stream frame, and the agent speaks first.
    virtual void attach(TicketGrant grant, sys::UniqueFd socket) = 0;

    // Stream sockets held now, for the limit of limits::kStreamConnections.
    virtual size_t attached() const = 0;
};

}  // namespace berth::service
