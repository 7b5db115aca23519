// Any bytes of a stream channel, in any chunks, from any side: no crash, and the same outcome however the
// bytes were cut. The first byte chooses the side and the size of the chunks.
#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/core/check.h"
#include "agent/wire/stream_frame.h"

namespace {

using berth::wire::StreamDecoder;
using berth::wire::StreamEvent;
using berth::wire::StreamSender;

std::string run(StreamSender sender, std::span<const std::byte> input, size_t chunk) {
    StreamDecoder decoder(sender);
    std::string trace;
    while (!input.empty()) {
        StreamEvent event;
        std::span<const std::byte> piece = input.first(std::min(chunk, input.size()));
        BERTH_CHECK(decoder.bytes_wanted() > 0);
        berth::core::Result<size_t> taken = decoder.feed(piece, event);
        if (!taken.ok()) return trace + taken.error().message;
        BERTH_CHECK(*taken > 0 && *taken <= piece.size());
        input = input.subspan(*taken);
        if (event.kind == StreamEvent::Kind::kData) {
            BERTH_CHECK(!event.data.empty());
            trace.append(reinterpret_cast<const char*>(event.data.data()), event.data.size());
        } else if (event.kind != StreamEvent::Kind::kNone) {
            trace += "|" + std::to_string(static_cast<int>(event.kind)) + "," + std::to_string(event.value) +
                     "," + std::to_string(event.window) + "," + std::to_string(event.code) + "|";
        }
    }
    return trace;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    StreamSender sender = static_cast<StreamSender>(data[0] % 4);
    std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data + 1), size - 1);
    BERTH_CHECK(run(sender, input, SIZE_MAX) == run(sender, input, data[0] / 4 + size_t{1}));
    return 0;
}
