#include "agent/berthctl/passing.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "agent/core/text.h"
#include "agent/sys/socket.h"

namespace berth::ctl {

namespace {

constexpr int kFirstExtra = 3;
constexpr uint32_t kMostExtra = 180;  // a plan has room for 200 descriptors, its own counted

// Whatever we have opened ourselves is close-on-exec, what we were given is not.
bool is_open(int fd) {
    int flags = ::fcntl(fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

core::Result<sys::UniqueFd> connect_to(const std::string& path, std::string_view what) {
    sys::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    std::string where = std::string(what) + " " + path;
    if (!socket.valid()) return core::errno_error(errno, where);
    // A longer path than a socket's address has room for is reached by its folder's descriptor.
    std::string name = path;
    sys::UniqueFd folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (name.size() >= sizeof(address.sun_path)) {
        size_t slash = name.rfind('/');
        if (slash == std::string::npos) return core::errno_error(ENAMETOOLONG, where);
        folder.reset(::open(name.substr(0, slash + 1).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        if (!folder.valid()) return core::errno_error(errno, where);
        name = core::format("/proc/self/fd/%d/", folder.get()) + name.substr(slash + 1);
        if (name.size() >= sizeof(address.sun_path)) return core::errno_error(ENAMETOOLONG, where);
    }
    std::memcpy(address.sun_path, name.data(), name.size());
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
        return core::errno_error(errno, where);
    return socket;
}

// As sd_listen_fds() has it, but for LISTEN_PID: a wrapper between the service manager and us is common.
core::Result<uint32_t> listen_count() {
    const char* text = ::getenv("LISTEN_FDS");
    if (text == nullptr || *text == '\0') return uint32_t{0};
    auto count = core::parse_number<uint32_t>(text);
    if (!count || *count > kMostExtra)
        return core::invalid("LISTEN_FDS " + core::quoted(text) +
                             core::format(": must be a number up to %u", kMostExtra));
    return *count;
}

}  // namespace

std::string Passing::add(int fd) {
    descriptors_.push_back(fd);
    return core::format("fd:%zu", descriptors_.size() - 1);
}

void Passing::add_stdio(bool with_stdin) {
    for (int fd = with_stdin ? 0 : 1; fd <= 2; ++fd) {
        if (is_open(fd)) stdio[fd] = add(fd);
    }
}

core::Status Passing::add_preserved(const Arguments& arguments, bool listen) {
    uint32_t activated = 0;
    if (listen) {
        BERTH_ASSIGN(activated, listen_count());
    }
    uint32_t preserved = 0;
    if (arguments.has("preserve-fds")) {
        std::string_view text = arguments.value("preserve-fds");
        auto count = core::parse_number<uint32_t>(text);
        if (!count || *count + activated > kMostExtra) {
            return core::invalid("--preserve-fds " + core::quoted(text) +
                                 core::format(": must be a number up to %u", kMostExtra));
        }
        preserved = *count;
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < activated + preserved; ++i) {
        auto fd = static_cast<int>(i) + kFirstExtra;
        if (!is_open(fd)) {
            continue;
        }
        if (i >= activated) found++;
        files_.push_back({static_cast<uint32_t>(fd), add(fd)});
    }
    if (preserved > 0 && found == 0) {
        return core::errno_error(
            EBADF, core::format("--preserve-fds: unable to stat preserved-fd 0 (of %u)", preserved));
    }
    if (activated > 0) {
        environment.push_back(core::format("LISTEN_FDS=%u", activated));
        environment.push_back("LISTEN_PID=1");
        const char* names = ::getenv("LISTEN_FDNAMES");
        if (names != nullptr) environment.push_back(std::string("LISTEN_FDNAMES=") + names);
    }
    return core::ok();
}

core::Status Passing::connect_console(const Arguments& arguments) {
    BERTH_ASSIGN(console_socket_,
                 connect_to(std::string(arguments.value("console-socket")), "--console-socket"));
    console = add(console_socket_.get());
    return core::ok();
}

core::Status write_pid_file(std::string_view path, uint32_t pid) {
    std::string target(path);
    size_t slash = target.rfind('/');
    size_t name_at = slash == std::string::npos ? 0 : slash + 1;
    std::string temporary = target.substr(0, name_at) + core::format(".%u.", pid) + target.substr(name_at);
    ::unlink(temporary.c_str());
    sys::UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.valid()) return core::errno_error(errno, "--pid-file " + target);
    std::string text = core::format("%u", pid);
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::rename(temporary.c_str(), target.c_str()) != 0) {
        core::Error error = core::errno_error(errno, "--pid-file " + target);
        ::unlink(temporary.c_str());
        return error;
    }
    return core::ok();
}

core::Status send_pidfd(std::string_view path, uint32_t pid) {
    sys::UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) return core::errno_error(errno, core::format("pidfd_open %u", pid));
    BERTH_ASSIGN(sys::UniqueFd socket, connect_to(std::string(path), "--pidfd-socket"));
    constexpr std::string_view kText = "pidfd";
    const int fd = pidfd.get();
    return sys::send_with_fds(socket, std::as_bytes(std::span(kText)), std::span<const int>(&fd, 1));
}

}  // namespace berth::ctl
