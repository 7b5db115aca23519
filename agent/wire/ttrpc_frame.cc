#include "agent/wire/ttrpc_frame.h"

#include "agent/core/text.h"
#include "agent/wire/status.h"

namespace berth::wire {

namespace {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a protobuf message. `bytes` borrows from the message.
struct Field {
    uint32_t number = 0;
    WireType type = WireType::kVarint;
    uint64_t varint = 0;
    std::string_view bytes;
};

// Reads a protobuf message field by field. After next() gave false, ok() says whether that was the end.
class FieldReader {
 public:
    explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

    bool next(Field& field) {
        if (rest_.empty() || !ok_) return false;
        ok_ = read(field);
        return ok_;
    }
    bool ok() const { return ok_; }

 private:
    bool read_varint(uint64_t& value) {
        value = 0;
        for (unsigned shift = 0; shift < 70; shift += 7) {
            if (rest_.empty()) return false;
            uint8_t byte = static_cast<uint8_t>(rest_.front());
            rest_.remove_prefix(1);
            if (shift == 63 && byte > 1) return false;
            value |= static_cast<uint64_t>(byte & 0x7F) << shift;
            if (byte < 0x80) return true;
        }
        return false;
    }

    bool take(size_t count, std::string_view& bytes) {
        if (rest_.size() < count) return false;
        bytes = rest_.substr(0, count);
        rest_.remove_prefix(count);
        return true;
    }

    bool read(Field& field) {
        uint64_t tag = 0;
        if (!read_varint(tag) || tag > UINT32_MAX || tag >> 3 == 0) return false;
        field.number = static_cast<uint32_t>(tag >> 3);
        field.type = static_cast<WireType>(tag & 7);
        uint64_t length = 0;
        switch (field.type) {
            case WireType::kVarint: return read_varint(field.varint);
            case WireType::kFixed64: return take(8, field.bytes);
            case WireType::kFixed32: return take(4, field.bytes);
            case WireType::kBytes:
                return read_varint(length) && length <= rest_.size() && take(length, field.bytes);
        }
        return false;  // groups, and types that do not exist
    }

