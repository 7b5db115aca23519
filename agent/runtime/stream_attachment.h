// One connection that carries one stream: frames out, frames in, an orderly end. Knows no pipes.
//
// It outlives its stream's interest in it: after close_with() it sends what it must, waits a moment for the
// client to close, and then reports itself to whoever keeps attachments (AttachmentKeeper).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/sys/fd.h"
#include "agent/wire/stream_frame.h"

namespace berth::runtime {

class Attachment;

// The stream, as its connection sees it.
class AttachmentClient {
 public:
    virtual ~AttachmentClient() = default;
    // A frame, or a piece of DATA, came. DATA is taken whole by the client or kept by it with hold_input().
    virtual void on_frame(Attachment& attachment, const wire::StreamEvent& event) = 0;
    // Nothing is being sent: more may be queued.
    virtual void on_sendable(Attachment& attachment) = 0;
    // How much DATA may be read past the decoder at once, by on_bulk(); 0: none.
    virtual size_t bulk_room() const { return 0; }
    virtual void on_bulk(Attachment&, std::span<const std::byte>) {}
    // The connection ended by itself (closed, reset, malformed). Last call.
    virtual void on_gone(Attachment& attachment) = 0;
};

// DATA buffers of all attachments: large while few are held, small when many clients do not read.
class SendBuffers {
 public:
    static constexpr size_t kLarge = limits::kStreamPayloadBytes;
    static constexpr size_t kSmall = 4096;
    static constexpr size_t kLargeOnes = 64;
    struct Buffer {
        std::unique_ptr<std::byte[]> bytes;  // header space, then `payload`
        size_t payload = 0;
    };
    Buffer take();
    void give(Buffer buffer);
    std::span<std::byte> scratch();  // kLarge bytes, for the length of a call

 private:
    size_t held_ = 0;
    std::vector<Buffer> spare_;  // a few large ones
    std::unique_ptr<std::byte[]> scratch_;
};

class AttachmentKeeper {
 public:
    virtual ~AttachmentKeeper() = default;
    // Nothing of it is pending any more: it may be destroyed, but not inside this call.
    virtual void on_attachment_over(Attachment& attachment) = 0;
    // An operation of something that waits for its destruction has ended.
    virtual void on_idle() = 0;
    // Output was dropped by policy: OutputStream::take_lost() has how much.
    virtual void on_dropped() = 0;
};

class Attachment {
 public:
    Attachment(loop::Loop& loop, AttachmentKeeper& keeper, SendBuffers& buffers, AttachmentClient& client,
               wire::StreamSender peer, sys::UniqueFd socket);
    ~Attachment();

    // Starts to read. Frames that the client queued before go out first.
    void start();

    // A small frame; goes out after what is being sent.
    void queue(const wire::SmallStreamFrame& frame);
    bool is_sending() const { return send_.pending() || !queued_.empty(); }
    // Room for one DATA payload. Only while !is_sending(); kept until send_data() or drop_data_room().
    std::span<std::byte> data_room();
    void send_data(size_t payload_bytes);
    void drop_data_room();

    // Input: nothing is read until resume_input(). Allowed inside on_frame; the rest of the bytes that were
    // read is kept.
    void hold_input() { is_held_ = true; }
    void resume_input();
    // True when the kernel has nothing of the client's for us now.
    bool is_drained() const;

    // The client of this object is not called again.
    void close_with(core::Code code);  // CLOSED, then the end
    void abort();                      // the end
    bool is_over() const { return over_; }

 private:
    enum class Phase : uint8_t { kOpen, kClosing, kAborting };
    void on_received(loop::Op& op, int32_t result);
    void on_sent(loop::Op& op, int32_t result);
    void on_linger();
    void receive();
    void take_input(std::span<const std::byte> bytes);
    bool receive_bulk();
    void send_next();
    void end();
    void check_over();

    static constexpr int64_t kLingerMs = 2000;
    static constexpr int kBulkPerTurn = 8;

    loop::Loop& loop_;
    AttachmentKeeper& keeper_;
    SendBuffers& buffers_;
    AttachmentClient* client_;
    sys::UniqueFd socket_;
    wire::StreamDecoder decoder_;
    Phase phase_ = Phase::kOpen;
    bool is_held_ = false;
    bool is_feeding_ = false;
    bool over_ = false;
    bool peer_ended_ = false;

    std::array<std::byte, 512> in_{};
    std::span<const std::byte> unread_;  // of in_, while held
    std::vector<std::byte> queued_;      // small frames
    std::vector<std::byte> small_;       // being sent
    SendBuffers::Buffer data_;           // being filled or sent
    std::span<const std::byte> sending_;

    loop::Op recv_{loop::Op::to<&Attachment::on_received>(), this};
    loop::Op send_{loop::Op::to<&Attachment::on_sent>(), this};
    loop::Timer linger_;
};

}  // namespace berth::runtime
