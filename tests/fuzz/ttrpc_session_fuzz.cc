// Any bytes, in any chunks: the session never crashes, keeps its bounds, and what it says does not depend on
// how the bytes were cut. The first byte chooses the size of the chunks.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "agent/core/check.h"
#include "agent/core/limits.h"
#include "agent/wire/ttrpc_session.h"

namespace {

using berth::wire::SessionEvent;

// Every event as text; a third of the streams end at once, so that places become free.
std::string run(std::span<const std::byte> input, size_t chunk) {
    berth::wire::TtrpcSession session;
    std::string trace;
    while (!input.empty()) {
        std::span<const std::byte> piece = input.first(std::min(chunk, input.size()));
        input = input.subspan(piece.size());
        while (!piece.empty()) {
            SessionEvent event;
            BERTH_CHECK(session.bytes_wanted() > 0);
            size_t taken = session.feed(piece, event);
            BERTH_CHECK(taken > 0 && taken <= piece.size());
            piece = piece.subspan(taken);
            BERTH_CHECK(session.open_streams() <= berth::limits::kOpenStreamsPerConnection);
            if (event.kind == SessionEvent::Kind::kNone) continue;
            BERTH_CHECK(event.request.timeout_nano >= 0);
            BERTH_CHECK(event.request.timeout_nano <= berth::limits::kTimeoutNanosMax);
            trace += std::to_string(static_cast<int>(event.kind)) + ":" + std::to_string(event.stream_id) +
                     event.request.service + "/" + event.request.method + event.request.payload +
                     event.request.containerd_namespace + event.error.message + ";";
            if (event.stream_id % 3 == 0) session.finish(event.stream_id);
        }
    }
    return trace;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data + 1), size - 1);
    BERTH_CHECK(run(input, SIZE_MAX) == run(input, data[0] + size_t{1}));
    // The same bytes as the two messages, without a frame.
    std::string text(reinterpret_cast<const char*>(data), size);
    berth::core::Result<berth::wire::TtrpcRequest> request = berth::wire::decode_request(text);
    if (request.ok()) {
        // What we write of it, we read as the same.
        std::string frame = berth::wire::encode_request_frame(1, 0, *request).value();
        berth::core::Result<berth::wire::TtrpcRequest> again =
            berth::wire::decode_request(std::string_view(frame).substr(berth::wire::kFrameHeaderBytes));
        BERTH_CHECK(again.ok() && again->payload == request->payload && again->method == request->method);
    }
    berth::core::Result<berth::wire::TtrpcResponse> response = berth::wire::decode_response(text);
    if (response.ok()) {
        berth::wire::encode_error_frame(1, berth::core::make_error(response->code, response->message));
    }
    return 0;
}
