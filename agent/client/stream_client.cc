#include "agent/client/stream_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "agent/client/io.h"
#include "agent/core/limits.h"
#include "agent/wire/status.h"

namespace berth::client {

namespace {

constexpr size_t kBufferBytes = 128 * 1024;
constexpr int64_t kAcknowledgeMs = 10'000;

core::Error ended(int err) {
    core::Error error =
        core::make_error(core::Code::kUnavailable, "the agent closed the stream's connection");
    error.err = err;
    return error;
}

core::Error broken(const char* why) {
    return core::make_error(core::Code::kInternal, std::string("stream: ") + why);
}

}  // namespace

OutputStream::OutputStream() : buffer_(std::make_unique<std::byte[]>(kBufferBytes)) {}

void OutputStream::attach(sys::UniqueFd fd) {
    fd_ = std::move(fd);
    decoder_.emplace(wire::StreamSender::kAgentOfOutput);
    fed_ = filled_ = 0;
    window_ = 0;
    closed_ = false;
    // An ACK may have been lost with the connection before.
    acknowledged_ = 0;
    owes_final_ack_ = false;
}

core::Error OutputStream::detach(core::Error error) {
    fd_.reset();
    fed_ = filled_ = 0;
    return error;
}

core::Result<OutputEvent> OutputStream::next() {
    for (;;) {
        if (!fd_.valid()) return OutputEvent{};
        if (fed_ == filled_) {
            if (core::Status sent = flush_acknowledgement(); !sent.ok()) return std::move(sent).error();
            core::Result<size_t> count = read_some(fd_, std::span(buffer_.get(), kBufferBytes), 0);
            if (!count.ok()) {
                if (count.error().code == core::Code::kDeadlineExceeded) return OutputEvent{};
                return detach(std::move(count).error());
            }
            if (*count == 0) return detach(ended(ECONNRESET));
            fed_ = 0;
            filled_ = *count;
        }
        wire::StreamEvent event;
        core::Result<size_t> used = decoder_->feed(std::span(buffer_.get() + fed_, filled_ - fed_), event);
        if (!used.ok()) return detach(std::move(used).error());
        fed_ += *used;
        BERTH_ASSIGN(OutputEvent out, take(event));
        if (out.kind != OutputEvent::Kind::kNone) return out;
    }
}

core::Result<OutputEvent> OutputStream::take(const wire::StreamEvent& event) {
    using Kind = wire::StreamEvent::Kind;
    OutputEvent out;
    switch (event.kind) {
        case Kind::kAttached:
            position_ = event.value;
            window_ = event.window;
            break;
        case Kind::kData: {
            uint64_t begin = position_;
            position_ += event.data.size();
            if (position_ <= received_) break;  // all of it was given on an earlier connection
            size_t known = begin < received_ ? static_cast<size_t>(received_ - begin) : 0;
            out.kind = OutputEvent::Kind::kData;
            out.data = event.data.subspan(known);
            received_ = position_;
            break;
        }
        case Kind::kLost:
            position_ += event.value;
            if (position_ <= received_) break;
            out.kind = OutputEvent::Kind::kLost;
            out.count = std::min(event.value, position_ - received_);
            received_ = position_;
            break;
        case Kind::kEof:
            has_eof_ = true;
            owes_final_ack_ = true;  // also when there was not a byte
            out.kind = OutputEvent::Kind::kEof;
            break;
        case Kind::kClosed:
            out.kind = OutputEvent::Kind::kClosed;
            out.code = wire::code_from_wire(event.code);
            closed_ = true;
            fd_.reset();
            fed_ = filled_ = 0;
            break;
        case Kind::kNone:
        case Kind::kAck: break;
    }
    return out;
}

core::Status OutputStream::flush_acknowledgement() {
    if (!fd_.valid() || window_ == 0) return core::ok();
    bool is_final = owes_final_ack_ && secured_ == received_;
    if (secured_ <= acknowledged_ && !is_final) return core::ok();
    wire::SmallStreamFrame frame = wire::SmallStreamFrame::ack(secured_);
    // The agent reads ACKs whatever else it does: waiting here ends soon, or the agent is gone.
    core::Status sent = write_all(fd_, frame.bytes(), deadline_after_ms(kAcknowledgeMs));
    // What it said before it closed can still be read.
    if (!sent.ok() && !is_disconnect(sent.error())) return detach(std::move(sent).error());
    acknowledged_ = secured_;
    if (is_final) owes_final_ack_ = false;
    return core::ok();
}

void InputStream::attach(sys::UniqueFd fd) {
    fd_ = std::move(fd);
    decoder_.emplace(wire::StreamSender::kAgentOfInput);
    outgoing_.clear();
    window_ = 0;
    sent_eof_ = false;
}

core::Error InputStream::detach(core::Error error) {
    fd_.reset();
    outgoing_.clear();
    window_ = 0;
    return error;
}

short InputStream::events() const {
    bool has_output =
        !outgoing_.empty() || (window_ != 0 && (sent_ < base_ + kept_.size() || (wants_eof_ && !sent_eof_)));
    return static_cast<short>(has_output ? POLLIN | POLLOUT : POLLIN);
}

size_t InputStream::room() const {
    if (wants_eof_ || closed_) return 0;
    // Before ATTACHED, one frame's worth.
    size_t window = window_ != 0 ? window_ : limits::kStreamPayloadBytes;
    return kept_.size() >= window ? 0 : window - kept_.size();
}

void InputStream::queue(std::span<const std::byte> data) {
    BERTH_CHECK(data.size() <= room());
    kept_.append(reinterpret_cast<const char*>(data.data()), data.size());
}

core::Status InputStream::progress() {
    if (!fd_.valid()) return core::ok();
    BERTH_TRY(receive());
    return send();
}

core::Status InputStream::receive() {
    std::byte bytes[256];
    for (;;) {
        core::Result<size_t> count = read_some(fd_, bytes, 0);
        if (!count.ok()) {
            if (count.error().code == core::Code::kDeadlineExceeded) return core::ok();
            return detach(std::move(count).error());
        }
        if (*count == 0) return detach(ended(ECONNRESET));
        std::span<const std::byte> rest(bytes, *count);
        while (!rest.empty()) {
            wire::StreamEvent event;
            core::Result<size_t> used = decoder_->feed(rest, event);
            if (!used.ok()) return detach(std::move(used).error());
            rest = rest.subspan(*used);
            BERTH_TRY(on_event(event));
            if (!fd_.valid()) return core::ok();
        }
    }
}

core::Status InputStream::on_event(const wire::StreamEvent& event) {
    using Kind = wire::StreamEvent::Kind;
    switch (event.kind) {
        case Kind::kAttached:
        case Kind::kAck: {
            if (event.value < base_) {
                if (event.kind == Kind::kAck) break;
                return detach(broken("the agent asks for input that it had acknowledged"));
            }
            // An ACK that was lost with an earlier connection comes as ATTACHED's offset.
            if (event.value > base_ + kept_.size()) {
                return detach(broken("the agent acknowledges input that was not sent"));
            }
            kept_.erase(0, static_cast<size_t>(event.value - base_));
            base_ = event.value;
            if (event.kind == Kind::kAttached) {
                window_ = event.window;
                sent_ = base_;
            }
            sent_ = std::max(sent_, base_);
            break;
        }
        case Kind::kClosed:
            closed_ = wire::code_from_wire(event.code);
            fd_.reset();
            outgoing_.clear();
            break;
        case Kind::kNone:
        case Kind::kData:
        case Kind::kEof:
        case Kind::kLost: break;
    }
    return core::ok();
}

// Puts the next frame into outgoing_; false when there is none.
bool InputStream::encode_next() {
    if (window_ == 0 || sent_eof_) return false;
    uint64_t end = std::min(base_ + kept_.size(), base_ + window_);
    if (sent_ < end) {
        size_t count = static_cast<size_t>(std::min<uint64_t>(end - sent_, limits::kStreamPayloadBytes));
        auto header = wire::encode_stream_header(
            {.type = wire::StreamFrameType::kData, .length = static_cast<uint32_t>(count)});
        outgoing_.append(reinterpret_cast<const char*>(header.data()), header.size());
        outgoing_.append(kept_, static_cast<size_t>(sent_ - base_), count);
        sent_ += count;
        return true;
    }
    if (!wants_eof_ || sent_ < base_ + kept_.size()) return false;
    wire::SmallStreamFrame eof = wire::SmallStreamFrame::eof();
    outgoing_.append(reinterpret_cast<const char*>(eof.bytes().data()), eof.bytes().size());
    sent_eof_ = true;
    return true;
}

core::Status InputStream::send() {
    while (fd_.valid() && (!outgoing_.empty() || encode_next())) {
        ssize_t count = ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count >= 0) {
            outgoing_.erase(0, static_cast<size_t>(count));
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return core::ok();
        if (errno == EPIPE || errno == ECONNRESET) return detach(ended(errno));
        return detach(core::errno_error(errno, "stream: send"));
    }
    return core::ok();
}

}  // namespace berth::client
