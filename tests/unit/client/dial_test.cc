#include "agent/client/dial.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "agent/client/io.h"
#include "tests/support/client/fake_agent.h"

using namespace berth;
using client::Address;
using client::Credentials;
using client::Transport;
using core::Code;

namespace {

Credentials secret_of(uint8_t byte) {
    Credentials credentials;
    credentials.key.emplace();
    credentials.key->key.fill(byte);
    return credentials;
}

constexpr auth::Ticket kTicket = {1, 2, 3};

int64_t soon() {
    return client::deadline_after_ms(20'000);
}

}  // namespace

TEST_CASE("both ends prove the secret") {
    test::FakeListener listener;
    auth::HelloFields hello;
    std::thread agent([&] {
        sys::UniqueFd fd = listener.accept();
        if (test::shake_hands(fd, {.generation = 4}, &hello)) test::write_all(fd, "next");
    });
    Credentials credentials = secret_of(test::kSecretByte);
    credentials.minimum_generation = 4;
    auto connection = client::dial_control({Transport::kUnix, 0, 0, listener.path()}, credentials, soon());
    agent.join();
    REQUIRE(connection.ok());
    CHECK(hello.channel_class == auth::ChannelClass::kControl);
    REQUIRE(connection->identity.has_value());
    CHECK(connection->identity->generation == 4);
    CHECK(connection->identity->instance_id[15] == 0x33);
    // Not a byte behind the handshake was taken.
    std::array<std::byte, 4> next{};
    CHECK(client::read_exactly(connection->fd, next, soon()).ok());
}

TEST_CASE("a stream's ticket goes into the hello, a class 3 key asks for class 3") {
    test::FakeListener listener;
    auth::HelloFields hello;
    auto serve = [&] {
        sys::UniqueFd fd = listener.accept();
        test::shake_hands(fd, {}, &hello);
    };
    Address address{Transport::kUnix, 0, 0, listener.path()};
    {
        std::thread agent(serve);
        CHECK(client::dial_stream(address, secret_of(test::kSecretByte), kTicket, soon()).ok());
        agent.join();
        CHECK(hello.channel_class == auth::ChannelClass::kStream);
        CHECK(hello.ticket == kTicket);
    }
    auth::Key secret;
    secret.fill(test::kSecretByte);
    Credentials monitor;
    monitor.key = auth::parse_key_file(auth::format_read_only_key_file(secret)).value();
    {
        std::thread agent(serve);
        auto connection = client::dial_control(address, monitor, soon());
        agent.join();
        REQUIRE(connection.ok());
        CHECK(connection->channel_class == auth::ChannelClass::kReadOnly);
        CHECK(hello.channel_class == auth::ChannelClass::kReadOnly);
    }
    std::thread agent([&] { (void)listener.accept(); });
    auto stream = client::dial_stream(address, monitor, kTicket, soon());
    agent.join();
    REQUIRE(!stream.ok());
    CHECK(stream.error().code == Code::kPermissionDenied);
}

TEST_CASE("a connection that ends before message 2 is dialed again, after message 3 it is not") {
    test::FakeListener listener;
    Address address{Transport::kUnix, 0, 0, listener.path()};
    {
        std::thread agent([&] {
            (void)listener.accept();  // closed at once
            sys::UniqueFd second = listener.accept();
            char first = 0;
            test::read_all(second, &first, 1);
            second.reset();  // closed with unread bytes: a reset
            sys::UniqueFd third = listener.accept();
            test::shake_hands(third, {});
        });
        CHECK(client::dial_control(address, secret_of(test::kSecretByte), soon()).ok());
        agent.join();
    }
    int accepted = 0;
    std::thread agent([&] {
        sys::UniqueFd fd = listener.accept();
        accepted++;
        test::shake_hands(fd, {.secret_byte = 9});
    });
    auto refused = client::dial_control(address, secret_of(test::kSecretByte), soon());
    agent.join();
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == Code::kPermissionDenied);
    CHECK(refused.error().message == "unix://" + listener.path() + ": authentication refused");
    CHECK(accepted == 1);
}

