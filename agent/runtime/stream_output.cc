// Output: process -> pipes -> client. Bytes leave the pipes when the client has acknowledged them.
#include <algorithm>

#include "agent/core/text.h"
#include "agent/runtime/stream.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

constexpr size_t kDropStepBytes = 65'536;  // what makes room at once with the drop policy
constexpr int kTakesPerTurn = 16;

}  // namespace

OutputStream::OutputStream(StreamContext& context, StreamId id, uint32_t slot, std::string prefix)
    : StreamBase(context, std::move(id), slot),
      pipes_(context.tools, slot_, context.store, std::move(prefix)) {}

void OutputStream::set_source(sys::UniqueFd source) {
    pipes_.set_source(std::move(source));
    begin();
    pump();
}

void OutputStream::begin() {
    if (!drops() || released_) return;
    core::Status status = pipes_.prepare();
    if (!status.ok()) {
        sys::log(sys::LogLevel::kError, "stream.prepare", "%s: %s", describe(id_).c_str(),
                 status.error().message.c_str());
        return;
    }
    pump();
}

void OutputStream::recover() {
    pipes_.recover();
    if (is_finished()) {
        ended_ = true;
        pipes_.release_pipes();
    }
}

uint64_t OutputStream::undelivered() const {
    if (is_finished()) return 0;
    return pipes_.end() - std::max(slot_.acked(), pipes_.base()) + pipes_.waiting_bytes();
}

core::Status OutputStream::check_offset(std::optional<uint64_t> resume_offset) const {
    if (!resume_offset) return core::ok();
    auto offset = static_cast<unsigned long long>(*resume_offset);
    if (*resume_offset < slot_.acked()) {
        return core::make_error(core::Code::kOutOfRange,
                                core::format("resume_offset %llu: the oldest byte kept is %llu", offset,
                                             static_cast<unsigned long long>(slot_.acked())));
    }
    if (*resume_offset > pipes_.end()) {
        return core::make_error(core::Code::kOutOfRange,
                                core::format("resume_offset %llu: only %llu bytes were read so far", offset,
                                             static_cast<unsigned long long>(pipes_.end())));
    }
    return core::ok();
}

// ---- attachment ----

void OutputStream::on_attached(std::optional<uint64_t> resume_offset) {
    uint64_t from = resume_offset.value_or(slot_.acked());
    // Who resumes at an offset has all below it. Without that, a client whose last ACK was lost with its
    // connection would wait for bytes while we wait for its ACK.
    acknowledge(from);
    sent_ = from;
    eof_sent_ = false;
    replay_ = PipePair{};
    attachment_->queue(wire::SmallStreamFrame::attached(from, pipes_.window()));
    pump();
}

void OutputStream::on_detached() {
    replay_ = PipePair{};
    eof_sent_ = false;
    if (drops() && !released_) pump();
}

void OutputStream::release_pipes() {
    replay_ = PipePair{};
    pipes_.release();
}

void OutputStream::on_frame(Attachment& attachment, const wire::StreamEvent& event) {
    // The decoder lets only ACK through.
    if (event.kind != wire::StreamEvent::Kind::kAck || &attachment != attachment_) return;
    if (event.value > sent_) {
        sys::log(sys::LogLevel::kWarn, "stream.ack", "%s: ACK of %llu, %llu were sent", describe(id_).c_str(),
                 static_cast<unsigned long long>(event.value), static_cast<unsigned long long>(sent_));
        std::exchange(attachment_, nullptr)->abort();
        on_detached();
        return;
    }
    acknowledge(event.value);
    pump();
}

void OutputStream::on_sendable(Attachment&) {
    pump();
}

void OutputStream::on_poll(loop::Op&, int32_t) {
    if (released_) return context_.keeper.on_idle();
    pump();
}

void OutputStream::acknowledge(uint64_t offset) {
    if (offset <= slot_.acked()) return;
    slot_.set_acked(offset);
    pipes_.drop_below(offset);
}

uint64_t OutputStream::window_left() const {
    uint64_t unacknowledged = sent_ - std::min(sent_, slot_.acked());
    uint64_t window = pipes_.window();
    return unacknowledged >= window ? 0 : window - unacknowledged;
}

// ---- moving bytes ----

