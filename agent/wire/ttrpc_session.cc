#include "agent/wire/ttrpc_session.h"

#include <algorithm>

#include "agent/core/text.h"

namespace berth::wire {

namespace {

constexpr uint8_t kRequest = static_cast<uint8_t>(FrameType::kRequest);
constexpr uint8_t kData = static_cast<uint8_t>(FrameType::kData);

// 0 unary; 1 the client only reads; 2 the client may write too; 2|4 what ttrpc-rust sends for that.
bool are_request_flags_known(uint8_t flags) {
    return flags == 0 || flags == kFlagRemoteClosed || flags == kFlagRemoteOpen ||
           flags == (kFlagRemoteOpen | kFlagNoData);
}

}  // namespace

size_t TtrpcSession::bytes_wanted() const {
    if (received_ < kFrameHeaderBytes) return kFrameHeaderBytes - received_;
    return kFrameHeaderBytes + header_.length - received_;
}

size_t TtrpcSession::feed(std::span<const std::byte> bytes, SessionEvent& event) {
    event = SessionEvent{};
    if (is_dead_) return bytes.size();
    size_t taken = 0;
    if (received_ < kFrameHeaderBytes) {
        taken = std::min(bytes.size(), kFrameHeaderBytes - received_);
        std::copy_n(reinterpret_cast<const uint8_t*>(bytes.data()), taken, header_bytes_.begin() + received_);
        received_ += taken;
        if (received_ < kFrameHeaderBytes) return taken;
        on_header(event);
        if (is_dead_) return bytes.size();
    }
    size_t chunk = std::min(bytes.size() - taken, kFrameHeaderBytes + header_.length - received_);
    if (keeps_payload_) payload_.append(reinterpret_cast<const char*>(bytes.data()) + taken, chunk);
    received_ += chunk;
    taken += chunk;
    if (received_ == kFrameHeaderBytes + header_.length) {
        on_frame(event);
        received_ = 0;
        payload_ = std::string();  // give the memory back: the next frame may be years away
    }
    return taken;
}

void TtrpcSession::on_header(SessionEvent& event) {
    header_ = decode_frame_header(header_bytes_);
    if (header_.length > limits::kTtrpcMessageBytes) {
        is_dead_ = true;
        refuse(event, SessionEvent::Kind::kFatal,
               core::make_error(core::Code::kResourceExhausted,
                                core::format("ttrpc: frame of %u bytes exceeds %u", header_.length,
                                             limits::kTtrpcMessageBytes)));
        return;
    }
    keeps_payload_ = header_.type == kRequest && check_request().ok();
}

// What is wrong with a request's header, before its payload is looked at.
core::Status TtrpcSession::check_request() const {
    uint32_t id = header_.stream_id;
    if (id % 2 == 0) return core::invalid(core::format("ttrpc: stream id %u: clients use odd ids", id));
    if (last_id_ == UINT32_MAX) return core::invalid("ttrpc: stream ids are used up: open a new connection");
    if (id <= last_id_) {
        return core::invalid(core::format(
            "ttrpc: stream id %u was used already: ids only grow, the last was %u", id, last_id_));
    }
    if (!are_request_flags_known(header_.flags)) {
        return core::invalid(core::format("ttrpc: unknown request flags %u", header_.flags));
    }
    if (open_.size() >= limits::kOpenStreamsPerConnection) {
        return core::make_error(core::Code::kResourceExhausted,
                                core::format("ttrpc: %zu calls are open on this connection", open_.size()));
    }
    return core::ok();
}

void TtrpcSession::on_frame(SessionEvent& event) {
    if (header_.type == kRequest) {
        on_request(event);
    } else if (header_.type == kData) {
        on_data(event);
    }
    // Other types are for later versions.
}

void TtrpcSession::on_request(SessionEvent& event) {
    // Asked again rather than kept: a stream may have ended while the payload came in.
    core::Status status = check_request();
    if (!keeps_payload_ && status.ok()) {
        status = core::make_error(core::Code::kResourceExhausted,
                                  "ttrpc: too many calls were open on this connection");
    }
    if (!status.ok()) return refuse(event, SessionEvent::Kind::kRefused, std::move(status).error());
    core::Result<TtrpcRequest> request = decode_request(payload_);
    if (!request.ok()) return refuse(event, SessionEvent::Kind::kRefused, std::move(request).error());
    if (request->timeout_nano < 0) {
        return refuse(event, SessionEvent::Kind::kRefused,
                      core::invalid(core::format("ttrpc: timeout_nano %lld is negative",
                                                 static_cast<long long>(request->timeout_nano))));
    }
    last_id_ = header_.stream_id;
    open_.push_back({.id = header_.stream_id, .is_client_open = (header_.flags & kFlagRemoteOpen) != 0});
    event.kind = SessionEvent::Kind::kRequest;
    event.stream_id = header_.stream_id;
    event.is_stream = header_.flags != 0;
    event.request = std::move(request).value();
    event.request.timeout_nano = std::min(event.request.timeout_nano, limits::kTimeoutNanosMax);
}

// No method of ours takes a stream from the client: all that may follow a request with flag 2 is its end.
void TtrpcSession::on_data(SessionEvent& event) {
    uint32_t id = header_.stream_id;
    std::vector<Open>::iterator open = find(id);
    if (open == open_.end()) {
        return refuse(event, SessionEvent::Kind::kRefused,
                      core::invalid(core::format("ttrpc: data on stream %u, which is not open", id)));
    }
    bool is_end = (header_.flags & kFlagRemoteClosed) != 0 && header_.length == 0;
    if (open->is_client_open && is_end) {
        open->is_client_open = false;
        return;
    }
    refuse(event, SessionEvent::Kind::kBroken,
           core::invalid(core::format("ttrpc: data on stream %u, whose method takes none", id)));
}

void TtrpcSession::refuse(SessionEvent& event, SessionEvent::Kind kind, core::Error error) const {
    event.kind = kind;
    event.stream_id = header_.stream_id;
    event.error = std::move(error);
}

std::vector<TtrpcSession::Open>::iterator TtrpcSession::find(uint32_t stream_id) {
    std::vector<Open>::iterator open = std::lower_bound(
        open_.begin(), open_.end(), stream_id, [](const Open& left, uint32_t id) { return left.id < id; });
    return open != open_.end() && open->id == stream_id ? open : open_.end();
}

void TtrpcSession::finish(uint32_t stream_id) {
    std::vector<Open>::iterator open = find(stream_id);
    if (open != open_.end()) open_.erase(open);
}

}  // namespace berth::wire
