// The loop over the kernel's ring: what the agent relies on, on the kernel that runs the tests.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>

#include "agent/loop/loop.h"
#include "agent/sys/fd.h"

using namespace berth;
using loop::Loop;
using loop::Op;
using loop::Timer;

namespace {

struct Result {
    void on(Op& op, int32_t result) {
        last = result;
        ++count;
        armed = op.more();
    }
    int32_t last = INT32_MIN;
    int count = 0;
    bool armed = false;
    Op op{Op::to<&Result::on>(), this};
};

struct Pair {
    explicit Pair(int type = SOCK_STREAM) {
        int fds[2];
        REQUIRE(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) == 0);
        a = sys::UniqueFd(fds[0]);
        b = sys::UniqueFd(fds[1]);
    }
    sys::UniqueFd a, b;
};

std::unique_ptr<Loop> make_loop() {
    auto made = Loop::create(64);
    REQUIRE(made.ok());
    return std::move(made).value();
}

// Turns until the result has been called `count` times; a watchdog keeps a broken loop from hanging.
void wait_for(Loop& loop, Result& result, int count) {
    bool expired = false;
    struct Watchdog {
        Watchdog(Loop& l, bool& e) : expired(e), timer(l, Timer::to<&Watchdog::fire, Watchdog>(), this) {
            timer.arm_after_ms(5000);
        }
        void fire() { expired = true; }
        bool& expired;
        Timer timer;
    } watchdog{loop, expired};
    while (result.count < count && !expired) loop.turn(true);
    REQUIRE_FALSE(expired);
}

}  // namespace

TEST_CASE("send, recv, and a short recv") {
    auto loop = make_loop();
    Pair pair;
    Result sent, received;
    std::array<std::byte, 64> in{};
    const char text[] = "hello";
    loop->recv(received.op, pair.b.get(), in);
    loop->turn(false);
    CHECK(received.count == 0);
    loop->send(sent.op, pair.a.get(), std::as_bytes(std::span(text, 5)));
    wait_for(*loop, received, 1);
    wait_for(*loop, sent, 1);
    CHECK(sent.last == 5);
    CHECK(received.last == 5);
    CHECK(std::memcmp(in.data(), text, 5) == 0);
}

TEST_CASE("sending to a closed peer is EPIPE, not a signal") {
    auto loop = make_loop();
    Pair pair;
    pair.b.reset();
    Result sent;
    std::array<std::byte, 4> data{};
    loop->send(sent.op, pair.a.get(), data);
    wait_for(*loop, sent, 1);
    CHECK(sent.last == -EPIPE);
}

TEST_CASE("cancel of a pending recv and of a pending multishot poll") {
    auto loop = make_loop();
    Pair pair;
    Result recv, poll;
    std::array<std::byte, 4> in{};
    loop->recv(recv.op, pair.a.get(), in);
    loop->poll_multishot(poll.op, pair.b.get(), POLLIN);
    loop->turn(false);
    loop->cancel(recv.op);
    loop->cancel(poll.op);
    wait_for(*loop, recv, 1);
    wait_for(*loop, poll, 1);
    CHECK(recv.last == -ECANCELED);
    CHECK(poll.last == -ECANCELED);
    CHECK_FALSE(poll.op.pending());
}

TEST_CASE("a multishot poll fires again and again") {
    auto loop = make_loop();
    Pair pair;
    Result poll;
    loop->poll_multishot(poll.op, pair.b.get(), POLLIN);
    char byte = 'x';
    for (int i = 1; i <= 3; ++i) {
        REQUIRE(write(pair.a.get(), &byte, 1) == 1);
        wait_for(*loop, poll, i);
        CHECK(poll.last == POLLIN);
        CHECK(poll.armed);
        REQUIRE(read(pair.b.get(), &byte, 1) == 1);
    }
    loop->cancel(poll.op);
    wait_for(*loop, poll, 4);
}

TEST_CASE("multishot accept gives close-on-exec, non-blocking sockets") {
    auto loop = make_loop();
    sys::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(listener.get(), raw, length) == 0);
    REQUIRE(listen(listener.get(), 8) == 0);
    REQUIRE(getsockname(listener.get(), raw, &length) == 0);
    Result accepted, connected;
    loop->accept_multishot(accepted.op, listener.get());
    for (int i = 1; i <= 2; ++i) {
        sys::UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        loop->connect(connected.op, client.get(), raw, length);
        wait_for(*loop, connected, i);
        CHECK(connected.last == 0);
        wait_for(*loop, accepted, i);
        REQUIRE(accepted.last >= 0);
        sys::UniqueFd server(accepted.last);
        CHECK((fcntl(server.get(), F_GETFD) & FD_CLOEXEC) != 0);
        CHECK((fcntl(server.get(), F_GETFL) & O_NONBLOCK) != 0);
        CHECK(accepted.armed);
    }
    loop->cancel(accepted.op);
    wait_for(*loop, accepted, 3);
}

