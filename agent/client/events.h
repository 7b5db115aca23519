// The agent's numbered events, resumed by itself across lost connections and restarts of the agent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/client/session.h"
#include "agent/core/result.h"
#include "proto/berth/guest.pb.h"

namespace berth::client {

struct EventPosition {
    std::string instance_id;        // of the guest that the number is from; empty: none
    std::optional<uint64_t> since;  // the last event seen; unset: from now on; 0: everything kept
};

class EventSubscription {
 public:
    // Uses a connection of its own. `memory_only` asks for WatchMemoryEvents of `containers` (empty: all);
    // otherwise `containers` is not used.
    struct Options {
        bool memory_only = false;
        std::vector<std::string> containers;
        EventPosition position;
    };
    EventSubscription(const Session& session, Options options);

    // Subscribes; next() does it by itself. When it returned ok, everything that happens afterwards will be
    // seen (the agent's `subscribed` has come; next() does not repeat it).
    core::Status start();

    // The next event, or `lost`, waiting until `deadline_ns` (DEADLINE_EXCEEDED; call again). A connection
    // that ended is dialed again by the rules of dial.h, and the stream goes on where it was: no event twice,
    // none missing without a `lost`. UNAVAILABLE: the guest is gone, or shutting down.
    core::Result<v1::EventMessage> next(int64_t deadline_ns);

    // Where to go on in another process.
    const EventPosition& position() const { return options_.position; }
    // For poll(), while subscribed; -1 otherwise. has_buffered(): next() would not wait.
    int fd();
    bool has_buffered();

 private:
    core::Result<v1::EventMessage> receive(int64_t deadline_ns);
    void note(const v1::EventMessage& message);
    core::Status begin();

    Session session_;
    Options options_;
    std::optional<uint32_t> stream_id_;
    std::optional<v1::EventMessage> held_;  // came before `subscribed` was waited for
    bool saw_lost_ = false;
};

}  // namespace berth::client
