// Listening sockets, non-blocking and close-on-exec.
#pragma once

#include <cstdint>
#include <string>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::sys {

// A SOCK_STREAM listener on AF_VSOCK, any CID. FAILED_PRECONDITION-like errors keep their errno: EAFNOSUPPORT
// means that the kernel has no vsock (yet: it may be a module), EADDRINUSE that the port is taken.
core::Result<UniqueFd> listen_vsock(uint32_t port);

// A SOCK_STREAM listener at `path`, mode 0600. A socket that is there already is replaced only when nobody
// answers on it; ALREADY_EXISTS when somebody does, or when the path is not a socket.
core::Result<UniqueFd> listen_unix(const std::string& path);

}  // namespace berth::sys