    std::string_view rest_;
    bool ok_ = true;
};

core::Error undecodable(const char* message) {
    return core::invalid(core::format("ttrpc: undecodable %s", message));
}

void put_varint(std::string& out, uint64_t value) {
    while (value >= 0x80) {
        out += static_cast<char>(value | 0x80);
        value >>= 7;
    }
    out += static_cast<char>(value);
}

size_t varint_bytes(uint64_t value) {
    size_t count = 1;
    while (value >= 0x80) {
        value >>= 7;
        count++;
    }
    return count;
}

void put_tag(std::string& out, uint32_t number, WireType type) {
    put_varint(out, number << 3 | static_cast<uint32_t>(type));
}

// Empty values are left out, as proto3 does.
void put_bytes(std::string& out, uint32_t number, std::string_view bytes) {
    if (bytes.empty()) return;
    put_tag(out, number, WireType::kBytes);
    put_varint(out, bytes.size());
    out += bytes;
}

void put_header(std::string& out, const FrameHeader& header) {
    std::array<uint8_t, kFrameHeaderBytes> bytes = encode_frame_header(header);
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

core::Error too_large(const char* what, size_t bytes) {
    return core::make_error(
        core::Code::kResourceExhausted,
        core::format("ttrpc: %s of %zu bytes exceeds %u", what, bytes, limits::kTtrpcMessageBytes));
}

// Only the key that we read is looked at; the message must be well-formed all the same.
bool decode_metadata(std::string_view bytes, std::string& key, std::string& value) {
    FieldReader reader(bytes);
    Field field;
    while (reader.next(field)) {
        if (field.number != 1 && field.number != 2) continue;
        if (field.type != WireType::kBytes || !is_utf8(field.bytes)) return false;
        (field.number == 1 ? key : value) = field.bytes;
    }
    return reader.ok();
}

bool decode_status(std::string_view bytes, TtrpcResponse& response) {
    FieldReader reader(bytes);
    Field field;
    while (reader.next(field)) {
        if (field.number == 1) {
            if (field.type != WireType::kVarint) return false;
            response.code = code_from_wire(static_cast<int32_t>(field.varint));
        } else if (field.number == 2) {
            if (field.type != WireType::kBytes || !is_utf8(field.bytes)) return false;
            response.message = field.bytes;
        }
    }
    return reader.ok();
}

}  // namespace

std::array<uint8_t, kFrameHeaderBytes> encode_frame_header(const FrameHeader& header) {
    auto byte = [](uint32_t value, int shift) { return static_cast<uint8_t>(value >> shift); };
    return {byte(header.length, 24),
            byte(header.length, 16),
            byte(header.length, 8),
            byte(header.length, 0),
            byte(header.stream_id, 24),
            byte(header.stream_id, 16),
            byte(header.stream_id, 8),
            byte(header.stream_id, 0),
            header.type,
            header.flags};
}

FrameHeader decode_frame_header(std::span<const uint8_t, kFrameHeaderBytes> bytes) {
    auto number = [&](size_t at) {
        uint32_t value = 0;
        for (size_t i = at; i < at + 4; i++) value = value << 8 | bytes[i];
        return value;
    };
    return {.length = number(0), .stream_id = number(4), .type = bytes[8], .flags = bytes[9]};
}

core::Result<TtrpcRequest> decode_request(std::string_view bytes) {
    TtrpcRequest request;
    bool has_namespace = false;
    FieldReader reader(bytes);
    Field field;
    while (reader.next(field)) {
        if (field.number > 5) continue;
        WireType want = field.number == 4 ? WireType::kVarint : WireType::kBytes;
        if (field.type != want) return undecodable("request");
        switch (field.number) {
            case 1: request.service = field.bytes; break;
            case 2: request.method = field.bytes; break;
            case 3: request.payload = field.bytes; break;
            case 4: request.timeout_nano = static_cast<int64_t>(field.varint); break;
            case 5: {
                std::string key;
                std::string value;
                if (!decode_metadata(field.bytes, key, value)) return undecodable("request");
                if (key != kNamespaceMetadata || has_namespace) break;
                request.containerd_namespace = std::move(value);
                has_namespace = true;
                break;
            }
            default: break;
        }
    }
    if (!reader.ok() || !is_utf8(request.service) || !is_utf8(request.method)) return undecodable("request");
    return request;
}

core::Result<std::string> encode_request_frame(uint32_t stream_id, uint8_t flags,
                                               const TtrpcRequest& request) {
    std::string body;
    put_bytes(body, 1, request.service);
    put_bytes(body, 2, request.method);
    put_bytes(body, 3, request.payload);
    if (request.timeout_nano != 0) {
        put_tag(body, 4, WireType::kVarint);
        put_varint(body, static_cast<uint64_t>(request.timeout_nano));
    }
    if (!request.containerd_namespace.empty()) {
        std::string pair;
        put_bytes(pair, 1, kNamespaceMetadata);
        put_bytes(pair, 2, request.containerd_namespace);
        put_bytes(body, 5, pair);
    }
    if (body.size() > limits::kTtrpcMessageBytes) return too_large("request", body.size());
    std::string frame;
    frame.reserve(kFrameHeaderBytes + body.size());
    put_header(frame, {.length = static_cast<uint32_t>(body.size()),
                       .stream_id = stream_id,
                       .type = static_cast<uint8_t>(FrameType::kRequest),
                       .flags = flags});
    frame += body;
    return frame;
}

core::Result<TtrpcResponse> decode_response(std::string_view bytes) {
    TtrpcResponse response;
    FieldReader reader(bytes);
    Field field;
    while (reader.next(field)) {
        if (field.number > 2) continue;
        if (field.type != WireType::kBytes) return undecodable("response");
        if (field.number == 2) {
            response.payload = field.bytes;
        } else if (!decode_status(field.bytes, response)) {
            return undecodable("response");
        }
    }
    if (!reader.ok()) return undecodable("response");
    return response;
}

std::string encode_response_frame(uint32_t stream_id, std::string_view payload) {
    size_t length = payload.empty() ? 0 : 1 + varint_bytes(payload.size()) + payload.size();
    if (length > limits::kTtrpcMessageBytes) {
        return encode_error_frame(stream_id, too_large("response", length));
    }
    std::string frame;
    frame.reserve(kFrameHeaderBytes + length);
    put_header(frame, {.length = static_cast<uint32_t>(length),
                       .stream_id = stream_id,
                       .type = static_cast<uint8_t>(FrameType::kResponse)});
    put_bytes(frame, 2, payload);
    return frame;
}

std::string encode_error_frame(uint32_t stream_id, const core::Error& error) {
    std::string status;
    put_tag(status, 1, WireType::kVarint);
    // An error whose code says "ok" would be taken for an empty answer.
    core::Code code = error.code == core::Code::kOk ? core::Code::kInternal : error.code;
    put_varint(status, static_cast<uint64_t>(code_to_wire(code)));
    put_bytes(status, 2, status_message(error.message));
    std::string body;
    put_bytes(body, 1, status);
    std::string frame;
    put_header(frame, {.length = static_cast<uint32_t>(body.size()),
                       .stream_id = stream_id,
                       .type = static_cast<uint8_t>(FrameType::kResponse)});
    return frame + body;
}

core::Result<std::string> encode_data_frame(uint32_t stream_id, uint8_t flags, std::string_view payload) {
    if (payload.size() > limits::kTtrpcMessageBytes) return too_large("message", payload.size());
    std::string frame;
    frame.reserve(kFrameHeaderBytes + payload.size());
    put_header(frame, {.length = static_cast<uint32_t>(payload.size()),
                       .stream_id = stream_id,
                       .type = static_cast<uint8_t>(FrameType::kData),
                       .flags = flags});
    frame += payload;
    return frame;
}

std::string encode_end_frame(uint32_t stream_id) {
    std::string frame;
    put_header(frame, {.length = 0,
                       .stream_id = stream_id,
                       .type = static_cast<uint8_t>(FrameType::kData),
                       .flags = kFlagRemoteClosed | kFlagNoData});
    return frame;
}

}  // namespace berth::wire
