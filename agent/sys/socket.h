// Unix sockets between our own processes: SOCK_SEQPACKET datagrams with descriptors.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::sys {

// SCM_MAX_FD: the kernel refuses one more (EINVAL).
inline constexpr size_t kFdsPerMessage = 253;

struct SocketPair {
    UniqueFd first;
    UniqueFd second;
};

// A connected pair of AF_UNIX SOCK_SEQPACKET sockets, both close-on-exec, both blocking.
core::Result<SocketPair> make_seqpacket_pair();

// Sends one datagram, whole or not at all. `fds` are borrowed and at most kFdsPerMessage; `flags` are those
// of sendmsg (MSG_DONTWAIT); a peer that is gone is EPIPE, never a signal. EINTR is retried. Blocks unless
// told otherwise. `more` follows `bytes` in the same datagram.
core::Status send_with_fds(FdRef socket, std::span<const std::byte> bytes, std::span<const int> fds,
                           int flags = 0, std::span<const std::byte> more = {});

struct Received {
    size_t bytes = 0;           // in the buffer
    std::vector<UniqueFd> fds;  // close-on-exec, in the order in which they were sent
    bool truncated = false;     // the datagram was larger than the buffer, or descriptors were lost (a full
                                // table, a limit): the message must not be used; `fds` is empty then
    bool end = false;           // the peer closed (we never send an empty datagram)
};

// Receives one datagram. `flags` are those of recvmsg (MSG_DONTWAIT: EAGAIN in Error::err when there is
// none). EINTR is retried. What a peer sent before it reset us is read first, then the end.
core::Result<Received> receive_with_fds(FdRef socket, std::span<std::byte> buffer, int flags = 0);

// The bytes of a flat struct.
template <typename Flat>
std::span<const std::byte> bytes_of(const Flat& value) {
    static_assert(std::is_trivially_copyable_v<Flat>);
    return std::as_bytes(std::span<const Flat, 1>(&value, 1));
}
template <typename Flat>
std::span<std::byte> writable_bytes_of(Flat& value) {
    static_assert(std::is_trivially_copyable_v<Flat>);
    return std::as_writable_bytes(std::span<Flat, 1>(&value, 1));
}

}  // namespace berth::sys
