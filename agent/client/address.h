// Where an agent is: what people write in a flag or in BERTH_ADDRESS.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/core/result.h"

namespace berth::client {

inline constexpr char kDefaultLocalSocket[] = "/run/berth/berth.sock";

enum class Transport : uint8_t {
    kVsock,   // vsock://CID:PORT
    kHvsock,  // hvsock:///path.sock:PORT: the unix socket of a VMM, which is told the port in text
    kUnix,    // unix:///path.sock: an agent started with --listen, handshake as on vsock
    kLocal,   // /path.sock or local:///path.sock: the agent's local socket, no handshake
};

struct Address {
    Transport transport = Transport::kLocal;
    uint32_t cid = 0;   // kVsock
    uint32_t port = 0;  // kVsock, kHvsock
    std::string path;   // all but kVsock

    bool operator==(const Address&) const = default;
};

// INVALID_ARGUMENT names the text and what is wrong with it. CIDs and ports are decimal; 4294967295 ("any")
// is neither. Paths are absolute and fit a sockaddr_un (107 bytes).
core::Result<Address> parse_address(std::string_view text);

// The text that parse_address takes.
std::string format_address(const Address& address);

}  // namespace berth::client
