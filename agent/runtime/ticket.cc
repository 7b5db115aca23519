#include "agent/runtime/ticket.h"

#include <algorithm>

#include "agent/core/text.h"

namespace berth::runtime {

void TicketBook::drop_expired(int64_t now_ns) {
    std::erase_if(entries_, [now_ns](const Entry& entry) { return entry.expires_ns <= now_ns; });
}

core::Status TicketBook::add(const Ticket& random, StreamGrant grant, int64_t now_ns) {
    drop_expired(now_ns);
    if (entries_.size() >= limits::kTickets) {
        return core::make_error(core::Code::kResourceExhausted,
                                core::format("%zu stream tickets are outstanding", entries_.size()));
    }
    entries_.push_back(Entry{random, grant, now_ns + limits::kTicketLifetimeMs * 1'000'000});
    return core::ok();
}

core::Result<StreamGrant> TicketBook::take(std::span<const uint8_t, kTicketBytes> ticket, int64_t now_ns) {
    drop_expired(now_ns);
    size_t found = entries_.size();
    for (size_t i = 0; i < entries_.size(); ++i) {
        unsigned difference = 0;
        for (size_t k = 0; k < kTicketBytes; ++k) {
            difference |= static_cast<unsigned>(entries_[i].ticket[k] ^ ticket[k]);
        }
        if (difference == 0) found = i;
    }
    if (found == entries_.size()) {
        return core::make_error(core::Code::kPermissionDenied, "unknown, expired or used ticket");
    }
    StreamGrant grant = entries_[found].grant;
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(found));
    return grant;
}

void TicketBook::forget(uint64_t stream_key) {
    std::erase_if(entries_, [stream_key](const Entry& e) { return e.grant.stream_key == stream_key; });
}

}  // namespace berth::runtime
