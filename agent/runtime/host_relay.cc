#include "agent/runtime/host_relay.h"

#include <fcntl.h>
#include <sys/poll.h>
#include <sys/socket.h>

// After sys/socket.h, whose sockaddr it needs.
#include <linux/vm_sockets.h>

#include <cerrno>
#include <utility>

#include "agent/core/text.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

constexpr int kSplicesPerTurn = 16;

ssize_t splice_some(const sys::UniqueFd& from, const sys::UniqueFd& to) {
    constexpr unsigned kFlags = SPLICE_F_NONBLOCK | SPLICE_F_MOVE;
    ssize_t done;
    do {
        done = ::splice(from.get(), nullptr, to.get(), nullptr, limits::kStreamPayloadBytes, kFlags);
    } while (done < 0 && errno == EINTR);
    return done;
}

// A socket that is on its way to the host; the kernel gives up after two seconds.
core::Result<sys::UniqueFd> connect_vsock(uint32_t port) {
    sys::UniqueFd fd(::socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return core::errno_error(errno, "socket AF_VSOCK");
    sockaddr_vm address{};
    address.svm_family = AF_VSOCK;
    address.svm_cid = VMADDR_CID_HOST;
    address.svm_port = port;
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
        errno != EINPROGRESS) {
        return core::errno_error(errno, "connect");
    }
    return fd;
}

}  // namespace

core::Result<sys::UniqueFd> (*HostRelay::connect_to_host)(uint32_t port) = connect_vsock;

HostRelay::HostRelay(loop::Loop& loop, FdStore& store, HostRelayKeeper& keeper, StreamId id,
                     std::string prefix)
    : loop_(loop), store_(store), keeper_(keeper), id_(std::move(id)), prefix_(std::move(prefix)) {}

// ---- the connection ----

void HostRelay::set_pipe(sys::UniqueFd pipe) {
    pipe_ = std::move(pipe);
    int flags = fcntl(pipe_.get(), F_GETFL);
    if (flags >= 0) fcntl(pipe_.get(), F_SETFL, flags | O_NONBLOCK);
}

void HostRelay::dial(uint32_t port) {
    port_ = port;
    core::Result<sys::UniqueFd> socket = connect_to_host(port);
    if (!socket.ok()) return fail(std::move(socket).error());
    socket_ = std::move(*socket);
    loop_.poll(op_, socket_.get(), POLLOUT);
}

void HostRelay::open(sys::UniqueFd socket) {
    socket_ = std::move(socket);
    on_connected();
}

void HostRelay::on_connected() {
    state_ = State::kOpen;
    store_.store(prefix_ + "pipe", pipe_);
    store_.store(prefix_ + "sock", socket_);
    settle();
    pump();
}

void HostRelay::fail(core::Error error) {
    state_ = State::kFailed;
    error_ = std::move(error).within(core::format("vsock://%u", port_));
    pipe_.reset();
    socket_.reset();
    settle();
}

void HostRelay::settle() {
    if (on_settled) on_settled.take()();
}

void HostRelay::on_ready(loop::Op&, int32_t result) {
    if (stopped_ || state_ == State::kOver) {
        pipe_.reset();
        socket_.reset();
        return keeper_.on_relay_changed();
    }
    if (state_ == State::kOpen) return pump();
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error == 0 && result < 0) error = -result;
    if (error == 0 && (result & (POLLERR | POLLHUP)) != 0) error = ECONNRESET;
    if (error != 0) return fail(core::errno_error(error, "connect"));
    on_connected();
}

// ---- after a restart ----

bool HostRelay::adopt(std::string_view part, sys::UniqueFd fd) {
    if (part != "pipe" && part != "sock") return false;
    (part == "pipe" ? pipe_ : socket_) = std::move(fd);
    return true;
}

bool HostRelay::resume() {
    if (!pipe_.valid() || !socket_.valid()) return false;
    state_ = State::kOpen;
    pump();
    return true;
}

void HostRelay::rename(std::string prefix) {
    std::string old = std::exchange(prefix_, std::move(prefix));
    if (state_ == State::kOpen) {
        store_.store(prefix_ + "pipe", pipe_);
        store_.store(prefix_ + "sock", socket_);
    }
    store_.drop(old);
}

// ---- bytes ----

void HostRelay::pump() {
    if (state_ != State::kOpen || stopped_) return;
    const sys::UniqueFd& from = is_input() ? socket_ : pipe_;
    const sys::UniqueFd& to = is_input() ? pipe_ : socket_;
    for (int i = 0; i < kSplicesPerTurn; ++i) {
        ssize_t moved = splice_some(from, to);
        if (moved > 0) continue;
        if (moved < 0 && errno == EAGAIN) {
            bool is_empty = is_input() ? socket_is_empty() : pipe_bytes(pipe_) == 0;
            if (is_empty && close_soon_) return finish();
            return is_empty ? wait_for(from, POLLIN) : wait_for(to, POLLOUT);
        }
        // 0: all of it was handed over, and no more comes. EPIPE, ECONNRESET: nobody takes it any more, which
        // the other end learns from its own closed one.
        if (moved < 0 && errno != EPIPE && errno != ECONNRESET) {
            sys::log(sys::LogLevel::kWarn, "stdio.vsock", "%s: splice: %s", describe(id_).c_str(),
                     core::errno_name(errno).c_str());
        }
        return finish();
    }
    wait_for(from, POLLIN);  // which is at once when there is more: others get their turn
}

void HostRelay::wait_for(const sys::UniqueFd& fd, uint32_t events) {
    if (!op_.pending()) loop_.poll(op_, fd.get(), events);
}

bool HostRelay::socket_is_empty() const {
    std::byte probe;
    return recv(socket_.get(), &probe, 1, MSG_PEEK | MSG_DONTWAIT) < 0;
}

void HostRelay::close_soon() {
    if (!is_input()) return;
    close_soon_ = true;
    pump();
}

size_t HostRelay::undelivered() const {
    return !is_input() && pipe_.valid() ? pipe_bytes(pipe_) : 0;
}

// ---- the end ----

// The whole connection: a half-closed one means different things to different VMMs.
void HostRelay::finish() {
    state_ = State::kOver;
    store_.drop(prefix_);
    loop_.cancel(op_);
    if (!op_.pending()) {
        pipe_.reset();
        socket_.reset();
    }
    keeper_.on_relay_changed();
}

void HostRelay::release() {
    if (!stopped_) store_.drop(prefix_);
    quiesce();
}

void HostRelay::quiesce() {
    stopped_ = true;
    on_settled = {};
    loop_.cancel(op_);
    if (op_.pending()) return;
    pipe_.reset();
    socket_.reset();
}

}  // namespace berth::runtime
