#include "agent/sys/small_file.h"

#include <sys/stat.h>

#include <cerrno>

#include "agent/core/uninitialized.h"

namespace berth::sys {

using core::errno_error;

core::Result<std::string> read_small_file(FdRef directory, const char* path, size_t limit_bytes) {
    UniqueFd fd(::openat(directory.get(), path, O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) return errno_error(errno, std::string("read ") + path);
    std::string content;
    BERTH_UNINITIALIZED char chunk[4096];
    while (true) {
        ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno_error(errno, std::string("read ") + path);
        if (got == 0) return content;
        content.append(chunk, static_cast<size_t>(got));
        if (content.size() > limit_bytes) {
            return core::make_error(
                core::Code::kResourceExhausted,
                std::string("read ") + path + ": larger than " + std::to_string(limit_bytes) + " bytes");
        }
    }
}

core::Status write_existing_file(FdRef directory, const char* path, std::string_view text) {
    UniqueFd fd(::openat(directory.get(), path, O_WRONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) return errno_error(errno, std::string("write ") + path);
    ssize_t written = 0;
    do {
        written = ::write(fd.get(), text.data(), text.size());
    } while (written < 0 && errno == EINTR);
    if (written < 0) return errno_error(errno, std::string("write ") + path);
    if (static_cast<size_t>(written) != text.size()) return errno_error(EIO, std::string("write ") + path);
    return core::ok();
}

core::Status make_directory(const char* path, mode_t mode) {
    if (::mkdir(path, mode) != 0) {
        if (errno == EEXIST) return core::ok();
        return errno_error(errno, std::string("mkdir ") + path);
    }
    if (::chmod(path, mode) != 0) return errno_error(errno, std::string("mkdir ") + path);
    return core::ok();
}

}  // namespace berth::sys
