#include "agent/service/listener.h"

#include <linux/vm_sockets.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "agent/core/limits.h"
#include "agent/sys/log.h"

namespace berth::service {

namespace {

// Not to be foreseen by who floods us; when the pool is empty any slot will do.
size_t random_below(size_t count) {
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) return 0;
    return random % count;
}

}  // namespace

// ---- listeners ----

Server::Listener::Listener(Server& owner, ListenerKind listener_kind, sys::UniqueFd socket)
    : server(owner),
      kind(listener_kind),
      fd(std::move(socket)),
      accept_op(loop::Op::to<&Listener::on_accept>(), this),
      retry(owner.loop_, loop::Timer::to<&Listener::accept, Listener>(), this) {}

void Server::Listener::accept() {
    if (!accept_op.pending()) server.loop_.accept_multishot(accept_op, fd.get());
}

void Server::Listener::on_accept(loop::Op& op, int32_t result) {
    if (result >= 0) server.take(kind, sys::UniqueFd(result));
    if (op.more() || server.is_closed_) return;
    if (result >= 0 || result == -EINTR || result == -ECONNABORTED) return accept();
    // EMFILE and the like: whoever waits in the backlog waits a little longer; retrying at once would spin.
    sys::log(sys::LogLevel::kWarn, "accept.failed", "%s", core::errno_name(-result).c_str());
    retry.arm_after_ms(limits::kAcceptRetryMs);
}

Server::Server(loop::Loop& loop, const core::AgentConfig& config, const core::ClassKeys& keys,
               CallHandler& handler, StreamGate& gate)
    : loop_(loop), config_(config), keys_(keys), handler_(handler), gate_(gate) {}

Server::~Server() {
    BERTH_CHECK(idle());
}

void Server::add_listener(ListenerKind kind, sys::UniqueFd fd) {
    listeners_.push_back(std::make_unique<Listener>(*this, kind, std::move(fd)));
    listeners_.back()->accept();
}

// ---- newcomers ----

void Server::take(ListenerKind kind, sys::UniqueFd fd) {
    Peer peer;
    if (is_closed_ || !check_peer(kind, fd.get(), peer)) return;
    if (!peer.is_bare && config_.has_secret == 0) {
        if (!has_told_no_secret_) {
            sys::log(sys::LogLevel::kError, "handshake.no_secret",
                     "this guest got no secret: every connection is refused");
        }
        has_told_no_secret_ = true;
        return;
    }
    give_slot(std::move(fd), peer);
}

bool Server::check_peer(ListenerKind kind, int fd, Peer& peer) {
    switch (kind) {
        case ListenerKind::kVsock: {
            sockaddr_vm address{};
            socklen_t length = sizeof address;
            if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
                address.svm_family != AF_VSOCK) {
                return false;
            }
            peer.cid = address.svm_cid;
            peer.port = address.svm_port;
            peer.is_bare = config_.auth_host_cid != 0;
            bool is_loopback = config_.allow_local_cid != 0 && peer.cid == VMADDR_CID_LOCAL;
            return peer.cid == VMADDR_CID_HOST || is_loopback;
        }
        case ListenerKind::kUnix: return true;
        case ListenerKind::kLocal: {
            // The kernel translates the uid into our user namespace: 0 is our own root.
            ucred credentials{};
            socklen_t length = sizeof credentials;
            peer.is_local = true;
            peer.is_bare = true;
            return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
                   credentials.uid == 0;
        }
    }
    return false;
}

void Server::give_slot(sys::UniqueFd fd, const Peer& peer) {
    for (std::unique_ptr<HandshakeSlot>& slot : slots_) {
        if (slot->is_free()) return slot->start(std::move(fd), peer);
    }
    if (slots_.size() < limits::kUnauthenticatedConnections) {
        HandshakeSlot::Owner& owner = *this;
        slots_.push_back(std::make_unique<HandshakeSlot>(loop_, owner));
        return slots_.back()->start(std::move(fd), peer);
    }
    slots_[random_below(slots_.size())]->replace(std::move(fd), peer);
}

size_t Server::unauthenticated() const {
    return static_cast<size_t>(
        std::count_if(slots_.begin(), slots_.end(),
                      [](const std::unique_ptr<HandshakeSlot>& slot) { return !slot->is_free(); }));
}

// ---- authenticated ----

bool Server::has_room(auth::ChannelClass channel_class) const {
    bool is_stream = channel_class == auth::ChannelClass::kStream;
    size_t entering = static_cast<size_t>(
        std::count_if(slots_.begin(), slots_.end(), [&](const std::unique_ptr<HandshakeSlot>& slot) {
            return slot->is_entering() && slot->is_stream() == is_stream;
        }));
    if (is_stream) return gate_.attached() + entering < limits::kStreamConnections;
    return control_connections_ + entering < limits::kControlConnections;
}

void Server::on_control(sys::UniqueFd fd, AccessClass access, const Peer& peer,
                        std::span<const std::byte> first, std::vector<sys::UniqueFd> descriptors) {
    if (is_closed_) return;
    ControlConnection::Options options{.access = access, .is_local = peer.is_local};
    ControlConnection::Owner& owner = *this;
    connections_.push_back(
        std::make_unique<ControlConnection>(loop_, std::move(fd), options, handler_, owner));
    control_connections_++;
    connections_.back()->start(first, std::move(descriptors));
}

void Server::on_stream(TicketGrant grant, sys::UniqueFd fd) {
    if (!is_closed_) gate_.attach(grant, std::move(fd));
}

void Server::on_connection_closing(ControlConnection&) {
    control_connections_--;
}

void Server::on_connection_closed(ControlConnection& connection) {
    std::vector<std::unique_ptr<ControlConnection>>::iterator found = std::find_if(
        connections_.begin(), connections_.end(),
        [&](const std::unique_ptr<ControlConnection>& held) { return held.get() == &connection; });
    BERTH_CHECK(found != connections_.end());
    std::unique_ptr<ControlConnection> ended = std::move(*found);
    connections_.erase(found);
}

// ---- the end ----

void Server::close_all_but(const Call* keep) {
    for (std::unique_ptr<HandshakeSlot>& slot : slots_) slot->close();
    for (std::unique_ptr<ControlConnection>& connection : connections_) {
        if (keep == nullptr || !connection->carries(*keep)) connection->close();
    }
}

void Server::close_all() {
    is_closed_ = true;
    for (std::unique_ptr<Listener>& listener : listeners_) {
        listener->retry.disarm();
        loop_.cancel(listener->accept_op);
    }
    close_all_but(nullptr);
}

bool Server::idle() const {
    bool is_accepting =
        std::any_of(listeners_.begin(), listeners_.end(),
                    [](const std::unique_ptr<Listener>& listener) { return listener->accept_op.pending(); });
    return !is_accepting && connections_.empty() && unauthenticated() == 0;
}

}  // namespace berth::service
