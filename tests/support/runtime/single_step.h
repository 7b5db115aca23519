// Runs code in a child process one machine instruction at a time: what a SIGKILL between any two of them
// would leave in shared memory can be looked at.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <span>

namespace berth::test {

// Zeroed memory that children share.
class SharedMemory {
 public:
    explicit SharedMemory(size_t size) : size_(size) {
        memory_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(memory_ != MAP_FAILED);
    }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory() { munmap(memory_, size_); }
    std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
    void* memory_;
    size_t size_;
};

// Calls `on_step` after every instruction of `code`. Returns how many there were.
template <typename Code, typename OnStep>
size_t single_step(Code code, OnStep on_step) {
    fflush(stdout);  // or the child prints what waits there once more
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        raise(SIGSTOP);
        code();
        _exit(0);
    }
    size_t steps = 0;
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSTOPPED(status));
    while (WIFSTOPPED(status)) {
        ++steps;
        if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) break;
        if (waitpid(child, &status, 0) != child) break;
        on_step();
    }
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    return steps;
}

}  // namespace berth::test
