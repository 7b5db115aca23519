// Descriptors that are owned by types.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace berth::sys {

// Owns one descriptor; closes it once (close is never retried: on Linux the number is free even after EINTR)
// and keeps errno.
class UniqueFd {
 public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        if (this != &other) {
            reset(std::exchange(other.fd_, -1));
        }
        return *this;
    }
    ~UniqueFd() { reset(); }

    bool valid() const { return fd_ >= 0; }
    int get() const& { return fd_; }
    int release() { return std::exchange(fd_, -1); }
    void reset(int fd = -1) {
        int old = std::exchange(fd_, fd);
        if (old >= 0) {
            int saved = errno;
            ::close(old);
            errno = saved;
        }
    }

 private:
    int fd_ = -1;
};

// Borrows a descriptor for the length of a call.
class FdRef {
 public:
    FdRef(const UniqueFd& fd) : fd_(fd.get()) {}  // NOLINT(google-explicit-constructor)
    explicit FdRef(int fd) : fd_(fd) {}
    int get() const { return fd_; }

 private:
    int fd_;
};

}  // namespace berth::sys
