// Every event passes here: numbered, into the log that outlives the agent, and to those who listen now.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/core/result.h"
#include "agent/runtime/event_log.h"
#include "proto/berth/guest.pb.h"

namespace berth::runtime {

class Container;

class EventListener {
 public:
    virtual ~EventListener() = default;
    // `encoded` is `event` as the log keeps it; `container` is null when the event is nobody's. Called inside
    // the operation that made the event: it may remove listeners, nothing else of the hub.
    virtual void on_event(const v1::Event& event, const std::string& encoded, const Container* container) = 0;
};

class EventHub {
 public:
    // `memory` is the keeper's memfd, mapped; it outlives this. Opens what an agent before us wrote.
    // False: what was there was damaged and the log begins anew.
    bool open(std::span<std::byte> memory);

    // Gives `event` its number and time (when it has none), logs it, tells the listeners. The number.
    uint64_t emit(v1::Event event, const Container* container);

    uint64_t first_sequence() const { return log_.first_sequence(); }
    uint64_t last_sequence() const { return log_.last_sequence(); }
    // The encoded event, or nothing when it is not (any more) in the log.
    std::optional<std::string> read(uint64_t sequence) const { return log_.read(sequence); }

    void add(EventListener& listener) { listeners_.push_back(&listener); }
    void remove(EventListener& listener);

 private:
    void give_pages_back();

    EventLog log_;
    size_t bytes_since_given_back_ = 0;
    std::vector<EventListener*> listeners_;
};

int64_t unix_time_ns();

}  // namespace berth::runtime
