// Stdio over connections to the host: a unix socket is the host here.
#include "agent/runtime/host_relay.h"

#include <doctest/doctest.h>
#include <sys/un.h>

#include "tests/support/runtime/stream_guest.h"

using namespace berth;
using runtime::HostRelay;
using runtime::StreamId;
using runtime::StreamKind;
using Guest = test::StreamGuest;

namespace {

// Listens on abstract sockets whose names are ports; a port that nobody listens on refuses.
std::string address_of(uint32_t port) {
    return "berth-test-" + std::to_string(getpid()) + "-" + std::to_string(port);
}

sockaddr_un unix_address(uint32_t port, socklen_t& length) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::string name = address_of(port);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return address;
}

core::Result<sys::UniqueFd> connect_to_unix(uint32_t port) {
    sys::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    socklen_t length = 0;
    sockaddr_un address = unix_address(port, length);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
        return core::errno_error(errno, "connect");
    }
    return fd;
}

class Host {
 public:
    explicit Host(uint32_t port)
        : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
        HostRelay::connect_to_host = connect_to_unix;
        socklen_t length = 0;
        sockaddr_un address = unix_address(port, length);
        REQUIRE(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
        REQUIRE(listen(listener_.get(), 8) == 0);
    }
    bool accept() {
        int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) socket = sys::UniqueFd(fd);
        return fd >= 0;
    }
    // Takes what came; true when the other end has closed.
    bool receive(size_t limit = SIZE_MAX) {
        char buffer[65'536];
        while (limit > 0) {
            ssize_t got = recv(socket.get(), buffer, std::min(limit, sizeof(buffer)), MSG_DONTWAIT);
            if (got <= 0) return got == 0;
            text.append(buffer, static_cast<size_t>(got));
            limit -= static_cast<size_t>(got);
        }
        return false;
    }
    sys::UniqueFd socket;
    std::string text;

 private:
    sys::UniqueFd listener_;
};

// The outcome of when_connected(), once there is one.
struct Outcome {
    explicit Outcome(runtime::ProcessStdio& stdio) {
        stdio.when_connected(
            [this](core::Status status) { text = status.ok() ? "ok" : status.error().message; });
    }
    std::string text;
};

std::string some_bytes(size_t count) {
    std::string bytes(count, 0);
    for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(test::pattern(i));
    return bytes;
}

}  // namespace

