#include "agent/runtime/stream_attachment.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace berth::runtime {

// ---- buffers ----

SendBuffers::Buffer SendBuffers::take() {
    ++held_;
    if (held_ <= kLargeOnes && !spare_.empty()) {
        Buffer buffer = std::move(spare_.back());
        spare_.pop_back();
        return buffer;
    }
    size_t payload = held_ <= kLargeOnes ? kLarge : kSmall;
    return Buffer{std::make_unique_for_overwrite<std::byte[]>(wire::kStreamHeaderBytes + payload), payload};
}

void SendBuffers::give(Buffer buffer) {
    --held_;
    constexpr size_t kSpare = 2;
    if (buffer.payload == kLarge && spare_.size() < kSpare && held_ > 0) spare_.push_back(std::move(buffer));
    if (held_ == 0) spare_.clear();
}

std::span<std::byte> SendBuffers::scratch() {
    if (scratch_ == nullptr) scratch_ = std::make_unique_for_overwrite<std::byte[]>(kLarge);
    return {scratch_.get(), kLarge};
}

// ---- the connection ----

Attachment::Attachment(loop::Loop& loop, AttachmentKeeper& keeper, SendBuffers& buffers,
                       AttachmentClient& client, wire::StreamSender peer, sys::UniqueFd socket)
    : loop_(loop),
      keeper_(keeper),
      buffers_(buffers),
      client_(&client),
      socket_(std::move(socket)),
      decoder_(peer),
      linger_(loop, loop::Timer::to<&Attachment::on_linger, Attachment>(), this) {}

Attachment::~Attachment() {
    drop_data_room();
}

void Attachment::start() {
    receive();
}

// ---- sending: one operation at a time; small frames that wait go before the next DATA ----

void Attachment::queue(const wire::SmallStreamFrame& frame) {
    if (phase_ != Phase::kOpen) return;
    queued_.insert(queued_.end(), frame.bytes().begin(), frame.bytes().end());
    send_next();
}

std::span<std::byte> Attachment::data_room() {
    BERTH_CHECK(!is_sending());
    if (data_.bytes == nullptr) data_ = buffers_.take();
    return {data_.bytes.get() + wire::kStreamHeaderBytes, data_.payload};
}

void Attachment::drop_data_room() {
    if (data_.bytes != nullptr) buffers_.give(std::exchange(data_, SendBuffers::Buffer{}));
}

void Attachment::send_data(size_t payload_bytes) {
    BERTH_CHECK(!is_sending() && data_.bytes != nullptr && payload_bytes <= data_.payload);
    auto header = wire::encode_stream_header(
        {.type = wire::StreamFrameType::kData, .length = static_cast<uint32_t>(payload_bytes)});
    std::memcpy(data_.bytes.get(), header.data(), header.size());
    sending_ = {data_.bytes.get(), header.size() + payload_bytes};
    loop_.send(send_, socket_.get(), sending_);
}

void Attachment::send_next() {
    if (send_.pending() || phase_ == Phase::kAborting) return;
    if (sending_.empty() && !queued_.empty()) {
        small_ = std::exchange(queued_, {});
        sending_ = small_;
    }
    if (!sending_.empty()) loop_.send(send_, socket_.get(), sending_);
}

void Attachment::on_sent(loop::Op&, int32_t result) {
    if (phase_ == Phase::kAborting) return check_over();
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
        AttachmentClient* client = std::exchange(client_, nullptr);
        abort();
        if (client != nullptr) client->on_gone(*this);
        return;
    }
    if (result > 0) sending_ = sending_.subspan(static_cast<size_t>(result));
    if (sending_.empty() && queued_.empty()) {
        if (phase_ == Phase::kClosing) {
            drop_data_room();
            // CLOSED is with the kernel. Closing now, with bytes of the client's unread, might take it back:
            // wait until the client closes, for a moment. No half-close: several VMMs get it wrong.
            if (peer_ended_) return end();
            receive();
            return;
        }
        if (client_ != nullptr) client_->on_sendable(*this);
        if (!is_sending()) drop_data_room();
        return;
    }
    send_next();
}

// ---- receiving ----