TEST_CASE("an older generation is refused") {
    test::FakeListener listener;
    std::thread agent([&] {
        sys::UniqueFd fd = listener.accept();
        test::shake_hands(fd, {.generation = 2});
    });
    Credentials credentials = secret_of(test::kSecretByte);
    credentials.minimum_generation = 3;
    auto connection = client::dial_control({Transport::kUnix, 0, 0, listener.path()}, credentials, soon());
    agent.join();
    REQUIRE(!connection.ok());
    CHECK(connection.error().code == Code::kFailedPrecondition);
}

TEST_CASE("the local socket has no handshake, and a stream there is the hello alone") {
    test::FakeListener listener;
    Address address{Transport::kLocal, 0, 0, listener.path()};
    std::string got;
    auto serve = [&] {
        sys::UniqueFd fd = listener.accept();
        got = test::read_to_end(fd);
    };
    {
        std::thread agent(serve);
        // A key that is at hand does not matter here.
        CHECK(client::dial_control(address, secret_of(1), soon()).ok());
        agent.join();
        CHECK(got.empty());
    }
    std::thread agent(serve);
    CHECK(client::dial_stream(address, {}, kTicket, soon()).ok());
    agent.join();
    REQUIRE(got.size() == auth::kHelloBytes);
    auth::Hello hello{};
    std::memcpy(hello.data(), got.data(), hello.size());
    auth::HelloFields fields;
    CHECK(auth::parse_hello(hello, fields) == auth::HandshakeFailure::kNone);
    CHECK(fields.ticket == kTicket);
}

TEST_CASE("a VMM's unix socket is told the port") {
    test::FakeListener listener;
    Address address{Transport::kHvsock, 0, 1023, listener.path()};
    std::string line(13, '\0');
    {
        std::thread agent([&] {
            sys::UniqueFd fd = listener.accept();
            test::read_all(fd, line.data(), line.size());
            test::write_all(fd, "OK 1073741824\n");
            test::shake_hands(fd, {});
        });
        CHECK(client::dial_control(address, secret_of(test::kSecretByte), soon()).ok());
        agent.join();
        CHECK(line == "CONNECT 1023\n");
    }
    for (std::string answer : {std::string("NO\n"), std::string(200, 'x')}) {
        CAPTURE(answer);
        std::thread agent([&] {
            sys::UniqueFd fd = listener.accept();
            test::read_all(fd, line.data(), line.size());
            test::write_all(fd, answer);
        });
        auto connection = client::dial_control(address, secret_of(test::kSecretByte), soon());
        agent.join();
        REQUIRE(!connection.ok());
        CHECK(connection.error().code == Code::kFailedPrecondition);
    }
}

TEST_CASE("nobody there is an error that names the address, at the deadline") {
    int64_t before = client::now_ns();
    auto connection = client::dial_control({Transport::kLocal, 0, 0, "/nonexistent/berth.sock"}, {},
                                           client::deadline_after_ms(100));
    REQUIRE(!connection.ok());
    CHECK(connection.error().message == "/nonexistent/berth.sock: connect: ENOENT");
    CHECK(connection.error().code == Code::kUnavailable);
    CHECK(client::now_ns() - before < 5'000'000'000);
}

TEST_CASE("an agent that says nothing is given up at the deadline") {
    test::FakeListener listener;
    auto connection = client::dial_control({Transport::kUnix, 0, 0, listener.path()}, secret_of(7),
                                           client::deadline_after_ms(50));
    REQUIRE(!connection.ok());
    CHECK(connection.error().code == Code::kDeadlineExceeded);
}

TEST_CASE("key files") {
    char path[] = "/tmp/berth-key-XXXXXX";
    int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    std::string digits(64, 'a');
    REQUIRE(::write(fd, digits.data(), digits.size()) == 64);
    auto credentials = client::read_credentials(path);
    REQUIRE(credentials.ok());
    CHECK(!credentials->key->is_read_only);
    CHECK(credentials->key->key[31] == 0xaa);
    std::string more(1000, 'a');
    REQUIRE(::write(fd, more.data(), more.size()) == 1000);
    CHECK(!client::read_credentials(path).ok());
    ::close(fd);
    ::unlink(path);
    auto missing = client::read_credentials(path);
    REQUIRE(!missing.ok());
    CHECK(missing.error().message == "secret file \"" + std::string(path) + "\": ENOENT");
}