TEST_CASE("output and input go over their own connections, to their ends") {
    Host out(1), in(2);
    Guest guest;
    auto stdio = guest.make({.in = "vsock://2", .out = "vsock://1"});
    Outcome outcome(*stdio);
    guest.turn_until([&] { return outcome.text == "ok"; });
    REQUIRE(out.accept());
    REQUIRE(in.accept());
    sys::UniqueFd to = test::take_child(*stdio, 1), from = test::take_child(*stdio, 0);
    stdio->close_child_fds();
    fcntl(to.get(), F_SETFL, O_NONBLOCK);
    fcntl(from.get(), F_SETFL, O_NONBLOCK);
    // More than all buffers on the way hold; the host reads slowly, the process too.
    const std::string bytes = some_bytes(3'000'000);
    size_t written = 0, sent = 0;
    std::string read_back;
    guest.turn_until([&] {
        for (int i = 0; i < 50; ++i) {
            ssize_t done =
                write(to.get(), bytes.data() + written, std::min<size_t>(bytes.size() - written, 70'000));
            if (done > 0) written += static_cast<size_t>(done);
            done = send(in.socket.get(), bytes.data() + sent, std::min<size_t>(bytes.size() - sent, 90'000),
                        MSG_DONTWAIT | MSG_NOSIGNAL);
            if (done > 0) sent += static_cast<size_t>(done);
            char buffer[30'000];
            done = read(from.get(), buffer, sizeof(buffer));
            if (done > 0) read_back.append(buffer, static_cast<size_t>(done));
            out.receive(50'000);
            guest.turns(2);
        }
        return out.text.size() == bytes.size() && read_back.size() == bytes.size();
    });
    CHECK(out.text == bytes);
    CHECK(read_back == bytes);
    in.socket.reset();
    char byte = 0;
    guest.turn_until([&] { return read(from.get(), &byte, 1) == 0; });
    to.reset();
    guest.turn_until([&] { return out.receive(); });
    CHECK(guest.store.fds.empty());
}

TEST_CASE("a host that does not listen is told by field and port") {
    Host host(3);
    Guest guest;
    auto stdio = guest.make({.in = {}, .out = "vsock://3", .err = "vsock://4"});
    Outcome outcome(*stdio);
    guest.turn_until([&] { return !outcome.text.empty(); });
    CHECK(outcome.text == "stderr: vsock://4: connect: ECONNREFUSED");
    guest.table->discard_process("web", "");
    CHECK(guest.store.fds.empty());
    REQUIRE(host.accept());
    guest.turn_until([&] { return host.receive(); });
}

TEST_CASE("who goes before the connection stands is not called") {
    Host host(5);
    Guest guest;
    auto stdio = guest.make({.in = {}, .out = "vsock://5"});
    bool is_called = false;
    stdio->when_connected([&](core::Status) { is_called = true; });
    CHECK_FALSE(is_called);
    stdio.reset();
    guest.turns(10);
    CHECK_FALSE(is_called);
}

TEST_CASE("a host that closes ends the process's pipe; a process that closes ends the connection") {
    Host out(6), in(7);
    Guest guest;
    auto stdio = guest.make({.in = "vsock://7", .out = "vsock://6"});
    Outcome outcome(*stdio);
    guest.turn_until([&] { return outcome.text == "ok"; });
    REQUIRE((out.accept() && in.accept()));
    sys::UniqueFd to = test::take_child(*stdio, 1);
    stdio->close_child_fds();  // of stdin the only reader
    out.socket.reset();
    guest.turn_until([&] {
        ssize_t done = write(to.get(), "x", 1);
        return done < 0 && errno == EPIPE;
    });
    test::write_text(in.socket.get(), "nobody reads this");
    guest.turn_until([&] { return in.receive(); });
}

TEST_CASE("CloseIO delivers what the host had sent before it") {
    Host in(8);
    Guest guest;
    auto stdio = guest.make({.in = "vsock://8"});
    Outcome outcome(*stdio);
    guest.turn_until([&] { return outcome.text == "ok"; });
    REQUIRE(in.accept());
    sys::UniqueFd from = test::take_child(*stdio, 0);
    stdio->close_child_fds();
    fcntl(from.get(), F_SETFL, O_NONBLOCK);
    const std::string bytes = some_bytes(150'000);
    size_t sent = 0;
    std::string seen;
    // All that the socket takes at once is more than the pipe does.
    ssize_t done = send(in.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    REQUIRE(done > 0);
    sent = static_cast<size_t>(done);
    REQUIRE(stdio->close_stdin().ok());
    guest.turn_until([&] {
        char buffer[10'000];
        ssize_t got = read(from.get(), buffer, sizeof(buffer));
        if (got > 0) seen.append(buffer, static_cast<size_t>(got));
        return got == 0;
    });
    CHECK(seen == bytes.substr(0, sent));
    CHECK(guest.store.fds.empty());
}

TEST_CASE("the next agent goes on where the last one was; a delete is drained") {
    Host out(9);
    Guest guest;
    auto stdio = guest.make({.in = {}, .out = "vsock://9"});
    Outcome outcome(*stdio);
    guest.turn_until([&] { return outcome.text == "ok"; });
    REQUIRE(out.accept());
    sys::UniqueFd to = test::take_child(*stdio, 1);
    stdio.reset();
    fcntl(to.get(), F_SETFL, O_NONBLOCK);
    const std::string bytes = some_bytes(1'500'000);
    size_t written = 0;
    bool is_deleted = false;
    SUBCASE("while it runs") {}
    SUBCASE("deleted") {
        is_deleted = true;
    }
    for (int life = 0; out.text.size() < bytes.size() && life < 2000; ++life) {
        ssize_t done =
            write(to.get(), bytes.data() + written, std::min<size_t>(bytes.size() - written, 100'000));
        if (done > 0) written += static_cast<size_t>(done);
        guest.turns(3);
        out.receive(40'000);
        if (life % 7 == 3) guest.restart();
        if (written == bytes.size()) {
            to.reset();
            if (is_deleted) guest.table->remove_process("web", "");
            is_deleted = false;
        }
    }
    CHECK(out.text == bytes);
    guest.turn_until([&] { return out.receive(); });
    guest.turn_until([&] { return guest.store.fds.empty(); });
    CHECK(guest.lost.empty());
}

TEST_CASE("a namesake takes the place of what is not drained") {
    Host out(10);
    Guest guest;
    std::string lost;
    for (int round = 0; round < 2; ++round) {
        auto stdio = guest.make({.in = {}, .out = "vsock://10"});
        Outcome outcome(*stdio);
        guest.turn_until([&] { return outcome.text == "ok"; });
        fcntl(stdio->child_fd(1), F_SETFL, O_NONBLOCK);
        // Until the host's socket and the pipe are full: it accepts nothing.
        const std::string bytes = some_bytes(60'000);
        for (int i = 0; i < 200; ++i) {
            (void)!write(stdio->child_fd(1), bytes.data(), bytes.size());
            guest.turns(2);
        }
        stdio.reset();
        guest.table->remove_process("web", "");
        CHECK(guest.store.fds.contains("d/web/vsock//out/sock"));
        CHECK(guest.lost.empty() == (round == 0));
    }
    CHECK(guest.lost.starts_with("stdout of \"web\" "));
    guest.table->on_lost = {};
}

TEST_CASE("not with a terminal") {
    Guest guest;
    auto made = guest.table->make_stdio("web", "", {.in = {}, .out = "vsock://1", .terminal = true});
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().code == core::Code::kUnimplemented);
    CHECK(made.error().message == "stdout \"vsock://1\": with a terminal");
}
