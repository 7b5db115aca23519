// Small files of the kernel (procfs, sysfs, cgroupfs) and of images, whole.
#pragma once

#include <fcntl.h>

#include <string>
#include <string_view>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::sys {

// All of the file below `directory` (AT_FDCWD: the working directory), at most `limit_bytes`: a larger one is
// RESOURCE_EXHAUSTED. Message: "read PATH: ENOENT". May block as long as the file does.
core::Result<std::string> read_small_file(FdRef directory, const char* path, size_t limit_bytes);
inline core::Result<std::string> read_small_file(const char* path, size_t limit_bytes) {
    return read_small_file(FdRef(AT_FDCWD), path, limit_bytes);
}

// One write(2) of `text` to an existing file. Message: "write PATH: EINVAL".
core::Status write_existing_file(FdRef directory, const char* path, std::string_view text);
inline core::Status write_existing_file(const char* path, std::string_view text) {
    return write_existing_file(FdRef(AT_FDCWD), path, text);
}

// mkdir with exactly `mode` (no umask); an existing directory is fine and keeps its mode. Message: "mkdir
// PATH: EROFS".
core::Status make_directory(const char* path, mode_t mode);

}  // namespace berth::sys
