#include "agent/service/listener.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/service/server_fixture.h"

namespace berth::service {
namespace {

using auth::ChannelClass;
using test::ServerFixture;
using test::TestClient;

auth::Ticket ticket_of(uint8_t value) {
    auth::Ticket ticket;
    ticket.fill(value);
    return ticket;
}
std::string text_of(const auth::Ticket& ticket) {
    return std::string(ticket.begin(), ticket.end());
}
auth::Hello hello_of(ChannelClass channel_class, const auth::Ticket& ticket = {}) {
    auth::Nonce nonce;
    nonce.fill(1);
    return auth::encode_hello(channel_class, nonce, ticket);
}

TEST_CASE("a client that knows the secret is served, in its class") {
    ServerFixture fixture;
    TestClient control(fixture);
    REQUIRE(control.handshake());
    CHECK(control.last_identity.generation == 3);
    CHECK(control.last_identity.instance_id[0] == 9);
    CHECK(control.last_identity.seen_cid == auth::kNoAddress);
    CHECK(control.last_identity.seen_port == auth::kNoAddress);
    CHECK(control.echo(1, "hello") == "hello");
    CHECK(fixture.handler.last_access == AccessClass::kControl);
    CHECK(!fixture.handler.last_was_local);
    TestClient monitor(fixture);
    REQUIRE(monitor.handshake(ChannelClass::kReadOnly));
    CHECK(monitor.echo(1, "again") == "again");
    CHECK(fixture.handler.last_access == AccessClass::kReadOnly);
    CHECK(fixture.server->control_connections() == 2);
    CHECK(fixture.server->unauthenticated() == 0);
    monitor.hang_up();
    CHECK(fixture.spin([&] { return fixture.server->control_connections() == 1; }));
}

TEST_CASE("a wrong secret is closed after message 3, without a byte") {
    ServerFixture fixture;
    auth::Key wrong = test::test_secret();
    wrong[31] ^= 1;
    for (ChannelClass channel_class : {ChannelClass::kControl, ChannelClass::kReadOnly}) {
        TestClient client(fixture);
        CHECK(!client.handshake(channel_class, {}, wrong));
        CHECK(client.is_closed());
    }
    CHECK(fixture.server->unauthenticated() == 0);
    CHECK(fixture.handler.handled == 0);
}

TEST_CASE("a handshake that is cut off at any byte leaves nothing") {
    ServerFixture fixture;
    auth::Hello hello = hello_of(ChannelClass::kControl);
    std::string bytes(hello.begin(), hello.end());
    for (size_t length = 0; length < bytes.size() + 32; length++) {
        CAPTURE(length);
        TestClient client(fixture);
        CHECK(client.send(bytes.substr(0, length)));
        if (length >= bytes.size()) {
            CHECK(client.receive(80).size() == 80);
            CHECK(client.send(std::string(length - bytes.size(), 'p')));
        }
        CHECK(fixture.spin([&] { return fixture.server->unauthenticated() == 1; }));
        client.hang_up();
        CHECK(fixture.spin([&] { return fixture.server->unauthenticated() == 0; }));
    }
    TestClient client(fixture);
    CHECK(client.handshake());
}

TEST_CASE("a handshake may come in single bytes") {
    ServerFixture fixture;
    TestClient client(fixture);
    auth::Nonce nonce{};
    auth::ClientHandshake handshake(auth::derive_class_key(test::test_secret(), ChannelClass::kControl),
                                    ChannelClass::kControl, nonce, {}, {});
    for (uint8_t byte : handshake.hello()) {
        CHECK(client.send(std::array<uint8_t, 1>{byte}));
        fixture.settle();
    }
    auth::Challenge challenge;
    REQUIRE(client.receive(challenge));
    auth::Proof client_proof = *handshake.on_challenge(challenge);
    for (uint8_t byte : client_proof) {
        CHECK(client.send(std::array<uint8_t, 1>{byte}));
        fixture.settle();
    }
    auth::Proof proof;
    REQUIRE(client.receive(proof));
    CHECK(handshake.on_server_proof(proof).ok());
    CHECK(client.echo(1, "x") == "x");
}

TEST_CASE("what is no hello is closed without a byte") {
    ServerFixture fixture;
    auth::Hello no_magic = hello_of(ChannelClass::kControl);
    no_magic[7] = 'x';
    auth::Hello no_class = hello_of(ChannelClass::kControl);
    no_class[8] = 4;
    auth::Hello no_suite = hello_of(ChannelClass::kControl);
    no_suite[9] = 2;
    for (const auth::Hello& hello : {no_magic, no_class, no_suite, hello_of(ChannelClass::kStream)}) {
        TestClient client(fixture);
        CHECK(client.send(hello));
        CHECK(client.is_closed());
    }
    for (const char* first : {"G", "\x16\x03\x01", "b", "C"}) {
        TestClient client(fixture);
        CHECK(client.send(std::string_view(first)));
        CHECK(client.is_closed());
    }
    // ttrpc without a handshake
    TestClient client(fixture);
    CHECK(client.call(1, "Echo"));
    CHECK(client.is_closed());
    CHECK(fixture.handler.handled == 0);
}

TEST_CASE("server nonces differ") {
    ServerFixture fixture;
    TestClient first(fixture);
    TestClient second(fixture);
    CHECK(first.send(hello_of(ChannelClass::kControl)));
    CHECK(second.send(hello_of(ChannelClass::kControl)));
    CHECK(first.receive(80).substr(16, 32) != second.receive(80).substr(16, 32));
}

TEST_CASE("32 silent connections at most, two seconds each; a newcomer always gets in") {
    ServerFixture fixture;
    std::vector<std::unique_ptr<TestClient>> silent;
    for (int i = 0; i < 100; i++) silent.push_back(std::make_unique<TestClient>(fixture));
    CHECK(fixture.spin([&] { return fixture.server->unauthenticated() == 32; }));
    int closed = 0;
    for (std::unique_ptr<TestClient>& client : silent) closed += client->is_closed(0);
    CHECK(closed == 68);
    TestClient client(fixture);
    CHECK(client.handshake());
    CHECK(client.echo(1, "x") == "x");
    CHECK(fixture.spin([&] { return fixture.server->unauthenticated() == 0; }, 3000));
    for (std::unique_ptr<TestClient>& other : silent) CHECK(other->is_closed());
    CHECK(client.echo(3, "y") == "y");
}

TEST_CASE("64 control connections, read-only ones included; the next is closed after message 3") {
    ServerFixture fixture;
    std::vector<std::unique_ptr<TestClient>> clients;
    for (size_t i = 0; i < limits::kControlConnections; i++) {
        clients.push_back(std::make_unique<TestClient>(fixture));
        REQUIRE(clients.back()->handshake(i % 2 == 0 ? ChannelClass::kControl : ChannelClass::kReadOnly));
    }
    CHECK(fixture.server->control_connections() == 64);
    TestClient extra(fixture);
    CHECK(!extra.handshake());
    CHECK(extra.is_closed());
    clients[5]->hang_up();
    CHECK(fixture.spin([&] { return fixture.server->control_connections() == 63; }));
    TestClient again(fixture);
    CHECK(again.handshake());
    CHECK(clients[6]->echo(1, "x") == "x");
}

TEST_CASE("streams: a ticket is used up by a right proof, and by nothing else") {
    ServerFixture fixture;
    auth::Ticket ticket = ticket_of(5);
    fixture.gate.tickets[text_of(ticket)] = 1;
    auth::Key wrong = test::test_secret();
    wrong[0] ^= 1;
    TestClient thief(fixture);
    CHECK(!thief.handshake(ChannelClass::kStream, ticket, wrong));
    CHECK(fixture.gate.checks == 0);
    TestClient unknown(fixture);
    CHECK(!unknown.handshake(ChannelClass::kStream, ticket_of(6)));
    CHECK(unknown.is_closed());
    CHECK(fixture.gate.checks == 1);

    fixture.gate.pretended = limits::kStreamConnections;
    TestClient turned_away(fixture);
    CHECK(!turned_away.handshake(ChannelClass::kStream, ticket));
    CHECK(fixture.gate.checks == 1);
    fixture.gate.pretended = limits::kStreamConnections - 1;

    TestClient right(fixture);
    CHECK(right.handshake(ChannelClass::kStream, ticket));
    CHECK(right.send("DATA"));
    CHECK(fixture.spin([&] { return fixture.gate.sockets.size() == 1; }));
    CHECK(fixture.gate.last_key == 7);
    char data[8];
    CHECK(recv(fixture.gate.sockets[0].get(), data, sizeof data, 0) == 4);
    CHECK(recv(fixture.gate.sockets[0].get(), data, sizeof data, 0) == -1);  // non-blocking
    fixture.gate.pretended = 0;
    TestClient twice(fixture);
    CHECK(!twice.handshake(ChannelClass::kStream, ticket));
    CHECK(fixture.server->control_connections() == 0);
}

TEST_CASE("without a secret every connection is refused") {
    ServerFixture fixture;
    fixture.config.has_secret = 0;
    TestClient client(fixture);
    CHECK(client.is_closed());
}

TEST_CASE("the local socket: ttrpc at once, streams by ticket alone, no other class") {
    ServerFixture fixture(ListenerKind::kLocal);
    fixture.config.has_secret = 0;
    TestClient client(fixture);
    CHECK(client.echo(1, "hello") == "hello");
    CHECK(fixture.handler.last_was_local);
    CHECK(fixture.handler.last_access == AccessClass::kControl);
    CHECK(client.echo(3, std::string(200'000, 'y')) == std::string(200'000, 'y'));

    auth::Ticket ticket = ticket_of(5);
    fixture.gate.tickets[text_of(ticket)] = 1;
    TestClient stream(fixture);
    CHECK(stream.send(hello_of(ChannelClass::kStream, ticket)));
    CHECK(fixture.spin([&] { return fixture.gate.sockets.size() == 1; }));
    CHECK(send(fixture.gate.sockets[0].get(), "hi", 2, 0) == 2);
    CHECK(stream.receive(2) == "hi");  // no message 2 before it
    TestClient twice(fixture);
    CHECK(twice.send(hello_of(ChannelClass::kStream, ticket)));
    CHECK(twice.is_closed());
    for (ChannelClass other : {ChannelClass::kControl, ChannelClass::kReadOnly}) {
        TestClient refused(fixture);
        CHECK(refused.send(hello_of(other)));
        CHECK(refused.is_closed());
    }
    TestClient garbage(fixture);
    CHECK(garbage.send("x"));
    CHECK(garbage.is_closed());
}

TEST_CASE("the local socket: one who connects long before the first call is kept") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient early(fixture);
    TestClient slow(fixture);
    CHECK(slow.send(std::string(3, '\0')));
    TestClient slow_hello(fixture);
    CHECK(slow_hello.send("BERTH"));
    CHECK(fixture.spin([&] { return fixture.server->unauthenticated() == 0; }, 3000));
    CHECK(fixture.server->control_connections() == 2);
    CHECK(slow_hello.is_closed());
    CHECK(early.echo(1, "x") == "x");
    TestClient later(fixture);
    CHECK(later.echo(1, "x") == "x");
}

// A kVsock listener refuses a peer that has no CID, so the transport's check stands in for the kernel's here.
TEST_CASE("a peer without a CID is nobody on a vsock listener") {
    ServerFixture fixture(ListenerKind::kVsock);
    fixture.config.allow_local_cid = 1;
    fixture.config.auth_host_cid = 1;
    TestClient client(fixture);
    CHECK(client.is_closed());
    CHECK(fixture.server->unauthenticated() == 0);
}

TEST_CASE("close_all_but keeps the connection of one call; handshakes end too") {
    ServerFixture fixture;
    TestClient keep(fixture);
    TestClient other(fixture);
    REQUIRE(keep.handshake());
    REQUIRE(other.handshake());
    TestClient half(fixture);
    CHECK(half.send(hello_of(ChannelClass::kControl)));
    CHECK(half.receive(80).size() == 80);
    CHECK(keep.call(1, "Keep"));
    CHECK(other.call(1, "Other"));
    CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 2; }));
    Call* kept = fixture.handler.parked[fixture.handler.parked[0]->method == "Keep" ? 0 : 1].get();
    fixture.server->close_all_but(kept);
    CHECK(half.is_closed());
    CHECK(other.is_closed());
    CHECK(fixture.spin([&] { return !fixture.handler.ended.empty(); }));
    CHECK(fixture.handler.ended.size() == 1);
    CHECK(fixture.handler.ended[0].first == "Other");
    kept->reply("still here");
    CHECK(keep.answer().response.payload == "still here");
    CHECK(fixture.server->control_connections() == 1);
}

TEST_CASE("keys, generation and instance id hold from the next hello on") {
    ServerFixture fixture;
    TestClient half(fixture);
    CHECK(half.send(hello_of(ChannelClass::kControl)));
    CHECK(half.receive(80).size() == 80);
    auth::Key fresh = test::test_secret();
    fresh[0] ^= 0xFF;
    fixture.keys = auth::derive_class_keys(fresh);
    fixture.config.generation = 4;
    TestClient old(fixture);
    CHECK(!old.handshake());
    TestClient renewed(fixture);
    CHECK(renewed.handshake(ChannelClass::kControl, {}, fresh));
    CHECK(renewed.last_identity.generation == 4);
}

}  // namespace
}  // namespace berth::service
