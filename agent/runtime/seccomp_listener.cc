#include "agent/runtime/seccomp_listener.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "agent/core/hooks.h"
#include "agent/core/text.h"
#include "agent/runtime/container.h"
#include "agent/runtime/runtime.h"
#include "agent/sys/socket.h"

namespace berth::runtime {

core::Status send_seccomp_listener(const Container& container, std::string_view status, int pid,
                                   sys::FdRef listener) {
    if (!container.spec.seccomp)
        return core::make_error(core::Code::kInternal, "linux.seccomp: the listener's path is missing");
    const std::string& path = container.spec.seccomp->listener_path;
    std::string where = "linux.seccomp.listenerPath " + core::quoted(path);
    core::HookState state;
    state.oci_version = container.spec.oci_version;
    state.id = container.told_id();
    state.status = status;
    state.pid = container.init().pid;
    state.bundle = container.bundle;
    std::vector<std::pair<std::string, std::string>> annotations(container.annotations.begin(),
                                                                 container.annotations.end());
    state.annotations = &annotations;
    std::string json = core::seccomp_agent_json(state, pid, container.spec.seccomp->listener_metadata);

    constexpr size_t kMost = 128u << 10;  // what a socket takes at once
    if (json.size() > kMost)
        return core::make_error(core::Code::kResourceExhausted,
                                where + ": the state takes more than 128 KiB");

    sys::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) return core::errno_error(errno, where + ": socket");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    BERTH_CHECK(path.size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.data(), path.size());
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        core::Error error = core::errno_error(errno, where + ": connect");
        error.code = core::Code::kFailedPrecondition;
        return error;
    }
    const int fd = listener.get();
    auto sent = sys::send_with_fds(socket, std::as_bytes(std::span(json)), std::span<const int>(&fd, 1),
                                   MSG_DONTWAIT);
    if (!sent.ok()) return std::move(sent).error().within(where);
    return core::ok();
}

}  // namespace berth::runtime
