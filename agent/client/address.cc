#include "agent/client/address.h"

#include <sys/un.h>

#include "agent/core/text.h"

namespace berth::client {

namespace {

constexpr uint32_t kAny = 0xFFFFFFFF;  // VMADDR_CID_ANY, VMADDR_PORT_ANY

core::Error wrong(std::string_view text, std::string_view why) {
    return core::invalid("address " + core::quoted(text) + ": " + std::string(why));
}

bool parse_id(std::string_view text, uint32_t& id) {
    auto number = core::parse_number<uint32_t>(text);
    if (!number || *number == kAny) return false;
    id = *number;
    return true;
}

core::Status check_path(std::string_view text, std::string_view path) {
    if (path.empty() || path[0] != '/') return wrong(text, "the path must be absolute");
    if (path.find('\0') != std::string_view::npos) return wrong(text, "the path holds a zero byte");
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
        return wrong(text,
                     core::format("the path is longer than %zu bytes", sizeof(sockaddr_un::sun_path) - 1));
    }
    return core::ok();
}

}  // namespace

core::Result<Address> parse_address(std::string_view text) {
    Address address;
    std::string_view rest = text;
    auto take_scheme = [&rest](std::string_view scheme) {
        if (!rest.starts_with(scheme)) return false;
        rest.remove_prefix(scheme.size());
        return true;
    };
    if (take_scheme("vsock://")) {
        address.transport = Transport::kVsock;
        size_t colon = rest.find(':');
        if (colon == std::string_view::npos) return wrong(text, "must be vsock://CID:PORT");
        if (!parse_id(rest.substr(0, colon), address.cid)) return wrong(text, "the CID is not a number");
        if (!parse_id(rest.substr(colon + 1), address.port)) return wrong(text, "the port is not a number");
        return address;
    }
    if (take_scheme("hvsock://")) {
        address.transport = Transport::kHvsock;
        size_t colon = rest.rfind(':');
        if (colon == std::string_view::npos) return wrong(text, "must be hvsock:///PATH:PORT");
        if (!parse_id(rest.substr(colon + 1), address.port)) return wrong(text, "the port is not a number");
        rest = rest.substr(0, colon);
    } else if (take_scheme("unix://")) {
        address.transport = Transport::kUnix;
    } else if (take_scheme("local://") || rest.starts_with("/")) {
        address.transport = Transport::kLocal;
    } else {
        return wrong(text, "must begin with vsock://, hvsock://, unix://, local:// or /");
    }
    BERTH_TRY(check_path(text, rest));
    address.path = rest;
    return address;
}

std::string format_address(const Address& address) {
    switch (address.transport) {
        case Transport::kVsock: return core::format("vsock://%u:%u", address.cid, address.port);
        case Transport::kHvsock: return core::format("hvsock://%s:%u", address.path.c_str(), address.port);
        case Transport::kUnix: return "unix://" + address.path;
        case Transport::kLocal: return address.path;
    }
    return {};
}

}  // namespace berth::client
