#include "agent/sys/socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

#include "agent/core/uninitialized.h"

namespace berth::sys {

using core::errno_error;

core::Result<SocketPair> make_seqpacket_pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
        return errno_error(errno, "socketpair");
    }
    return SocketPair{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

core::Status send_with_fds(FdRef socket, std::span<const std::byte> bytes, std::span<const int> fds,
                           int flags, std::span<const std::byte> more) {
    if (fds.size() > kFdsPerMessage) return errno_error(EINVAL, "sendmsg (too many descriptors)");
    iovec parts[2] = {{const_cast<std::byte*>(bytes.data()), bytes.size()},
                      {const_cast<std::byte*>(more.data()), more.size()}};
    alignas(cmsghdr) BERTH_UNINITIALIZED char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = more.empty() ? 1 : 2;
    if (!fds.empty()) {
        std::memset(control, 0, CMSG_SPACE(fds.size_bytes()));
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    ssize_t sent = 0;
    do {
        sent = ::sendmsg(socket.get(), &message, flags | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) return errno_error(errno, "sendmsg");
    // A SOCK_SEQPACKET socket takes a datagram whole; a stream socket used by mistake would not.
    if (static_cast<size_t>(sent) != bytes.size() + more.size()) return errno_error(EMSGSIZE, "sendmsg");
    return core::ok();
}

core::Result<Received> receive_with_fds(FdRef socket, std::span<std::byte> buffer, int flags) {
    iovec part{buffer.data(), buffer.size()};
    alignas(cmsghdr) BERTH_UNINITIALIZED char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ssize_t got = 0;
    // A peer that dies with unread input resets us, and a SOCK_SEQPACKET socket reports that once, before the
    // datagrams that the peer had sent: they are still to be read.
    do {
        got = ::recvmsg(socket.get(), &message, flags | MSG_CMSG_CLOEXEC);
    } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    Received received;
    if (got < 0) return errno_error(errno, "recvmsg");
    received.bytes = static_cast<size_t>(got);
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            received.fds.emplace_back(fd);
        }
    }
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        received.truncated = true;
        received.fds.clear();
    }
    received.end = got == 0 && received.fds.empty() && !received.truncated;
    return received;
}

}  // namespace berth::sys
