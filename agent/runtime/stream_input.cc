// Input: client -> stored pipe -> process. Acknowledged as soon as it is in the stored pipe.
#include <algorithm>

#include "agent/runtime/stream.h"

namespace berth::runtime {

InputStream::InputStream(StreamContext& context, StreamId id, uint32_t slot, std::string prefix)
    : StreamBase(context, std::move(id), slot),
      pipes_(context.tools, slot_, context.store, std::move(prefix)),
      close_task_(context.loop, loop::Task::to<&InputStream::on_close_task, InputStream>(), this) {}

void InputStream::set_sink(sys::UniqueFd sink) {
    pipes_.set_sink(std::move(sink));
    move();
}

core::Status InputStream::check_offset(std::optional<uint64_t> resume_offset) const {
    if (!resume_offset) return core::ok();
    return core::invalid("resume_offset: must be unset for stdin, ATTACHED says where to go on");
}

void InputStream::recover() {
    pipes_.recover();
    move();
}

void InputStream::on_attached(std::optional<uint64_t>) {
    acked_ = pipes_.total();
    attachment_->queue(
        wire::SmallStreamFrame::attached(acked_, static_cast<uint32_t>(limits::kStreamWindowBytes)));
    if (pipes_.ended()) close_attachment(core::Code::kOk);
}

void InputStream::on_detached() {
    // Not acknowledged: the client sends it again.
    left_over_.clear();
    left_over_.shrink_to_fit();
    if (close_soon_ && !released_) end();
}

void InputStream::release_pipes() {
    pipes_.release();
}

// ---- from the client ----

void InputStream::on_frame(Attachment& attachment, const wire::StreamEvent& event) {
    if (&attachment != attachment_) return;
    // The decoder lets only DATA and EOF through.
    if (event.kind == wire::StreamEvent::Kind::kEof) return end();
    put(event.data);
}

size_t InputStream::bulk_room() const {
    return pipes_.ended() || !left_over_.empty() ? 0 : pipes_.room();
}

void InputStream::on_bulk(Attachment& attachment, std::span<const std::byte> bytes) {
    if (&attachment == attachment_) put(bytes);
}

void InputStream::put(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        size_t taken = pipes_.put(bytes);
        bytes = bytes.subspan(taken);
        move();
        if (taken == 0) break;
    }
    if (!bytes.empty() && attachment_ != nullptr) {
        left_over_.insert(left_over_.end(), bytes.begin(), bytes.end());
        attachment_->hold_input();
    }
    send_ack();
    if (close_soon_) close_task_.post();
}

void InputStream::on_sendable(Attachment&) {
    send_ack();
}

// One ACK for all that came while the last one was on its way.
void InputStream::send_ack() {
    if (attachment_ == nullptr || attachment_->is_sending() || acked_ == pipes_.total()) return;
    acked_ = pipes_.total();
    attachment_->queue(wire::SmallStreamFrame::ack(acked_));
}

void InputStream::end() {
    close_soon_ = false;
    pipes_.end();
    move();
    if (attachment_ == nullptr) return;
    if (acked_ != pipes_.total()) attachment_->queue(wire::SmallStreamFrame::ack(pipes_.total()));
    close_attachment(core::Code::kOk);
}

void InputStream::close_soon() {
    if (pipes_.ended() || released_) return;
    if (attachment_ == nullptr) return end();
    // What was received before this call is delivered in the turn that runs the task.
    close_soon_ = true;
    close_task_.post();
}

void InputStream::on_close_task() {
    if (!close_soon_ || released_ || pipes_.ended()) return;
    if (attachment_ != nullptr && (!left_over_.empty() || !attachment_->is_drained())) return;
    end();
}

// ---- to the process ----

void InputStream::move() {
    if (released_ || pipes_.move() != InputPipes::State::kWaiting || poll_.pending()) return;
    context_.loop.poll(poll_, pipes_.sink_fd(), POLLOUT);
}

void InputStream::on_poll(loop::Op&, int32_t) {
    if (released_) return context_.keeper.on_idle();
    move();
    if (left_over_.empty()) return;
    std::vector<std::byte> bytes = std::exchange(left_over_, {});
    put(bytes);
    if (left_over_.empty() && attachment_ != nullptr) attachment_->resume_input();
}

}  // namespace berth::runtime
