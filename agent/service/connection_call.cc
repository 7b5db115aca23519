#include "agent/service/connection_call.h"

#include "agent/core/limits.h"
#include "agent/service/connection.h"
#include "agent/wire/ttrpc_frame.h"

namespace berth::service {

TtrpcCall::TtrpcCall(ControlConnection& connection, uint32_t stream_id)
    : connection_(&connection), stream_id_(stream_id) {}

void TtrpcCall::answer(std::string frame) {
    std::shared_ptr<Call> keep = shared_from_this();
    ControlConnection& connection = *connection_;
    connection_ = nullptr;
    connection.finish_call(*this);
    connection.push(std::move(frame));
}

void TtrpcCall::reply(std::string message) {
    if (!alive()) return;
    std::string frame = wire::encode_response_frame(stream_id_, message);
    if (!connection_->has_room(frame.size())) {
        frame = wire::encode_error_frame(
            stream_id_, core::make_error(core::Code::kResourceExhausted,
                                         "ttrpc: earlier answers on this connection wait to be read"));
    }
    drop_end_handler();
    answer(std::move(frame));
}

void TtrpcCall::fail(const core::Error& error) {
    if (!alive()) return;
    drop_end_handler();
    answer(wire::encode_error_frame(stream_id_, error));
}

void TtrpcCall::break_off(const core::Error& error, core::Code why) {
    std::shared_ptr<Call> keep = shared_from_this();
    if (!alive()) return;
    answer(wire::encode_error_frame(stream_id_, error));
    ended_without_answer(why);
}

bool TtrpcCall::takes(size_t message_bytes, size_t frame_bytes) {
    if (is_overflowed_) {
        bool is_marker = !has_marker_ && message_bytes <= limits::kStreamMarkerBytes;
        has_marker_ = has_marker_ || is_marker;
        return is_marker;
    }
    // With nothing queued any message is taken: one above the bound could never be sent else.
    bool fits_queue = *queued_ == 0 || *queued_ + frame_bytes <= limits::kSubscriberQueueBytes;
    return fits_queue && connection_->has_room(frame_bytes);
}

bool TtrpcCall::send(std::string message) {
    if (!alive()) return false;
    core::Result<std::string> frame = wire::encode_data_frame(stream_id_, 0, message);
    if (!frame.ok() || !takes(message.size(), frame->size())) {
        is_overflowed_ = true;
        return false;
    }
    connection_->push(std::move(frame).value(), queued_);
    return alive();
}

void TtrpcCall::finish() {
    if (!alive()) return;
    drop_end_handler();
    answer(wire::encode_end_frame(stream_id_));
}

}  // namespace berth::service