TEST_CASE("recvmsg brings descriptors that are close-on-exec") {
    auto loop = make_loop();
    Pair pair{SOCK_SEQPACKET};
    char data = 'f';
    iovec vector{&data, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    int passed = pair.a.get();
    std::memcpy(CMSG_DATA(header), &passed, sizeof(passed));
    Result sent, received;
    loop->sendmsg(sent.op, pair.a.get(), &message);
    wait_for(*loop, sent, 1);
    REQUIRE(sent.last == 1);
    std::memset(control, 0, sizeof(control));
    message.msg_controllen = sizeof(control);
    loop->recvmsg(received.op, pair.b.get(), &message, 0);
    wait_for(*loop, received, 1);
    REQUIRE(received.last == 1);
    header = CMSG_FIRSTHDR(&message);
    REQUIRE(header != nullptr);
    int got = -1;
    std::memcpy(&got, CMSG_DATA(header), sizeof(got));
    sys::UniqueFd owned(got);
    CHECK((fcntl(got, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("file reads and writes at an offset") {
    auto loop = make_loop();
    sys::UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    Result wrote, got;
    const char text[] = "abcdef";
    std::array<std::byte, 8> in{};
    loop->write(wrote.op, file.get(), std::as_bytes(std::span(text, 6)), 10);
    wait_for(*loop, wrote, 1);
    loop->read(got.op, file.get(), in, 12);
    wait_for(*loop, got, 1);
    CHECK(wrote.last == 6);
    CHECK(got.last == 4);
    CHECK(std::memcmp(in.data(), "cdef", 4) == 0);
}

TEST_CASE("paths are opened, or not, with the flags that were asked for") {
    auto loop = make_loop();
    Result opened, missing;
    open_how how{};
    how.flags = O_PATH | O_CLOEXEC;
    loop->openat2(opened.op, "/proc/self/status", how);
    wait_for(*loop, opened, 1);
    REQUIRE(opened.last >= 0);
    sys::UniqueFd fd(opened.last);
    CHECK((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((fcntl(fd.get(), F_GETFL) & O_PATH) != 0);
    loop->openat2(missing.op, "/proc/self/no-such-file", how);
    wait_for(*loop, missing, 1);
    CHECK(missing.last == -ENOENT);
    how.flags = O_RDONLY | O_CLOEXEC;
    Result read;
    loop->openat2(read.op, "/proc/self/status", how);
    wait_for(*loop, read, 1);
    REQUIRE(read.last >= 0);
    sys::UniqueFd readable(read.last);
    char byte = 0;
    CHECK(::read(readable.get(), &byte, 1) == 1);
}

TEST_CASE("a waiting loop wakes for its timer, not before, and not otherwise") {
    auto loop = make_loop();
    struct Tick {
        explicit Tick(Loop& l) : loop(l), timer(l, Timer::to<&Tick::fire, Tick>(), this) {}
        void fire() { fired_ns = loop.now_ns(); }
        Loop& loop;
        Timer timer;
        int64_t fired_ns = 0;
    } tick{*loop};
    int64_t start = loop->now_ns();
    tick.timer.arm_at_ns(start + 200'000'000);
    int turns = 0;
    for (; tick.fired_ns == 0; ++turns) loop->turn(true);
    CHECK(tick.fired_ns >= start + 200'000'000);
    CHECK(turns == 1);
}

TEST_CASE("many more operations than entries") {
    auto loop = make_loop();
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<std::unique_ptr<Result>> results;
    for (int i = 0; i < 300; ++i) {
        pairs.push_back(std::make_unique<Pair>());
        results.push_back(std::make_unique<Result>());
        loop->poll(results.back()->op, pairs.back()->b.get(), POLLIN);
    }
    char byte = 'x';
    for (auto& pair : pairs) REQUIRE(write(pair->a.get(), &byte, 1) == 1);
    for (auto& result : results) {
        wait_for(*loop, *result, 1);
        CHECK(result->last == POLLIN);
    }
}

TEST_CASE("the ring is not inherited") {
    auto loop = make_loop();
    int rings = 0;
    for (int fd = 3; fd < 64; ++fd) {
        std::array<char, 64> target{};
        std::string path = "/proc/self/fd/" + std::to_string(fd);
        if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) continue;
        if (std::string_view(target.data()) != "anon_inode:[io_uring]") continue;
        ++rings;
        CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    }
    CHECK(rings >= 1);
}
