#include "agent/client/dial.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
// Needs sockaddr.
#include <linux/vm_sockets.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/client/io.h"
#include "agent/core/text.h"

namespace berth::client {

namespace {

constexpr int64_t kFirstPauseMs = 10;
constexpr int64_t kLongestPauseMs = 500;
constexpr size_t kHvsockLineBytes = 64;

// One attempt's failure, and whether another attempt may do better.
struct Failure {
    core::Error error;
    bool retry = false;
};

core::Error refused() {
    return core::make_error(core::Code::kPermissionDenied, "authentication refused");
}

core::Result<auth::Nonce> fresh_nonce() {
    auth::Nonce nonce{};
    if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
        return core::errno_error(errno, "getrandom");
    }
    return nonce;
}

bool may_appear(int err) {
    // ENODEV and EADDRNOTAVAIL stay what they are; the others are what a booting guest or a restarting agent
    // looks like on vsock (reset, timed out) and on a socket's path (not there yet, nobody listening).
    return err == ENOENT || err == ECONNREFUSED || err == ECONNRESET || err == EAGAIN || err == ETIMEDOUT ||
           err == EPIPE;
}

core::Status connect_socket(const sys::UniqueFd& fd, const sockaddr* address, socklen_t length,
                            int64_t deadline_ns) {
    int result = ::connect(fd.get(), address, length);
    if (result != 0 && (errno == EINPROGRESS || errno == EINTR)) {
        BERTH_ASSIGN(bool ready, wait_ready(fd, POLLOUT, deadline_ns));
        if (!ready) return core::make_error(core::Code::kDeadlineExceeded, "connect: no answer in time");
        int err = 0;
        socklen_t size = sizeof(err);
        if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &err, &size) != 0) err = errno;
        errno = err;
        result = err == 0 ? 0 : -1;
    }
    if (result == 0) return core::ok();
    core::Error error = core::errno_error(errno, "connect");
    if (may_appear(error.err)) error.code = core::Code::kUnavailable;
    return error;
}

core::Result<sys::UniqueFd> connect_vsock(const Address& address, int64_t deadline_ns) {
    sys::UniqueFd fd(::socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return core::errno_error(errno, "socket AF_VSOCK");
    sockaddr_vm peer{};
    peer.svm_family = AF_VSOCK;
    peer.svm_cid = address.cid;
    peer.svm_port = address.port;
    BERTH_TRY(connect_socket(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer), deadline_ns));
    return fd;
}

core::Result<sys::UniqueFd> connect_path(const std::string& path, int64_t deadline_ns) {
    sys::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return core::errno_error(errno, "socket AF_UNIX");
    sockaddr_un peer{};
    peer.sun_family = AF_UNIX;
    BERTH_CHECK(path.size() < sizeof(peer.sun_path));
    std::memcpy(peer.sun_path, path.data(), path.size());
    BERTH_TRY(connect_socket(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer), deadline_ns));
    return fd;
}

// "CONNECT PORT\n" and a line that begins with OK; read byte by byte, since what follows is not ours yet.
core::Status ask_for_port(const sys::UniqueFd& fd, uint32_t port, int64_t deadline_ns) {
    std::string line = core::format("CONNECT %u\n", port);
    BERTH_TRY(write_all(fd, std::as_bytes(std::span<const char>(line)), deadline_ns));
    std::string answer;
    while (answer.size() < kHvsockLineBytes) {
        std::byte next{};
        BERTH_TRY(read_exactly(fd, std::span<std::byte>(&next, 1), deadline_ns));
        if (next == std::byte{'\n'}) {
            if (answer.starts_with("OK")) return core::ok();
            break;
        }
        answer.push_back(static_cast<char>(next));
    }
    return core::make_error(core::Code::kFailedPrecondition,
                            "the VMM's socket answered CONNECT with " + core::quoted(answer));
}

core::Result<sys::UniqueFd> connect_transport(const Address& address, int64_t deadline_ns) {
    if (address.transport == Transport::kVsock) return connect_vsock(address, deadline_ns);
    BERTH_ASSIGN(sys::UniqueFd fd, connect_path(address.path, deadline_ns));
    if (address.transport == Transport::kHvsock) {
        BERTH_TRY(ask_for_port(fd, address.port, deadline_ns));
    }
    return fd;
}

auth::ClientExpectations expectations_of(const Address& address, const Credentials& credentials,
                                         const sys::UniqueFd& fd) {
    auth::ClientExpectations expectations;
    expectations.minimum_generation = credentials.minimum_generation;
    if (address.transport != Transport::kVsock) return expectations;
    sockaddr_vm own{};
    socklen_t size = sizeof(own);
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return expectations;
    expectations.own_cid = address.cid == VMADDR_CID_LOCAL ? VMADDR_CID_LOCAL : VMADDR_CID_HOST;
    expectations.own_port = own.svm_port;
    return expectations;
}

struct Attempt {
    const Address& address;
    const Credentials& credentials;
    auth::ChannelClass channel_class;
    const auth::Ticket& ticket;
    int64_t deadline_ns;
};

