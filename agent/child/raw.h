// System calls without libc: no errno, no cancellation points, no locks. Each returns what the kernel
// returned, so -EPERM and the like for a failure.
#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/time_types.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

// Linux 6.6; not in Debian 12's headers. The number is the same everywhere.
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

namespace berth::child::raw {

#if defined(__x86_64__)
inline long syscall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result = number;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
inline long syscall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
#error "no raw system calls for this machine"
#endif

// A pointer or an unsigned number as the kernel takes it.
inline long word(const void* pointer) {
    return static_cast<long>(reinterpret_cast<uintptr_t>(pointer));
}
inline long word(uint64_t number) {
    return static_cast<long>(number);
}

// For results that are 0, a small number or -errno.
inline int number(long result) {
    return static_cast<int>(result);
}

inline int close(int fd) {
    return number(syscall(SYS_close, fd));
}

// Closes what `fd` holds, if anything, and marks it empty.
inline void drop(int& fd) {
    if (fd >= 0) close(fd);
    fd = -1;
}

inline int openat2(int directory, const char* path, uint64_t flags, uint64_t mode, uint64_t resolve) {
    open_how how{};
    how.flags = flags | O_CLOEXEC;
    how.mode = mode;
    how.resolve = resolve;
    return number(syscall(SYS_openat2, directory, word(path), word(&how), sizeof(how)));
}

inline int openat(int directory, const char* path, int flags, unsigned mode = 0) {
    return number(syscall(SYS_openat, directory, word(path), flags | O_CLOEXEC, static_cast<long>(mode)));
}

inline long read(int fd, void* buffer, size_t size) {
    return syscall(SYS_read, fd, word(buffer), word(size));
}
inline long write(int fd, const void* buffer, size_t size) {
    return syscall(SYS_write, fd, word(buffer), word(size));
}

inline int prctl(int option, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0) {
    return number(syscall(SYS_prctl, option, word(a), word(b), word(c), word(d)));
}

[[noreturn]] inline void exit_group(int status) {
    while (true) syscall(SYS_exit_group, status);
}

}  // namespace berth::child::raw
