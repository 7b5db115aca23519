#include "agent/sys/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
// After sys/socket.h, whose sockaddr it needs.
#include <linux/vm_sockets.h>

#include <cerrno>
#include <cstring>

#include "agent/core/text.h"

namespace berth::sys {

using core::errno_error;

core::Result<UniqueFd> listen_vsock(uint32_t port) {
    std::string where = core::format("vsock port %u", port);
    UniqueFd fd(::socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return errno_error(errno, where + ": socket");
    sockaddr_vm address{};
    address.svm_family = AF_VSOCK;
    address.svm_cid = VMADDR_CID_ANY;
    address.svm_port = port;
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        return errno_error(errno, where + ": bind");
    }
    if (::listen(fd.get(), SOMAXCONN) != 0) return errno_error(errno, where + ": listen");
    return fd;
}

namespace {

// Removes a socket that nobody listens on.
core::Status clear_stale_socket(const sockaddr_un& address, const std::string& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) {
        return errno == ENOENT ? core::ok() : core::Status(errno_error(errno, path));
    }
    if (!S_ISSOCK(status.st_mode)) {
        return core::make_error(core::Code::kAlreadyExists, path + ": exists and is not a socket");
    }
    UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!probe.valid()) return errno_error(errno, path + ": socket");
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
        errno == EAGAIN) {
        return core::make_error(core::Code::kAlreadyExists, path + ": another process serves it");
    }
    if (errno != ECONNREFUSED) return errno_error(errno, path + ": connect");
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errno_error(errno, path + ": unlink");
    return core::ok();
}

}  // namespace

core::Result<UniqueFd> listen_unix(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return core::invalid(path + ": too long for a socket's path");
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    BERTH_TRY(clear_stale_socket(address, path));
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return errno_error(errno, path + ": socket");
    // The mode of the new inode comes from the socket's own (fchmod before bind), so it is never open to
    // others.
    if (::fchmod(fd.get(), 0600) != 0) return errno_error(errno, path + ": fchmod");
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        return errno_error(errno, path + ": bind");
    }
    if (::chmod(path.c_str(), 0600) != 0) return errno_error(errno, path + ": chmod");
    if (::listen(fd.get(), SOMAXCONN) != 0) return errno_error(errno, path + ": listen");
    return fd;
}

}  // namespace berth::sys
