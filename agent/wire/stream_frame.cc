#include "agent/wire/stream_frame.h"

#include <algorithm>

#include "agent/core/check.h"
#include "agent/core/text.h"

namespace berth::wire {

namespace {

const char* type_name(StreamFrameType type) {
    switch (type) {
        case StreamFrameType::kData: return "DATA";
        case StreamFrameType::kEof: return "EOF";
        case StreamFrameType::kAck: return "ACK";
        case StreamFrameType::kLost: return "LOST";
        case StreamFrameType::kClosed: return "CLOSED";
        case StreamFrameType::kAttached: return "ATTACHED";
    }
    return "?";
}

bool is_length_right(StreamFrameType type, uint32_t length) {
    switch (type) {
        case StreamFrameType::kData: return length >= 1 && length <= limits::kStreamPayloadBytes;
        case StreamFrameType::kEof: return length == 0;
        case StreamFrameType::kAck: return length == 8;
        case StreamFrameType::kLost: return length == 8;
        case StreamFrameType::kClosed: return length == 4;
        case StreamFrameType::kAttached: return length == 12;
    }
    return false;
}

bool may_send(StreamSender sender, StreamFrameType type) {
    using enum StreamFrameType;
    switch (sender) {
        case StreamSender::kAgentOfOutput: return type != kAck;
        case StreamSender::kClientOfOutput: return type == kAck;
        case StreamSender::kClientOfInput: return type == kData || type == kEof;
        case StreamSender::kAgentOfInput: return type == kAttached || type == kAck || type == kClosed;
    }
    return false;
}

bool is_agent(StreamSender sender) {
    return sender == StreamSender::kAgentOfOutput || sender == StreamSender::kAgentOfInput;
}

uint64_t big_endian(std::span<const uint8_t> bytes) {
    uint64_t value = 0;
    for (uint8_t byte : bytes) value = value << 8 | byte;
    return value;
}

core::Error refusal(StreamFrameType type, const char* what) {
    return core::invalid(core::format("stream: %s %s", type_name(type), what));
}

}  // namespace

core::Result<StreamHeader> decode_stream_header(std::span<const uint8_t, kStreamHeaderBytes> bytes) {
    if (bytes[0] < static_cast<uint8_t>(StreamFrameType::kData) ||
        bytes[0] > static_cast<uint8_t>(StreamFrameType::kAttached)) {
        return core::invalid(core::format("stream: unknown frame type %u", bytes[0]));
    }
    if (bytes[1] != 0 || bytes[2] != 0 || bytes[3] != 0) {
        return core::invalid("stream: a flag or reserved byte is set");
    }
    StreamHeader header{.type = static_cast<StreamFrameType>(bytes[0]),
                        .length = static_cast<uint32_t>(big_endian(bytes.subspan<4, 4>()))};
    if (!is_length_right(header.type, header.length)) {
        return core::invalid(core::format("stream: %s with %u bytes", type_name(header.type), header.length));
    }
    return header;
}

std::array<uint8_t, kStreamHeaderBytes> encode_stream_header(const StreamHeader& header) {
    uint32_t length = header.length;
    BERTH_CHECK(is_length_right(header.type, length));
    return {static_cast<uint8_t>(header.type),
            0,
            0,
            0,
            static_cast<uint8_t>(length >> 24),
            static_cast<uint8_t>(length >> 16),
            static_cast<uint8_t>(length >> 8),
            static_cast<uint8_t>(length)};
}

SmallStreamFrame::SmallStreamFrame(StreamFrameType type, size_t payload_bytes)
    : size_(kStreamHeaderBytes + payload_bytes) {
    std::array<uint8_t, kStreamHeaderBytes> header =
        encode_stream_header({.type = type, .length = static_cast<uint32_t>(payload_bytes)});
    std::transform(header.begin(), header.end(), bytes_.begin(),
                   [](uint8_t byte) { return std::byte{byte}; });
}

void SmallStreamFrame::put(size_t at, uint64_t value, size_t count) {
    for (size_t i = count; i-- > 0;) {
        bytes_[kStreamHeaderBytes + at + i] = static_cast<std::byte>(value);
        value >>= 8;
    }
}

SmallStreamFrame SmallStreamFrame::eof() {
    return SmallStreamFrame(StreamFrameType::kEof, 0);
}

SmallStreamFrame SmallStreamFrame::ack(uint64_t offset) {
    SmallStreamFrame frame(StreamFrameType::kAck, 8);
    frame.put(0, offset, 8);
    return frame;
}

SmallStreamFrame SmallStreamFrame::lost(uint64_t count) {
    BERTH_CHECK(count > 0);
    SmallStreamFrame frame(StreamFrameType::kLost, 8);
    frame.put(0, count, 8);
    return frame;
}

SmallStreamFrame SmallStreamFrame::closed(core::Code code) {
    SmallStreamFrame frame(StreamFrameType::kClosed, 4);
    frame.put(0, static_cast<uint64_t>(code), 4);
    return frame;
}

SmallStreamFrame SmallStreamFrame::attached(uint64_t offset, uint32_t window) {
    BERTH_CHECK(window > 0);
    SmallStreamFrame frame(StreamFrameType::kAttached, 12);
    frame.put(0, offset, 8);
    frame.put(8, window, 4);
    return frame;
}

size_t StreamDecoder::bytes_wanted() const {
    if (!in_payload()) return kStreamHeaderBytes - received_;
    return kStreamHeaderBytes + header_.length - received_;
}

core::Status StreamDecoder::check_order(StreamFrameType type) const {
    if (!may_send(sender_, type)) return refusal(type, "is not for this side to send");
    if (has_closed_) return refusal(type, "after CLOSED");
    bool is_opening = type == StreamFrameType::kAttached;
    if (is_agent(sender_) && !has_begun_ && !is_opening && type != StreamFrameType::kClosed) {
        return refusal(type, "before ATTACHED");
    }
    if (is_opening && has_begun_) return refusal(type, "twice");
    bool is_content =
        type == StreamFrameType::kData || type == StreamFrameType::kLost || type == StreamFrameType::kEof;
    if (has_eof_ && is_content) return refusal(type, "after EOF");
    return core::ok();
}

core::Status StreamDecoder::on_header() {
    BERTH_ASSIGN(header_, decode_stream_header(std::span<const uint8_t>(bytes_).first<kStreamHeaderBytes>()));
    BERTH_TRY(check_order(header_.type));
    return core::ok();
}

core::Status StreamDecoder::on_payload(StreamEvent& event) {
    std::span<const uint8_t> payload(bytes_.data() + kStreamHeaderBytes, header_.length);
    switch (header_.type) {
        case StreamFrameType::kData: return core::ok();  // handed out as it came
        case StreamFrameType::kEof:
            has_eof_ = true;
            event.kind = StreamEvent::Kind::kEof;
            return core::ok();
        case StreamFrameType::kAck:
            event.value = big_endian(payload);
            if (event.value < last_ack_) return refusal(header_.type, "goes backwards");
            last_ack_ = event.value;
            event.kind = StreamEvent::Kind::kAck;
            return core::ok();
        case StreamFrameType::kLost:
            event.value = big_endian(payload);
            if (event.value == 0) return refusal(header_.type, "of 0 bytes");
            event.kind = StreamEvent::Kind::kLost;
            return core::ok();
        case StreamFrameType::kClosed:
            has_closed_ = true;
            event.code = static_cast<uint32_t>(big_endian(payload));
            event.kind = StreamEvent::Kind::kClosed;
            return core::ok();
        case StreamFrameType::kAttached:
            event.value = big_endian(payload.first(8));
            event.window = static_cast<uint32_t>(big_endian(payload.subspan(8)));
            if (event.window == 0) return refusal(header_.type, "with a window of 0");
            has_begun_ = true;
            event.kind = StreamEvent::Kind::kAttached;
            return core::ok();
    }
    return core::ok();
}

core::Result<size_t> StreamDecoder::feed(std::span<const std::byte> bytes, StreamEvent& event) {
    event = StreamEvent{};
    if (failure_) return *failure_;
    auto fail = [this](core::Status status) -> core::Error {
        failure_ = std::move(status).error();
        return *failure_;
    };
    size_t taken = 0;
    if (!in_payload()) {
        taken = std::min(bytes.size(), bytes_wanted());
        std::copy_n(reinterpret_cast<const uint8_t*>(bytes.data()), taken, bytes_.begin() + received_);
        received_ += taken;
        if (!in_payload()) return taken;
        core::Status status = on_header();
        if (!status.ok()) return fail(std::move(status));
    }
    size_t chunk = std::min(bytes.size() - taken, bytes_wanted());
    if (header_.type == StreamFrameType::kData) {
        if (chunk == 0) return taken;
        event.kind = StreamEvent::Kind::kData;
        event.data = bytes.subspan(taken, chunk);
        skip_data(chunk);
        return taken + chunk;
    }
    std::copy_n(reinterpret_cast<const uint8_t*>(bytes.data()) + taken, chunk, bytes_.begin() + received_);
    received_ += chunk;
    if (bytes_wanted() > 0) return taken + chunk;
    core::Status status = on_payload(event);
    if (!status.ok()) {
        event = StreamEvent{};
        return fail(std::move(status));
    }
    end_frame();
    return taken + chunk;
}

void StreamDecoder::skip_data(size_t count) {
    BERTH_CHECK(inside_data() && count <= bytes_wanted());
    received_ += count;
    if (bytes_wanted() == 0) end_frame();
}

}  // namespace berth::wire
