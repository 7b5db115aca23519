// The server's half of one ttrpc connection: bytes in, events out. Pure: it holds at most one frame, and the
// ids of the open streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "agent/core/result.h"
#include "agent/wire/ttrpc_frame.h"

namespace berth::wire {

struct SessionEvent {
    enum class Kind : uint8_t {
        kNone,     // the bytes so far complete nothing
        kRequest,  // a new stream is open until finish(stream_id)
        kRefused,  // answer `error` on `stream_id`; no stream was opened
        kBroken,   // end the live call `stream_id`, answering `error`; finish() is still due
        kFatal,    // answer `error` on `stream_id`, then close: no more bytes are taken
    };
    Kind kind = Kind::kNone;
    uint32_t stream_id = 0;
    bool is_stream = false;  // kRequest: the client reads a stream of messages (request flags 1, 2)
    TtrpcRequest request;    // kRequest; timeout_nano is 0 (none) to limits::kTimeoutNanosMax
    core::Error error{};
};

class TtrpcSession {
 public:
    // Takes bytes up to the end of one frame and returns how many; `event` is what that frame meant.
    // The caller goes on with the rest. After kFatal it takes everything and says kNone.
    size_t feed(std::span<const std::byte> bytes, SessionEvent& event);

    // The response, or the last data frame, of a stream was handed to the socket. Unknown ids: nothing.
    void finish(uint32_t stream_id);

    size_t open_streams() const { return open_.size(); }
    // Bytes to the end of the present header or payload; a reader that never takes more knows which frame a
    // chunk belongs to.
    size_t bytes_wanted() const;
    bool at_frame_start() const { return received_ == 0; }

 private:
    struct Open {
        uint32_t id = 0;
        bool is_client_open = false;  // flag 2, and the client has not closed its direction yet
    };
    void on_header(SessionEvent& event);
    void on_frame(SessionEvent& event);
    void on_request(SessionEvent& event);
    void on_data(SessionEvent& event);
    void refuse(SessionEvent& event, SessionEvent::Kind kind, core::Error error) const;
    core::Status check_request() const;
    std::vector<Open>::iterator find(uint32_t stream_id);

    std::array<uint8_t, kFrameHeaderBytes> header_bytes_{};
    FrameHeader header_;
    size_t received_ = 0;  // bytes of the present frame, header included
    bool keeps_payload_ = false;
    bool is_dead_ = false;
    std::string payload_;
    uint32_t last_id_ = 0;
    std::vector<Open> open_;  // ascending, as ids only grow
};

}  // namespace berth::wire
