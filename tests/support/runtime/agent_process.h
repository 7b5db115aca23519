// An "agent" in a child process that may be killed at any moment, and a "keeper" in the test that holds its
// descriptors: what it stored is there for the next agent.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "agent/runtime/fd_store.h"
#include "agent/sys/fd.h"

namespace berth::test {

inline std::byte pattern(uint64_t offset) {
    return static_cast<std::byte>(((offset * 2654435761u) >> 13 ^ (offset >> 8)) & 0xff);
}

struct Socketpair {
    explicit Socketpair(int type = SOCK_STREAM) {
        int fds[2] = {-1, -1};
        REQUIRE(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) == 0);
        first = sys::UniqueFd(fds[0]);
        second = sys::UniqueFd(fds[1]);
    }
    sys::UniqueFd first, second;
};

// In the agent: sends every call to the keeper's socket. Queued there, it outlives the agent.
class RemoteStore final : public runtime::FdStore {
 public:
    explicit RemoteStore(int socket) : socket_(socket) {}
    void store(std::string_view name, sys::FdRef fd) override { send('s', name, fd.get()); }
    void drop(std::string_view name) override { send('d', name, -1); }

 private:
    void send(char what, std::string_view name, int fd) {
        std::string text(1, what);
        text += name;
        iovec vector{text.data(), text.size()};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = &vector;
        message.msg_iovlen = 1;
        if (fd >= 0) {
            message.msg_control = control;
            message.msg_controllen = sizeof(control);
            cmsghdr* header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sizeof(int));
            std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
        }
        ::sendmsg(socket_, &message, MSG_NOSIGNAL);
    }
    int socket_;
};

// In the test. A forked agent finds `fds` as they are.
class Keeper {
 public:
    std::map<std::string, sys::UniqueFd> fds;
    int agent_end() const { return pair_.second.get(); }

    // Takes what agents have sent so far.
    void receive() {
        std::array<char, 512> text;
        for (;;) {
            iovec vector{text.data(), text.size()};
            alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
            msghdr message{};
            message.msg_iov = &vector;
            message.msg_iovlen = 1;
            message.msg_control = control;
            message.msg_controllen = sizeof(control);
            ssize_t got = recvmsg(pair_.first.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
            if (got <= 0) return;
            std::string name(text.data() + 1, static_cast<size_t>(got) - 1);
            if (text[0] == 's') {
                int fd = -1;
                std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
                fds[name] = sys::UniqueFd(fd);
            } else {
                bool is_prefix = name.back() == '/';
                std::erase_if(fds, [&](const auto& each) {
                    return each.first == name || (is_prefix && each.first.starts_with(name));
                });
            }
        }
    }

 private:
    Socketpair pair_{SOCK_SEQPACKET};
};

// Copies of the keeper's descriptors, for an agent that was forked from the test.
inline sys::UniqueFd copy_fd(const sys::UniqueFd& fd) {
    return sys::UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
}

template <typename Code>
pid_t fork_agent(Code code) {
    fflush(stdout);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        signal(SIGPIPE, SIG_IGN);
        code();
        _exit(0);
    }
    return child;
}

// Runs `code` in a child and kills it at its n-th system call's entry or exit (they alternate). True when it
// was killed, false when it ended before.
template <typename Code>
bool run_until_system_call(size_t n, Code code) {
    pid_t child = fork_agent([&] {
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        raise(SIGSTOP);
        code();
    });
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    for (size_t i = 0; WIFSTOPPED(status) && i < n; ++i) {
        ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
        REQUIRE(waitpid(child, &status, 0) == child);
    }
    if (!WIFSTOPPED(status)) {
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0);
        return false;
    }
    kill(child, SIGKILL);
    REQUIRE(waitpid(child, &status, 0) == child);
    return true;
}

}  // namespace berth::test
