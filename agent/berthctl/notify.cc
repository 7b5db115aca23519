#include "agent/berthctl/notify.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "agent/core/text.h"
#include "agent/sys/socket.h"

namespace berth::ctl {

namespace {

constexpr int kBarrierMs = 30'000;  // as others: a manager may not know of barriers
constexpr size_t kMessageBytes = 4096;

core::Result<socklen_t> fill_address(sockaddr_un& address, std::string_view name) {
    address.sun_family = AF_UNIX;
    if (name.size() >= sizeof(address.sun_path)) return core::errno_error(ENAMETOOLONG, std::string(name));
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name.starts_with('@')) address.sun_path[0] = '\0';
    // An abstract name is as long as the address.
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() +
                                  (name.starts_with('@') ? 0 : 1));
}

core::Status make_one(const std::string& path) {
    if (::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return core::ok();
    return core::errno_error(errno, "NOTIFY_SOCKET: " + path);
}

}  // namespace

bool has_assignment(std::string_view message, std::string_view assignment) {
    for (std::string_view line : core::split(message, '\n')) {
        if (line == assignment) return true;
    }
    return false;
}

Notify::Notify(std::string folder) {
    const char* text = ::getenv("NOTIFY_SOCKET");
    if (text == nullptr || (text[0] != '/' && text[0] != '@') || text[1] == '\0') return;
    folder_ = std::move(folder);
    manager_ = text;
    target_ = text[0] == '/' ? text : "/run/notify";
    while (target_.ends_with('/')) target_.pop_back();
}

core::Status Notify::make_folder() {
    if (!is_wanted()) return core::ok();
    BERTH_TRY(make_one(folder_.substr(0, folder_.rfind('/'))));
    BERTH_TRY(make_one(folder_));
    std::string inner = folder_ + "/notify";
    if (::mkdir(inner.c_str(), 0755) == 0) {
        made_ = true;
    } else if (errno != EEXIST) {
        return core::errno_error(errno, "NOTIFY_SOCKET: " + inner);
    }
    return core::ok();
}

core::Status Notify::listen() {
    if (!is_wanted()) return core::ok();
    std::string inner = folder_ + "/notify";
    sys::UniqueFd folder(::open(inner.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid() && errno == ENOENT) {
        folder_.clear();
        return core::ok();
    }
    if (!folder.valid()) return core::errno_error(errno, "NOTIFY_SOCKET: " + inner);
    // Not by the path itself: an address has room for 107 bytes.
    std::string name = core::format("/proc/self/fd/%d/notify", folder.get());
    ::unlink(name.c_str());
    sockaddr_un address{};
    BERTH_ASSIGN(socklen_t length, fill_address(address, name));
    socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // Whatever user the process is of.
    if (!socket_.valid() || ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::chmod(name.c_str(), 0777) != 0) {
        return core::errno_error(errno, "NOTIFY_SOCKET: " + inner + "/notify");
    }
    return core::ok();
}

core::Status Notify::tell(std::string_view text, int passed) const {
    sockaddr_un address{};
    BERTH_ASSIGN(socklen_t length, fill_address(address, manager_));
    sys::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
        return core::errno_error(errno, "NOTIFY_SOCKET " + manager_);
    return sys::send_with_fds(socket, std::as_bytes(std::span(text)),
                              std::span<const int>(&passed, passed < 0 ? 0 : 1));
}

core::Status Notify::receive() {
    char buffer[kMessageBytes];
    ssize_t count = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return core::errno_error(errno, "NOTIFY_SOCKET");
    if (count <= 0 || !has_assignment(std::string_view(buffer, static_cast<size_t>(count)), "READY=1"))
        return core::ok();
    socket_.reset();
    ready_ = true;
    return tell("READY=1");
}

void Notify::progress() {
    if (!socket_.valid()) return;
    core::Status taken = receive();
    if (!taken.ok()) std::fprintf(stderr, "berthctl: warning: %s\n", taken.error().message.c_str());
}

// The manager knows senders by their process: it must still be there when the message is looked at, which the
// end of the pipe says.
core::Status Notify::tell_leaving(uint32_t pid) const {
    BERTH_TRY(tell(core::format("MAINPID=%u", pid)));
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return core::errno_error(errno, "NOTIFY_SOCKET: pipe2");
    sys::UniqueFd read_end(ends[0]);
    sys::UniqueFd write_end(ends[1]);
    BERTH_TRY(tell("BARRIER=1", write_end.get()));
    write_end.reset();
    pollfd item = {read_end.get(), POLLIN, 0};
    ::poll(&item, 1, kBarrierMs);
    return core::ok();
}

core::Status Notify::wait_ready(uint32_t pid) {
    if (!socket_.valid()) return core::ok();
    sys::UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process.valid() && errno == ESRCH) return core::ok();
    if (!process.valid()) return core::errno_error(errno, core::format("pidfd_open %u", pid));
    for (;;) {
        pollfd items[] = {{socket_.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
        if (::poll(items, 2, -1) < 0 && errno != EINTR) return core::errno_error(errno, "poll");
        if (items[0].revents != 0) BERTH_TRY(receive());
        if (ready_) return tell_leaving(pid);
        if (items[0].revents == 0 && items[1].revents != 0) return core::ok();
    }
}

void Notify::undo() {
    if (made_) remove_folder(folder_);
    made_ = false;
}

void Notify::remove_folder(const std::string& folder) {
    if (folder.empty() || ::access(folder.c_str(), F_OK) != 0) return;
    ::unlink((folder + "/notify/notify").c_str());
    ::rmdir((folder + "/notify").c_str());
    ::rmdir(folder.c_str());
}

}  // namespace berth::ctl
