// From an address to an authenticated connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/auth/handshake.h"
#include "agent/auth/keys.h"
#include "agent/client/address.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::client {

// How a client proves who it is. Without a key nothing is proved: right for the local socket, and for guests
// that were booted with berth.auth=host-cid.
struct Credentials {
    std::optional<auth::ClientKey> key;
    // A challenge with a lower generation is refused (a replayed guest); 0: any.
    uint32_t minimum_generation = 0;
};

// Reads a key file: 32 raw bytes, 64 hex digits, or "class3:" and 64 hex digits.
core::Result<Credentials> read_credentials(const std::string& path);

struct Connection {
    sys::UniqueFd fd;  // non-blocking, close-on-exec, nothing read past the handshake
    std::optional<auth::ServerIdentity> identity;  // after a handshake
    auth::ChannelClass channel_class = auth::ChannelClass::kControl;
    // How long the attempt that succeeded took: the transport (of hvsock with its CONNECT), then the
    // handshake.
    int64_t connect_ns = 0;
    int64_t handshake_ns = 0;
};

// How long dialing goes on while the agent restarts (the keeper's listener stays, connections are reset).
inline constexpr int64_t kDialRetryMs = 5'000;

// Connects, does the handshake where the transport has one, and hands over the connection. Blocks.
// - Control: class 1, or class 3 when the key is one of class 3. Local socket, or no key: nothing is sent.
// - A connection that is refused or ends before message 2 is dialed again with a growing pause (10 ms to
//   500 ms) for kDialRetryMs or until `deadline_ns`; so are ENOENT and ECONNREFUSED of a socket's path.
// - PERMISSION_DENIED "authentication refused": it ended after message 3 (a wrong secret, or too many
//   connections). Not retried. UNAVAILABLE: nobody answers. DEADLINE_EXCEEDED.
core::Result<Connection> dial_control(const Address& address, const Credentials& credentials,
                                      int64_t deadline_ns);

// Class 2 with a ticket of OpenStream. On a transport without a handshake the hello alone is sent. An
// unknown, expired or used ticket is "authentication refused" as well (where there is no message 4 it shows
// as a connection that ends).
core::Result<Connection> dial_stream(const Address& address, const Credentials& credentials,
                                     const auth::Ticket& ticket, int64_t deadline_ns);

// The handshake alone, on a connected socket of the caller's. `reached_proof` tells, when it fails, whether
// message 3 had been sent.
core::Result<auth::ServerIdentity> shake_hands(sys::FdRef fd, const auth::Key& class_key,
                                               auth::ChannelClass channel_class, const auth::Ticket& ticket,
                                               const auth::ClientExpectations& expectations,
                                               int64_t deadline_ns, bool& reached_proof);

}  // namespace berth::client
