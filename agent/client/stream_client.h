// The client's ends of stream channels: output that is acknowledged once it is safe, input that is kept until
// the agent has it. Both outlive their connection: attach() again (Session::open_stream) and go on.
//
// Nothing here waits: poll fd() for events(), then call next() or progress().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "agent/core/result.h"
#include "agent/sys/fd.h"
#include "agent/wire/stream_frame.h"

namespace berth::client {

struct OutputEvent {
    enum class Kind : uint8_t {
        kNone,    // nothing for now
        kData,    // `data`
        kLost,    // `count` bytes are gone; the output goes on behind them
        kEof,     // no more output; acknowledge() what came, and kClosed follows
        kClosed,  // `code`: kOk after the end, kAborted when another client took over; the connection is
                  // closed
    };
    Kind kind = Kind::kNone;
    std::span<const std::byte> data;  // until the next call of next()
    uint64_t count = 0;
    core::Code code = core::Code::kOk;
};

class OutputStream {
 public:
    OutputStream();

    // Starts over on a connection whose ticket was asked for with received() as resume_offset (or, for the
    // first one, with none).
    void attach(sys::UniqueFd fd);
    // -1 when not attached.
    int fd() const { return fd_.get(); }

    // The next event, without waiting. UNAVAILABLE (is_disconnect()): the connection ended; it is detached.
    // Other errors: the peer breaks the protocol; detached too.
    core::Result<OutputEvent> next();
    // True when next() has bytes at hand that poll() would not tell of.
    bool has_buffered() const { return fed_ < filled_; }

    // Everything that next() gave so far is safe: the agent may forget it. Sent by the next call of next()
    // that has nothing buffered, which is at most 128 KiB later.
    void acknowledge() { secured_ = received_; }
    // Sends what acknowledge() noted.
    core::Status flush_acknowledgement();

    // The offset behind the last byte given, lost ones counted.
    uint64_t received() const { return received_; }
    bool has_eof() const { return has_eof_; }
    bool closed() const { return closed_; }

 private:
    core::Result<OutputEvent> take(const wire::StreamEvent& event);
    core::Error detach(core::Error error);

    sys::UniqueFd fd_;
    std::optional<wire::StreamDecoder> decoder_;
    std::unique_ptr<std::byte[]> buffer_;
    size_t fed_ = 0;
    size_t filled_ = 0;
    uint64_t position_ = 0;  // of the connection: the offset of the next byte from the agent
    uint64_t received_ = 0;
    uint64_t secured_ = 0;
    uint64_t acknowledged_ = 0;
    uint32_t window_ = 0;
    bool has_eof_ = false;
    bool owes_final_ack_ = false;
    bool closed_ = false;
};

class InputStream {
 public:
    // Starts over on a connection whose ticket was asked for without resume_offset.
    void attach(sys::UniqueFd fd);
    int fd() const { return fd_.get(); }
    // What to poll fd() for.
    short events() const;

    // How many bytes queue() takes now: what is not acknowledged stays within the agent's window.
    size_t room() const;
    // Takes at most room() bytes.
    void queue(std::span<const std::byte> data);
    // The process reads end of file behind what was queued. Once.
    void queue_eof() { wants_eof_ = true; }
    bool has_eof() const { return wants_eof_; }

    // Sends and receives what goes without waiting. UNAVAILABLE (is_disconnect()): the connection ended; what
    // was not acknowledged is kept for the next one.
    core::Status progress();

    // The agent said CLOSED: kOk when it has everything including the end; kAborted when another client took
    // over; another code when the process no longer takes input. Unset before.
    std::optional<core::Code> closed() const { return closed_; }

 private:
    core::Status receive();
    core::Status on_event(const wire::StreamEvent& event);
    core::Status send();
    bool encode_next();
    core::Error detach(core::Error error);

    sys::UniqueFd fd_;
    std::optional<wire::StreamDecoder> decoder_;
    std::string kept_;      // bytes [base_, base_ + kept_.size())
    uint64_t base_ = 0;     // everything below is acknowledged
    uint64_t sent_ = 0;     // everything below was encoded for this connection
    std::string outgoing_;  // encoded, not written yet
    uint32_t window_ = 0;   // 0 until ATTACHED
    bool wants_eof_ = false;
    bool sent_eof_ = false;
    std::optional<core::Code> closed_;
};

}  // namespace berth::client
