// Frames of a stream channel (proto/handshake.md): 8-byte big-endian header, type, flags 0, zero u16, length
// of the payload. Both sides; no input or output.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "agent/core/limits.h"
#include "agent/core/result.h"

namespace berth::wire {

inline constexpr size_t kStreamHeaderBytes = 8;

enum class StreamFrameType : uint8_t {
    kData = 1,      // 1 to limits::kStreamPayloadBytes bytes
    kEof = 2,       // no payload: no more data follows
    kAck = 3,       // u64: all bytes below it are secured by the receiver
    kLost = 4,      // u64: so many bytes are gone; the offset advances by them
    kClosed = 5,    // u32: a status code, the last frame of the agent
    kAttached = 6,  // u64 offset of the first byte to come, u32 window
};

struct StreamHeader {
    StreamFrameType type = StreamFrameType::kData;
    uint32_t length = 0;
};
// INVALID_ARGUMENT for an unknown type, a set flag or zero byte, or a length that the type does not have.
core::Result<StreamHeader> decode_stream_header(std::span<const uint8_t, kStreamHeaderBytes> bytes);
std::array<uint8_t, kStreamHeaderBytes> encode_stream_header(const StreamHeader& header);

// A frame that is not DATA: header and payload, at most 20 bytes.
class SmallStreamFrame {
 public:
    static SmallStreamFrame eof();
    static SmallStreamFrame ack(uint64_t offset);
    static SmallStreamFrame lost(uint64_t count);
    static SmallStreamFrame closed(core::Code code);
    static SmallStreamFrame attached(uint64_t offset, uint32_t window);
    std::span<const std::byte> bytes() const { return {bytes_.data(), size_}; }

 private:
    SmallStreamFrame(StreamFrameType type, size_t payload_bytes);
    void put(size_t at, uint64_t value, size_t count);
    std::array<std::byte, kStreamHeaderBytes + 12> bytes_{};
    size_t size_;
};

// Who sends: it says which frames are allowed.
enum class StreamSender : uint8_t {
    kAgentOfOutput,   // stdout, stderr, pty output: ATTACHED or CLOSED first; DATA EOF LOST CLOSED
    kClientOfOutput,  // ACK
    kClientOfInput,   // stdin: DATA EOF
    kAgentOfInput,    // ATTACHED or CLOSED first; ACK CLOSED
};

// What the bytes meant. DATA comes in pieces, as it arrives; everything else whole.
struct StreamEvent {
    enum class Kind : uint8_t { kNone, kData, kEof, kAck, kLost, kClosed, kAttached };
    Kind kind = Kind::kNone;
    std::span<const std::byte> data;  // kData: borrowed from the fed bytes, at least one
    uint64_t value = 0;               // kAck, kAttached: offset; kLost: count
    uint32_t window = 0;              // kAttached
    uint32_t code = 0;                // kClosed: core::Code, or a number that a later agent uses
};

// Strict: an error ends the connection, and the decoder takes nothing more.
class StreamDecoder {
 public:
    explicit StreamDecoder(StreamSender sender) : sender_(sender) {}

    // Takes bytes up to the end of one frame, or of a piece of DATA, and returns how many.
    core::Result<size_t> feed(std::span<const std::byte> bytes, StreamEvent& event);

    // Bytes of the present header, payload or DATA that are still to come: a reader that splices DATA takes
    // so many past the decoder and says skip_data().
    size_t bytes_wanted() const;
    bool inside_data() const { return in_payload() && header_.type == StreamFrameType::kData; }
    void skip_data(size_t count);

 private:
    bool in_payload() const { return received_ >= kStreamHeaderBytes; }
    core::Status check_order(StreamFrameType type) const;
    core::Status on_header();
    core::Status on_payload(StreamEvent& event);
    void end_frame() { received_ = 0; }

    StreamSender sender_;
    std::array<uint8_t, kStreamHeaderBytes + 12> bytes_{};  // header and a small payload
    StreamHeader header_;
    size_t received_ = 0;
    uint64_t last_ack_ = 0;
    bool has_begun_ = false;
    bool has_eof_ = false;
    bool has_closed_ = false;
    std::optional<core::Error> failure_;
};

}  // namespace berth::wire