void OutputStream::pump() {
    if (released_ || (attachment_ == nullptr && !drops()) || is_finished()) {
        if (is_finished() && can_send()) on_end();
        return;
    }
    for (int i = 0; i < kTakesPerTurn; ++i) {
        if (can_send() && (send_lost() || send_replay())) {
            if (!drops()) return;
            continue;
        }
        bool direct = can_send() && sent_ == pipes_.end() && window_left() > 0;
        if (!direct && !drops()) {
            if (ended_) on_end();
            return;
        }
        OutputPipes::State state = direct ? take_and_send() : take_and_keep();
        if (state == OutputPipes::State::kData) continue;
        if (state == OutputPipes::State::kEnd) {
            ended_ = true;
            return on_end();
        }
        if (state == OutputPipes::State::kWaiting) return wait_for_process();
        return;  // full: an ACK goes on
    }
    wait_for_process();  // which is at once when there is more: others get their turn
}

// With the drop policy: what the client will not get any more.
bool OutputStream::send_lost() {
    if (sent_ >= pipes_.base()) return false;
    uint64_t count = pipes_.base() - sent_;
    sent_ = pipes_.base();
    replay_ = PipePair{};
    slot_.set_acked(sent_);
    attachment_->queue(wire::SmallStreamFrame::lost(count));
    return true;
}

// What R has and this attachment has not had yet. True: something is being sent, or the window is full.
bool OutputStream::send_replay() {
    if (sent_ >= pipes_.end()) return false;
    if (window_left() == 0) return !drops();
    if (!replay_.valid()) {
        core::Result<PipePair> replay = pipes_.replay(sent_);
        if (!replay.ok()) {
            sys::log(sys::LogLevel::kError, "stream.replay", "%s: %s", describe(id_).c_str(),
                     replay.error().message.c_str());
            close_attachment(core::Code::kResourceExhausted);
            return true;
        }
        replay_ = std::move(replay).value();
    }
    std::span<std::byte> room = attachment_->data_room();
    size_t count =
        static_cast<size_t>(std::min<uint64_t>({room.size(), window_left(), pipes_.end() - sent_}));
    ssize_t got = ::read(replay_.read.get(), room.data(), count);
    if (got <= 0) {  // R has more than fitted into the copy, or more since: copy it again
        replay_ = PipePair{};
        attachment_->drop_data_room();
        return send_replay();
    }
    sent_ += static_cast<uint64_t>(got);
    if (sent_ == pipes_.end()) replay_ = PipePair{};
    attachment_->send_data(static_cast<size_t>(got));
    return true;
}

OutputPipes::State OutputStream::take_and_send() {
    std::span<std::byte> room = attachment_->data_room();
    OutputPipes::Taken taken = pipes_.take(room, static_cast<size_t>(window_left()));
    if (taken.state != OutputPipes::State::kData) {
        attachment_->drop_data_room();
        if (taken.state == OutputPipes::State::kFull && drops()) return take_and_keep();
        return taken.state;
    }
    sent_ += taken.bytes;
    attachment_->send_data(taken.bytes);
    return taken.state;
}

// The drop policy: the process is never held up, the oldest bytes make room.
OutputPipes::State OutputStream::take_and_keep() {
    OutputPipes::Taken taken = pipes_.take(context_.buffers.scratch(), limits::kStreamPayloadBytes);
    if (taken.state != OutputPipes::State::kFull) return taken.state;
    uint64_t count = std::min<uint64_t>(kDropStepBytes, pipes_.end() - pipes_.base());
    uint64_t until = pipes_.base() + count;
    uint64_t had = attachment_ != nullptr ? std::max(sent_, pipes_.base()) : pipes_.base();
    if (until > had && (slot_.flags() & kSlotUnasked) == 0) {
        lost_ += until - had;
        context_.keeper.on_dropped();
    }
    pipes_.drop_below(until);
    return OutputPipes::State::kData;
}

void OutputStream::wait_for_process() {
    if (poll_.pending() || !pipes_.has_source()) return;
    context_.loop.poll(poll_, pipes_.source_fd(), POLLIN);
}

// ---- the end ----

void OutputStream::on_end() {
    if (attachment_ == nullptr) return;
    if (can_send() && sent_ >= pipes_.end()) {
        eof_sent_ = true;
        attachment_->queue(wire::SmallStreamFrame::eof());
    }
    if (eof_sent_ && slot_.acked() >= pipes_.end()) finish();
}

void OutputStream::finish() {
    // Before the pipes go: a restart must know that they went on purpose.
    if (!is_finished()) {
        slot_.set_flag(kSlotFinished);
        pipes_.release_pipes();
    }
    close_attachment(core::Code::kOk);
}

void OutputStream::give_up() {
    if (attachment_ == nullptr) return;
    uint64_t left = pipes_.end() - std::min(sent_, pipes_.end()) + pipes_.waiting_bytes();
    if (left > 0 && !eof_sent_) attachment_->queue(wire::SmallStreamFrame::lost(left));
    close_attachment(core::Code::kDeadlineExceeded);
}

}  // namespace berth::runtime