void Attachment::receive() {
    if (recv_.pending() || is_held_ || peer_ended_ || phase_ == Phase::kAborting) return;
    loop_.recv(recv_, socket_.get(), in_);
}

void Attachment::on_received(loop::Op&, int32_t result) {
    if (phase_ == Phase::kAborting) return check_over();
    if (result == -EINTR || result == -EAGAIN) return receive();
    if (result <= 0) {
        peer_ended_ = true;
        // What was queued last (CLOSED) may still be read by a client that shut down only its own direction.
        if (phase_ == Phase::kClosing) {
            if (!is_sending()) end();
            return;
        }
        AttachmentClient* client = std::exchange(client_, nullptr);
        abort();
        if (client != nullptr) client->on_gone(*this);
        return;
    }
    if (phase_ == Phase::kClosing) return receive();
    take_input(std::span(in_).first(static_cast<size_t>(result)));
}

void Attachment::take_input(std::span<const std::byte> bytes) {
    is_feeding_ = true;
    unread_ = bytes;
    while (!unread_.empty() && !is_held_ && phase_ == Phase::kOpen) {
        wire::StreamEvent event;
        core::Result<size_t> taken = decoder_.feed(unread_, event);
        if (!taken.ok()) {
            is_feeding_ = false;
            AttachmentClient* client = std::exchange(client_, nullptr);
            abort();
            if (client != nullptr) client->on_gone(*this);
            return;
        }
        unread_ = unread_.subspan(*taken);
        if (event.kind != wire::StreamEvent::Kind::kNone && client_ != nullptr)
            client_->on_frame(*this, event);
    }
    is_feeding_ = false;
    if (phase_ != Phase::kOpen) return check_over();
    if (!is_held_ && !receive_bulk()) return;
    receive();
}

// The payload of a large DATA frame goes from the kernel to the stream at once, without a buffer of this
// connection's own. False: the connection ended.
bool Attachment::receive_bulk() {
    for (int i = 0; i < kBulkPerTurn && decoder_.inside_data() && !is_held_ && client_ != nullptr; ++i) {
        size_t count = std::min(decoder_.bytes_wanted(), client_->bulk_room());
        if (count <= in_.size() || recv_.pending()) return true;
        std::span<std::byte> into = buffers_.scratch().first(count);
        ssize_t got = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
        if (got <= 0) return true;  // nothing yet; an end or an error is seen again by the operation
        decoder_.skip_data(static_cast<size_t>(got));
        is_feeding_ = true;
        client_->on_bulk(*this, into.first(static_cast<size_t>(got)));
        is_feeding_ = false;
        if (phase_ != Phase::kOpen) {
            check_over();
            return false;
        }
    }
    return true;
}

void Attachment::resume_input() {
    if (!is_held_) return;
    is_held_ = false;
    if (is_feeding_ || phase_ != Phase::kOpen) return;
    take_input(unread_);
}

bool Attachment::is_drained() const {
    std::byte probe;
    return unread_.empty() && ::recv(socket_.get(), &probe, 1, MSG_PEEK | MSG_DONTWAIT) < 0;
}

// ---- the end ----

void Attachment::close_with(core::Code code) {
    if (phase_ != Phase::kOpen) return;
    client_ = nullptr;
    queue(wire::SmallStreamFrame::closed(code));
    phase_ = Phase::kClosing;
    is_held_ = false;
    linger_.arm_after_ms(kLingerMs);
    if (!is_feeding_) receive();
}

void Attachment::abort() {
    client_ = nullptr;
    if (phase_ == Phase::kAborting) return;
    end();
}

void Attachment::on_linger() {
    end();
}

void Attachment::end() {
    phase_ = Phase::kAborting;
    linger_.disarm();
    queued_.clear();
    // The kernel may still look at the buffers: their operations end first, then the socket closes.
    loop_.cancel(recv_);
    loop_.cancel(send_);
    check_over();
}

void Attachment::check_over() {
    if (over_ || phase_ != Phase::kAborting || is_feeding_ || recv_.pending() || send_.pending()) return;
    over_ = true;
    socket_.reset();
    drop_data_room();
    keeper_.on_attachment_over(*this);
}

}  // namespace berth::runtime
