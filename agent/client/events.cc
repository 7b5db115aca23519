#include "agent/client/events.h"

namespace berth::client {

namespace {

// How long start() waits for `subscribed`.
constexpr int64_t kSubscribeMs = 10'000;

}  // namespace

EventSubscription::EventSubscription(const Session& session, Options options)
    : session_(session.clone()), options_(std::move(options)) {}

core::Status EventSubscription::begin() {
    BERTH_TRY(session_.connect());
    std::string request;
    std::string_view method = "Subscribe";
    const EventPosition& from = options_.position;
    if (options_.memory_only) {
        method = "WatchMemoryEvents";
        v1::WatchMemoryEventsRequest message;
        for (const std::string& id : options_.containers) message.add_containers(id);
        message.set_instance_id(from.instance_id);
        if (from.since) message.set_since(*from.since);
        message.SerializeToString(&request);
    } else {
        v1::SubscribeRequest message;
        message.set_instance_id(from.instance_id);
        if (from.since) message.set_since(*from.since);
        message.SerializeToString(&request);
    }
    core::Result<uint32_t> id =
        session_.rpc()->begin_stream(kGuestService, method, std::move(request), CallOptions());
    if (!id.ok()) {
        session_.disconnect();
        return std::move(id).error();
    }
    stream_id_ = *id;
    saw_lost_ = false;
    return core::ok();
}

core::Status EventSubscription::start() {
    if (stream_id_) return core::ok();
    BERTH_TRY(begin());
    core::Result<v1::EventMessage> first = receive(deadline_after_ms(kSubscribeMs));
    if (!first.ok()) return std::move(first).error();
    if (first->message_case() != v1::EventMessage::kSubscribed) held_ = std::move(*first);
    return core::ok();
}

// One message of the present stream, noted.
core::Result<v1::EventMessage> EventSubscription::receive(int64_t deadline_ns) {
    core::Result<std::optional<std::string>> bytes = session_.rpc()->next_message(*stream_id_, deadline_ns);
    if (!bytes.ok()) {
        if (bytes.error().code == core::Code::kDeadlineExceeded) return std::move(bytes).error();
        stream_id_.reset();
        if (is_disconnect(bytes.error())) session_.disconnect();
        return std::move(bytes).error();
    }
    if (!bytes->has_value()) {
        stream_id_.reset();
        return core::make_error(core::Code::kUnavailable, "the event stream ended");
    }
    v1::EventMessage message;
    if (!message.ParseFromString(**bytes)) {
        return core::make_error(core::Code::kInternal, "undecodable event");
    }
    note(message);
    return message;
}

void EventSubscription::note(const v1::EventMessage& message) {
    EventPosition& position = options_.position;
    switch (message.message_case()) {
        case v1::EventMessage::kSubscribed:
            // A position of another guest means nothing here; `lost` follows and says where to go on.
            if (!position.since) position.since = message.subscribed().last_sequence();
            position.instance_id = message.subscribed().instance_id();
            break;
        case v1::EventMessage::kEvent: position.since = message.event().sequence(); break;
        case v1::EventMessage::kLost: {
            uint64_t first = message.lost().first_available_sequence();
            position.since = first == 0 ? 0 : first - 1;
            position.instance_id = message.lost().instance_id();
            saw_lost_ = true;
            break;
        }
        case v1::EventMessage::MESSAGE_NOT_SET: break;
    }
}

core::Result<v1::EventMessage> EventSubscription::next(int64_t deadline_ns) {
    for (;;) {
        if (held_) {
            v1::EventMessage message = std::move(*held_);
            held_.reset();
            return message;
        }
        if (!stream_id_) BERTH_TRY(begin());
        core::Result<v1::EventMessage> message = receive(deadline_ns);
        if (message.ok()) {
            // Unknown kinds are those of a newer agent.
            if (message->message_case() == v1::EventMessage::kSubscribed ||
                message->message_case() == v1::EventMessage::MESSAGE_NOT_SET) {
                continue;
            }
            return message;
        }
        if (stream_id_) return message;  // the deadline, or a message we cannot read
        bool too_slow = saw_lost_ && !is_disconnect(message.error());  // ended on purpose: begin again
        if (!too_slow && !is_disconnect(message.error())) return message;
    }
}

int EventSubscription::fd() {
    return stream_id_ && session_.rpc() != nullptr ? session_.rpc()->fd().get() : -1;
}

bool EventSubscription::has_buffered() {
    return held_.has_value() ||
           (stream_id_ && session_.rpc() != nullptr && session_.rpc()->has_message(*stream_id_));
}

}  // namespace berth::client