core::Result<Connection> try_once(const Attempt& attempt, bool& retry) {
    retry = false;
    int64_t start_ns = now_ns();
    core::Result<sys::UniqueFd> connected = connect_transport(attempt.address, attempt.deadline_ns);
    if (!connected.ok()) {
        retry = may_appear(connected.error().err);
        return std::move(connected).error();
    }
    Connection connection;
    connection.fd = std::move(connected).value();
    connection.channel_class = attempt.channel_class;
    int64_t connected_ns = now_ns();
    connection.connect_ns = connected_ns - start_ns;
    if (attempt.address.transport == Transport::kLocal || !attempt.credentials.key) {
        if (attempt.channel_class != auth::ChannelClass::kStream) return connection;
        BERTH_ASSIGN(auth::Nonce nonce, fresh_nonce());
        auth::Hello hello = auth::encode_hello(attempt.channel_class, nonce, attempt.ticket);
        BERTH_TRY(write_all(connection.fd, std::as_bytes(std::span(hello)), attempt.deadline_ns));
        return connection;
    }
    BERTH_ASSIGN(auth::Key key, auth::client_class_key(*attempt.credentials.key, attempt.channel_class));
    bool reached_proof = false;
    core::Result<auth::ServerIdentity> identity =
        shake_hands(connection.fd, key, attempt.channel_class, attempt.ticket,
                    expectations_of(attempt.address, attempt.credentials, connection.fd), attempt.deadline_ns,
                    reached_proof);
    auth::wipe(key.data(), key.size());
    if (!identity.ok()) {
        if (!is_disconnect(identity.error())) return std::move(identity).error();
        if (reached_proof) return refused();
        retry = true;
        return std::move(identity).error();
    }
    connection.identity = *identity;
    connection.handshake_ns = now_ns() - connected_ns;
    return connection;
}

core::Result<Connection> dial(const Attempt& attempt) {
    int64_t give_up_ns = std::min(attempt.deadline_ns, deadline_after_ms(kDialRetryMs));
    int64_t pause_ms = kFirstPauseMs;
    for (;;) {
        bool retry = false;
        core::Result<Connection> connection = try_once(attempt, retry);
        if (connection.ok()) return connection;
        int64_t wake_ns = deadline_after_ms(pause_ms);
        if (!retry || wake_ns >= give_up_ns) {
            return std::move(connection).error().within(format_address(attempt.address));
        }
        ::poll(nullptr, 0, static_cast<int>(pause_ms));
        pause_ms = std::min(pause_ms * 2, kLongestPauseMs);
    }
}

}  // namespace

core::Result<Credentials> read_credentials(const std::string& path) {
    sys::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) return core::errno_error(errno, "secret file " + core::quoted(path));
    // More than any key file: a longer one is refused by its size.
    std::array<char, 256> bytes{};
    size_t used = 0;
    while (used < bytes.size()) {
        ssize_t count = ::read(fd.get(), bytes.data() + used, bytes.size() - used);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return core::errno_error(errno, "secret file " + core::quoted(path));
        if (count == 0) break;
        used += static_cast<size_t>(count);
    }
    core::Result<auth::ClientKey> key = auth::parse_key_file(std::string_view(bytes.data(), used));
    auth::wipe(bytes.data(), bytes.size());
    if (!key.ok()) return std::move(key).error().within("secret file " + core::quoted(path));
    Credentials credentials;
    credentials.key = *key;
    return credentials;
}

core::Result<Connection> dial_control(const Address& address, const Credentials& credentials,
                                      int64_t deadline_ns) {
    bool read_only = credentials.key && credentials.key->is_read_only;
    return dial({address, credentials,
                 read_only ? auth::ChannelClass::kReadOnly : auth::ChannelClass::kControl, auth::Ticket{},
                 deadline_ns});
}

core::Result<Connection> dial_stream(const Address& address, const Credentials& credentials,
                                     const auth::Ticket& ticket, int64_t deadline_ns) {
    return dial({address, credentials, auth::ChannelClass::kStream, ticket, deadline_ns});
}

core::Result<auth::ServerIdentity> shake_hands(sys::FdRef fd, const auth::Key& class_key,
                                               auth::ChannelClass channel_class, const auth::Ticket& ticket,
                                               const auth::ClientExpectations& expectations,
                                               int64_t deadline_ns, bool& reached_proof) {
    reached_proof = false;
    BERTH_ASSIGN(auth::Nonce nonce, fresh_nonce());
    auth::ClientHandshake handshake(class_key, channel_class, nonce, ticket, expectations);
    BERTH_TRY(write_all(fd, std::as_bytes(std::span(handshake.hello())), deadline_ns));
    auth::Challenge challenge{};
    BERTH_TRY(read_exactly(fd, std::as_writable_bytes(std::span(challenge)), deadline_ns));
    BERTH_ASSIGN(auth::Proof proof, handshake.on_challenge(challenge));
    reached_proof = true;
    BERTH_TRY(write_all(fd, std::as_bytes(std::span(proof)), deadline_ns));
    auth::Proof answer{};
    BERTH_TRY(read_exactly(fd, std::as_writable_bytes(std::span(answer)), deadline_ns));
    BERTH_TRY(handshake.on_server_proof(answer));
    return handshake.identity();
}

}  // namespace berth::client
