// The outgoing half of a control connection: whole frames, first in first out, several with one system call.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "agent/loop/loop.h"

namespace berth::service {

class ConnectionWriter {
 public:
    // Bytes of one subscriber that wait in the queue; shared, as the subscriber may be gone before them.
    using Account = std::shared_ptr<size_t>;
    // Told when the socket failed (`error` < 0), or when the queue has run empty (0).
    using Progress = void (*)(void* owner, int32_t error);

    ConnectionWriter(loop::Loop& loop, int fd, Progress progress, void* owner);

    // Queues a frame. It goes out at the end of this turn at the earliest, together with others.
    void push(std::string frame, Account account = nullptr);

    size_t queued_bytes() const { return queued_bytes_; }
    bool empty() const { return frames_.empty(); }

    // Drops what is queued and cancels what is under way. No Progress from here on but the one that says that
    // nothing is pending any more (with -ECANCELED), when something was.
    void stop();
    bool pending() const { return send_.pending(); }

 private:
    struct Frame {
        std::string bytes;
        Account account;
    };
    size_t gather();  // what goes out next, into message_; bytes
    void pump();
    void send_by_ring();
    void on_sent(loop::Op& op, int32_t result);
    void drop_sent(size_t count);

    static constexpr size_t kFramesAtOnce = 16;

    loop::Loop& loop_;
    int fd_;
    Progress progress_;
    void* owner_;
    std::deque<Frame> frames_;
    size_t queued_bytes_ = 0;
    size_t first_sent_ = 0;  // bytes of the first frame that are out
    bool is_stopped_ = false;
    std::array<iovec, kFramesAtOnce> pieces_{};
    msghdr message_{};
    loop::Op send_;
    loop::Task pump_task_;
};

}  // namespace berth::service
