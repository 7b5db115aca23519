#include "agent/client/io.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace berth::client {

namespace {

core::Error disconnected(int err) {
    core::Error error = core::make_error(core::Code::kUnavailable, "the agent closed the connection");
    error.err = err;
    return error;
}

core::Error too_late() {
    return core::make_error(core::Code::kDeadlineExceeded, "no answer in time");
}

}  // namespace

int64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

int64_t deadline_after_ms(int64_t milliseconds) {
    if (milliseconds < 0) return kNoDeadline;
    int64_t now = now_ns();
    if (milliseconds > (kNoDeadline - now) / 1'000'000) return kNoDeadline;
    return now + milliseconds * 1'000'000;
}

core::Result<bool> wait_ready(sys::FdRef fd, short events, int64_t deadline_ns) {
    pollfd item{fd.get(), events, 0};
    for (;;) {
        int timeout_ms = -1;
        if (deadline_ns != kNoDeadline) {
            int64_t left = deadline_ns - now_ns();
            // Rounded up: waking a little early would only poll once more.
            timeout_ms =
                left <= 0 ? 0 : static_cast<int>(std::min<int64_t>((left + 999'999) / 1'000'000, 1 << 30));
        }
        int ready = ::poll(&item, 1, timeout_ms);
        if (ready > 0) return true;
        if (ready == 0) {
            if (timeout_ms == 0) return false;
            continue;
        }
        if (errno != EINTR) return core::errno_error(errno, "poll");
    }
}

core::Result<size_t> read_some(sys::FdRef fd, std::span<std::byte> into, int64_t deadline_ns) {
    for (;;) {
        ssize_t count = ::read(fd.get(), into.data(), into.size());
        if (count >= 0) return static_cast<size_t>(count);
        if (errno == EINTR) continue;
        if (errno == ECONNRESET || errno == ENOTCONN) return size_t{0};
        if (errno != EAGAIN) return core::errno_error(errno, "read");
        BERTH_ASSIGN(bool ready, wait_ready(fd, POLLIN, deadline_ns));
        if (!ready) return too_late();
    }
}

core::Status read_exactly(sys::FdRef fd, std::span<std::byte> into, int64_t deadline_ns) {
    while (!into.empty()) {
        BERTH_ASSIGN(size_t count, read_some(fd, into, deadline_ns));
        if (count == 0) return disconnected(ECONNRESET);
        into = into.subspan(count);
    }
    return core::ok();
}

core::Status write_all(sys::FdRef fd, std::span<const std::byte> data, int64_t deadline_ns) {
    while (!data.empty()) {
        ssize_t count = ::send(fd.get(), data.data(), data.size(), MSG_NOSIGNAL);
        if (count < 0 && errno == ENOTSOCK) count = ::write(fd.get(), data.data(), data.size());
        if (count >= 0) {
            data = data.subspan(static_cast<size_t>(count));
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return disconnected(errno);
        if (errno != EAGAIN) return core::errno_error(errno, "write");
        BERTH_ASSIGN(bool ready, wait_ready(fd, POLLOUT, deadline_ns));
        if (!ready) return too_late();
    }
    return core::ok();
}

bool is_disconnect(const core::Error& error) {
    return error.code == core::Code::kUnavailable &&
           (error.err == EPIPE || error.err == ECONNRESET || error.err == ENOTCONN);
}

}  // namespace berth::client
