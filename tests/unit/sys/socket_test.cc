#include "agent/sys/socket.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

using namespace berth::sys;

namespace {

std::span<const std::byte> text_bytes(const char* text) {
    return std::as_bytes(std::span<const char>(text, std::strlen(text)));
}

SocketPair make_pair() {
    auto pair = make_seqpacket_pair();
    REQUIRE(pair.ok());
    return std::move(pair).value();
}

}  // namespace

TEST_CASE("a datagram arrives whole, with its descriptors in order and close-on-exec") {
    SocketPair pair = make_pair();
    int pipes[2];
    REQUIRE(::pipe2(pipes, O_CLOEXEC) == 0);
    UniqueFd read_end(pipes[0]), write_end(pipes[1]);
    const int fds[] = {write_end.get(), read_end.get()};
    REQUIRE(send_with_fds(pair.first, text_bytes("hello"), fds).ok());
    std::array<std::byte, 64> buffer;
    auto received = receive_with_fds(pair.second, buffer);
    REQUIRE(received.ok());
    CHECK(received->bytes == 5);
    CHECK(std::memcmp(buffer.data(), "hello", 5) == 0);
    CHECK_FALSE(received->truncated);
    CHECK_FALSE(received->end);
    REQUIRE(received->fds.size() == 2);
    CHECK((::fcntl(received->fds[0].get(), F_GETFL) & O_ACCMODE) == O_WRONLY);
    CHECK((::fcntl(received->fds[1].get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
    CHECK((::fcntl(received->fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a datagram larger than the buffer is reported, and its descriptors are closed") {
    SocketPair pair = make_pair();
    int pipes[2];
    REQUIRE(::pipe2(pipes, O_CLOEXEC | O_NONBLOCK) == 0);
    UniqueFd read_end(pipes[0]), write_end(pipes[1]);
    const int fds[] = {write_end.get()};
    REQUIRE(send_with_fds(pair.first, text_bytes("0123456789"), fds).ok());
    write_end.reset();
    std::array<std::byte, 4> buffer;
    auto received = receive_with_fds(pair.second, buffer);
    REQUIRE(received.ok());
    CHECK(received->truncated);
    CHECK(received->fds.empty());
    char byte = 0;
    CHECK(::read(read_end.get(), &byte, 1) == 0);  // the last write end is gone
}

TEST_CASE("descriptors lost to a full table are reported as a truncated message") {
    SocketPair pair = make_pair();
    std::vector<int> fds(8, pair.first.get());
    REQUIRE(send_with_fds(pair.first, text_bytes("x"), fds).ok());
    struct rlimit old_limit {};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &old_limit) == 0);
    UniqueFd lowest_free(::dup(0));
    struct rlimit low_limit = old_limit;
    low_limit.rlim_cur = static_cast<rlim_t>(lowest_free.get()) + 2;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low_limit) == 0);
    std::array<std::byte, 4> buffer;
    auto received = receive_with_fds(pair.second, buffer);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &old_limit) == 0);
    REQUIRE(received.ok());
    CHECK(received->truncated);
    CHECK(received->fds.empty());
}

TEST_CASE("the end, an empty socket and a gone peer are told apart") {
    SocketPair pair = make_pair();
    std::array<std::byte, 4> buffer;
    auto empty = receive_with_fds(pair.second, buffer, MSG_DONTWAIT);
    REQUIRE_FALSE(empty.ok());
    CHECK(empty.error().err == EAGAIN);
    CHECK(empty.error().message == "recvmsg: EAGAIN");
    pair.first.reset();
    auto end = receive_with_fds(pair.second, buffer);
    REQUIRE(end.ok());
    CHECK(end->end);
    auto gone = send_with_fds(pair.second, text_bytes("x"), {});
    REQUIRE_FALSE(gone.ok());
    CHECK(gone.error().message == "sendmsg: EPIPE");
}

TEST_CASE("253 descriptors travel in one message, 254 are refused") {
    SocketPair pair = make_pair();
    std::vector<int> fds(kFdsPerMessage, pair.first.get());
    REQUIRE(send_with_fds(pair.first, text_bytes("x"), fds).ok());
    std::array<std::byte, 4> buffer;
    auto received = receive_with_fds(pair.second, buffer);
    REQUIRE(received.ok());
    CHECK(received->fds.size() == kFdsPerMessage);
    fds.push_back(0);
    auto refused = send_with_fds(pair.first, text_bytes("x"), fds);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message == "sendmsg (too many descriptors): EINVAL");
}
