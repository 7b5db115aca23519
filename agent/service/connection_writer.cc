#include "agent/service/connection_writer.h"

#include <algorithm>
#include <cerrno>

namespace berth::service {

ConnectionWriter::ConnectionWriter(loop::Loop& loop, int fd, Progress progress, void* owner)
    : loop_(loop),
      fd_(fd),
      progress_(progress),
      owner_(owner),
      send_(loop::Op::to<&ConnectionWriter::on_sent>(), this),
      pump_task_(loop, loop::Task::to<&ConnectionWriter::pump, ConnectionWriter>(), this) {}

void ConnectionWriter::push(std::string frame, Account account) {
    if (is_stopped_) return;
    queued_bytes_ += frame.size();
    if (account) *account += frame.size();
    frames_.push_back(Frame{std::move(frame), std::move(account)});
    if (!send_.pending()) pump_task_.post();
}

size_t ConnectionWriter::gather() {
    size_t count = std::min(frames_.size(), kFramesAtOnce);
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t skip = i == 0 ? first_sent_ : 0;
        pieces_[i] = {.iov_base = frames_[i].bytes.data() + skip, .iov_len = frames_[i].bytes.size() - skip};
        bytes += pieces_[i].iov_len;
    }
    message_ = msghdr{};
    message_.msg_iov = pieces_.data();
    message_.msg_iovlen = count;
    return bytes;
}

void ConnectionWriter::pump() {
    if (is_stopped_ || send_.pending() || frames_.empty()) return;
    // Mostly there is room, and a completion would cost a turn of the loop. What there is no room for, and
    // what went wrong, is the ring's.
    size_t wanted = gather();
    ssize_t sent = ::sendmsg(fd_, &message_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) drop_sent(static_cast<size_t>(sent));
    if (frames_.empty()) return progress_(owner_, 0);
    if (sent > 0 && static_cast<size_t>(sent) == wanted) return pump_task_.post();
    send_by_ring();
}

void ConnectionWriter::send_by_ring() {
    gather();
    loop_.sendmsg(send_, fd_, &message_);
}

void ConnectionWriter::on_sent(loop::Op&, int32_t result) {
    if (is_stopped_) {
        frames_.clear();
        return progress_(owner_, -ECANCELED);
    }
    if (result < 0 && result != -EINTR && result != -EAGAIN) return progress_(owner_, result);
    if (result > 0) drop_sent(static_cast<size_t>(result));
    if (frames_.empty()) return progress_(owner_, 0);
    send_by_ring();
}

void ConnectionWriter::drop_sent(size_t count) {
    count += first_sent_;
    while (!frames_.empty() && count >= frames_.front().bytes.size()) {
        Frame& frame = frames_.front();
        count -= frame.bytes.size();
        queued_bytes_ -= frame.bytes.size();
        if (frame.account) *frame.account -= frame.bytes.size();
        frames_.pop_front();
    }
    first_sent_ = count;
}

void ConnectionWriter::stop() {
    is_stopped_ = true;
    loop_.cancel(send_);
    // The kernel reads from the frames until the operation has completed.
    if (!send_.pending()) frames_.clear();
}

}  // namespace berth::service
