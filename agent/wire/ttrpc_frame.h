// ttrpc 1.2 as bytes: the 10-byte frame header and the two small messages inside. Both sides; no state, no
// input or output. Foreign bytes are decoded with bounds checked and nothing allocated that they did not
// bring along.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "agent/core/limits.h"
#include "agent/core/result.h"

namespace berth::wire {

inline constexpr size_t kFrameHeaderBytes = 10;

enum class FrameType : uint8_t { kRequest = 1, kResponse = 2, kData = 3 };

inline constexpr uint8_t kFlagRemoteClosed = 1;  // the sender sends no more on this stream
inline constexpr uint8_t kFlagRemoteOpen = 2;    // request: data frames of the client follow
inline constexpr uint8_t kFlagNoData = 4;        // no message in this frame (not: an empty one)

// Big-endian: length of what follows, stream id, type, flags. `type` may be one we do not know.
struct FrameHeader {
    uint32_t length = 0;
    uint32_t stream_id = 0;
    uint8_t type = 0;
    uint8_t flags = 0;
};
std::array<uint8_t, kFrameHeaderBytes> encode_frame_header(const FrameHeader& header);
FrameHeader decode_frame_header(std::span<const uint8_t, kFrameHeaderBytes> bytes);

// The metadata key that the agent reads; all others are ignored.
inline constexpr std::string_view kNamespaceMetadata = "containerd-namespace-ttrpc";

// ttrpc.Request: service = 1, method = 2, payload = 3, timeout_nano = 4, metadata = 5 {key = 1, value = 2}.
struct TtrpcRequest {
    std::string service;
    std::string method;
    std::string payload;
    int64_t timeout_nano = 0;
    std::string containerd_namespace;  // the first value of its key
};
// INVALID_ARGUMENT with what is wrong. Unknown fields are skipped.
core::Result<TtrpcRequest> decode_request(std::string_view bytes);
// A whole frame. RESOURCE_EXHAUSTED when it would exceed limits::kTtrpcMessageBytes.
core::Result<std::string> encode_request_frame(uint32_t stream_id, uint8_t flags,
                                               const TtrpcRequest& request);

// ttrpc.Response: status = 1 {code = 1, message = 2, details = 3}, payload = 2.
struct TtrpcResponse {
    core::Code code = core::Code::kOk;
    std::string message;  // of the status
    std::string payload;
};
core::Result<TtrpcResponse> decode_response(std::string_view bytes);

// Whole frames of a server. A response that is too large becomes RESOURCE_EXHAUSTED on the same stream, so
// that a call is always answered.
std::string encode_response_frame(uint32_t stream_id, std::string_view payload);
std::string encode_error_frame(uint32_t stream_id, const core::Error& error);
// RESOURCE_EXHAUSTED when the message is too large.
core::Result<std::string> encode_data_frame(uint32_t stream_id, uint8_t flags, std::string_view payload);
// How a server stream ends well: data, flags 1|4.
std::string encode_end_frame(uint32_t stream_id);

}  // namespace berth::wire
