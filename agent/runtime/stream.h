// One stdio stream of one process: pipes, their accounting, and the connection that is attached to it now.
#pragma once

#include <sys/poll.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/runtime/stdio_pipes.h"
#include "agent/runtime/stream_attachment.h"

namespace berth::runtime {

enum class StreamKind : uint8_t { kStdin = 1, kStdout = 2, kStderr = 3 };

struct StreamId {
    std::string container;
    std::string exec;  // empty: the init
    StreamKind kind = StreamKind::kStdout;
    auto operator<=>(const StreamId&) const = default;
};
// `stdout of "web"`, `stdin of exec "sh" in "web"`: for messages.
std::string describe(const StreamId& id);

// What all streams share.
struct StreamContext {
    loop::Loop& loop;
    FdStore& store;
    Ledger& ledger;
    const PipeTools& tools;
    SendBuffers& buffers;
    AttachmentKeeper& keeper;
};

class StreamBase : public AttachmentClient {
 public:
    StreamBase(StreamContext& context, StreamId id, uint32_t slot);
    ~StreamBase() override;

    const StreamId& id() const { return id_; }
    uint32_t slot_index() const { return slot_index_; }
    LedgerSlot& slot() { return slot_; }
    bool is_attached() const { return attachment_ != nullptr; }

    // FAILED_PRECONDITION, OUT_OF_RANGE, INVALID_ARGUMENT: why `resume_offset` will not do.
    virtual core::Status check_offset(std::optional<uint64_t> resume_offset) const = 0;
    // Takes the connection; an older one ends with CLOSED ABORTED. The caller keeps the attachment.
    std::unique_ptr<Attachment> attach(sys::UniqueFd socket, std::optional<uint64_t> resume_offset);
    virtual bool adopt(std::string_view part, sys::UniqueFd fd) = 0;
    virtual void recover() = 0;
    // Ends the connection with `code`.
    void detach(core::Code code) { close_attachment(code); }
    // Stops all operations and lets go of the connection; the descriptors stay stored. Nothing else follows.
    void quiesce();
    // Ends the connection with `code`, drops the descriptors, frees the slot. Called once, before the end.
    void release(core::Code code);
    // Operations may be pending after release(): it may be destroyed when this says so.
    virtual bool is_idle() const = 0;

 protected:
    virtual wire::StreamSender peer() const = 0;
    virtual core::Status prepare() = 0;
    virtual void on_attached(std::optional<uint64_t> resume_offset) = 0;
    virtual void release_pipes() = 0;
    virtual void cancel_operations() = 0;
    void on_gone(Attachment& attachment) override;
    virtual void on_detached() {}
    void close_attachment(core::Code code);

    StreamContext& context_;
    StreamId id_;
    uint32_t slot_index_;
    LedgerSlot& slot_;
    Attachment* attachment_ = nullptr;
    bool released_ = false;
};

class OutputStream final : public StreamBase {
 public:
    OutputStream(StreamContext& context, StreamId id, uint32_t slot, std::string prefix);

    void set_source(sys::UniqueFd source);
    OutputPipes& pipes() { return pipes_; }
    // With the drop policy: begins to take what the process writes.
    void begin();
    // Bytes that the client has not acknowledged, as far as they were written; 0 when the end was
    // acknowledged.
    uint64_t undelivered() const;
    bool is_finished() const { return (slot_.flags() & kSlotFinished) != 0; }
    // Moves the stream's descriptors to another prefix of the store.
    void rename(std::string prefix) { pipes_.rename(std::move(prefix)); }
    // Tells the client that what is left is lost, and ends the connection. release() comes next.
    void give_up();
    // Bytes dropped by policy since it was asked last; none where nobody asked for the output.
    uint64_t take_lost() { return std::exchange(lost_, 0); }

    core::Status check_offset(std::optional<uint64_t> resume_offset) const override;
    bool adopt(std::string_view part, sys::UniqueFd fd) override { return pipes_.adopt(part, std::move(fd)); }
    void recover() override;
    bool is_idle() const override { return !poll_.pending(); }

 private:
    wire::StreamSender peer() const override { return wire::StreamSender::kClientOfOutput; }
    core::Status prepare() override { return is_finished() ? core::ok() : pipes_.prepare(); }
    void on_attached(std::optional<uint64_t> resume_offset) override;
    void release_pipes() override;
    void cancel_operations() override { context_.loop.cancel(poll_); }
    void on_frame(Attachment& attachment, const wire::StreamEvent& event) override;
    void on_sendable(Attachment& attachment) override;
    void on_detached() override;
    void on_poll(loop::Op& op, int32_t result);

    bool drops() const { return (slot_.flags() & kSlotDropPolicy) != 0; }
    bool can_send() const { return attachment_ != nullptr && !attachment_->is_sending() && !eof_sent_; }
    uint64_t window_left() const;
    void acknowledge(uint64_t offset);
    void pump();
    bool send_lost();
    bool send_replay();
    OutputPipes::State take_and_send();
    OutputPipes::State take_and_keep();
    void wait_for_process();
    void on_end();
    void finish();

    OutputPipes pipes_;
    loop::Op poll_{loop::Op::to<&OutputStream::on_poll>(), this};
    uint64_t sent_ = 0;  // offset behind the last byte sent on this attachment
    PipePair replay_;    // bytes sent_.. of R, of a reattach
    uint64_t lost_ = 0;
    bool ended_ = false;     // the writers are gone and R has everything
    bool eof_sent_ = false;  // on this attachment
};

class InputStream final : public StreamBase {
 public:
    InputStream(StreamContext& context, StreamId id, uint32_t slot, std::string prefix);

    void set_sink(sys::UniqueFd sink);
    InputPipes& pipes() { return pipes_; }
    // CloseIO: what the client sent until now is still delivered, then the process reads the end of file.
    void close_soon();

    core::Status check_offset(std::optional<uint64_t> resume_offset) const override;
    bool adopt(std::string_view part, sys::UniqueFd fd) override { return pipes_.adopt(part, std::move(fd)); }
    void recover() override;
    bool is_idle() const override { return !poll_.pending(); }

 private:
    wire::StreamSender peer() const override { return wire::StreamSender::kClientOfInput; }
    core::Status prepare() override { return pipes_.prepare(); }
    void on_attached(std::optional<uint64_t> resume_offset) override;
    void release_pipes() override;
    void cancel_operations() override { context_.loop.cancel(poll_); }
    void on_frame(Attachment& attachment, const wire::StreamEvent& event) override;
    void on_sendable(Attachment& attachment) override;
    size_t bulk_room() const override;
    void on_bulk(Attachment& attachment, std::span<const std::byte> bytes) override;
    void on_detached() override;
    void on_poll(loop::Op& op, int32_t result);
    void on_close_task();

    void put(std::span<const std::byte> bytes);
    void move();
    void send_ack();
    void end();

    InputPipes pipes_;
    loop::Op poll_{loop::Op::to<&InputStream::on_poll>(), this};
    loop::Task close_task_;
    uint64_t acked_ = 0;  // on this attachment
    std::vector<std::byte>
        left_over_;  // of a DATA frame that the pipe had no room for (at most a read's size)
    bool close_soon_ = false;
};

}  // namespace berth::runtime
