#include "agent/service/listener_slot.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <string>

#include "tests/support/service/server_fixture.h"

namespace berth::service {
namespace {

using auth::ChannelClass;

// One slot with a peer of the test's choice, at the other end of a socketpair: the transports that a test
// machine does not have differ in nothing else.
class SlotFixture final : public HandshakeSlot::Owner {
 public:
    SlotFixture() {
        config_.has_secret = 1;
        keys_ = auth::derive_class_keys(test::test_secret());
    }
    ~SlotFixture() override {
        slot.close();
        turn();
    }
    const core::AgentConfig& config() const override { return config_; }
    const core::ClassKeys& keys() const override { return keys_; }
    uint64_t next_handshake() override { return ++handshakes; }
    bool has_room(ChannelClass) const override { return room; }
    StreamGate& gate() override { return gate_; }
    void on_control(sys::UniqueFd fd, AccessClass access, const Peer&, std::span<const std::byte> first,
                    std::vector<sys::UniqueFd>) override {
        CHECK(slot.is_free());
        admitted = std::move(fd);
        admitted_access = access;
        admitted_bytes.assign(reinterpret_cast<const char*>(first.data()), first.size());
    }
    void on_stream(TicketGrant grant, sys::UniqueFd fd) override {
        CHECK(slot.is_free());
        gate_.attach(grant, std::move(fd));
    }

    // Gives the slot one end and returns the other.
    sys::UniqueFd connect(const Peer& peer) {
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        slot.replace(sys::UniqueFd(pair[0]), peer);
        return sys::UniqueFd(pair[1]);
    }
    void turn() {
        for (int i = 0; i < 10; i++) loop->turn(false);
    }
    template <typename Bytes>
    void say(const sys::UniqueFd& fd, const Bytes& bytes) {
        CHECK(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
        turn();
    }
    // What came, or "(open)" or "(closed)".
    std::string hear(const sys::UniqueFd& fd) {
        turn();
        char buffer[256];
        ssize_t count = recv(fd.get(), buffer, sizeof buffer, 0);
        if (count > 0) return std::string(buffer, static_cast<size_t>(count));
        return count < 0 && errno == EAGAIN ? "(open)" : "(closed)";
    }

    core::AgentConfig config_;
    core::ClassKeys keys_;
    test::RecordingGate gate_;
    bool room = true;
    uint64_t handshakes = 0;
    sys::UniqueFd admitted;
    AccessClass admitted_access{};
    std::string admitted_bytes;
    std::unique_ptr<loop::Loop> loop = loop::Loop::create(64).value();
    HandshakeSlot slot{*loop, *this};
};

const Peer kHostCid{.cid = 2, .port = 5000, .is_bare = true};
const Peer kVsock{.cid = 2, .port = 5000};

auth::Hello hello_of(ChannelClass channel_class, const auth::Ticket& ticket = {}) {
    return auth::encode_hello(channel_class, auth::Nonce{}, ticket);
}

TEST_CASE("host-cid: a first byte 0 is ttrpc at once, and what was read goes along") {
    SlotFixture fixture;
    sys::UniqueFd client = fixture.connect(kHostCid);
    std::string bytes(25, '\0');
    fixture.say(client, bytes);
    CHECK(fixture.admitted.valid());
    CHECK(fixture.admitted_access == AccessClass::kControl);
    CHECK(fixture.admitted_bytes == bytes);

    fixture.room = false;
    client = fixture.connect(kHostCid);
    fixture.say(client, bytes);
    CHECK(fixture.hear(client) == "(closed)");
}

TEST_CASE("host-cid: a stream needs its ticket and no proof") {
    SlotFixture fixture;
    auth::Ticket ticket;
    ticket.fill(5);
    fixture.gate_.tickets[std::string(ticket.begin(), ticket.end())] = 1;
    fixture.config_.has_secret = 0;
    sys::UniqueFd client = fixture.connect(kHostCid);
    fixture.say(client, hello_of(ChannelClass::kStream, ticket));
    CHECK(fixture.gate_.sockets.size() == 1);
    CHECK(fixture.hear(client) == "(open)");
    client = fixture.connect(kHostCid);
    fixture.say(client, hello_of(ChannelClass::kStream, ticket));
    CHECK(fixture.hear(client) == "(closed)");
}

TEST_CASE("host-cid: the other classes do the handshake, if there is a secret") {
    SlotFixture fixture;
    sys::UniqueFd client = fixture.connect(kHostCid);
    auth::ClientHandshake handshake(auth::derive_class_key(test::test_secret(), ChannelClass::kReadOnly),
                                    ChannelClass::kReadOnly, auth::Nonce{}, {},
                                    {.minimum_generation = 1, .own_cid = 2, .own_port = 5000});
    fixture.say(client, handshake.hello());
    std::string challenge = fixture.hear(client);
    REQUIRE(challenge.size() == 80);
    auth::Challenge bytes;
    std::copy(challenge.begin(), challenge.end(), bytes.begin());
    core::Result<auth::Proof> proof = handshake.on_challenge(bytes);
    REQUIRE(proof.ok());  // the peer's CID and port are in message 2
    fixture.say(client, *proof);
    CHECK(fixture.hear(client).size() == 32);
    CHECK(fixture.admitted_access == AccessClass::kReadOnly);
    CHECK(fixture.admitted_bytes.empty());

    fixture.config_.has_secret = 0;
    for (ChannelClass channel_class : {ChannelClass::kControl, ChannelClass::kReadOnly}) {
        client = fixture.connect(kHostCid);
        fixture.say(client, hello_of(channel_class));
        CHECK(fixture.hear(client) == "(closed)");
    }
}

TEST_CASE("without host-cid a first byte 0 is closed") {
    SlotFixture fixture;
    sys::UniqueFd client = fixture.connect(kVsock);
    fixture.say(client, std::string(10, '\0'));
    CHECK(fixture.hear(client) == "(closed)");
    CHECK(!fixture.admitted.valid());
}

TEST_CASE("a newcomer takes the place of who is there, in every step; of several the last one stays") {
    SlotFixture fixture;
    sys::UniqueFd silent = fixture.connect(kVsock);
    fixture.turn();
    sys::UniqueFd in_hello = fixture.connect(kVsock);
    CHECK(fixture.hear(silent) == "(closed)");
    fixture.say(in_hello, std::string("BERTH"));
    sys::UniqueFd in_proof = fixture.connect(kVsock);
    CHECK(fixture.hear(in_hello) == "(closed)");
    fixture.say(in_proof, hello_of(ChannelClass::kControl));
    CHECK(fixture.hear(in_proof).size() == 80);
    // The kernel has not let go of the old one yet: those who wait for it are replaced at once.
    sys::UniqueFd first = fixture.connect(kVsock);
    sys::UniqueFd second = fixture.connect(kVsock);
    sys::UniqueFd third = fixture.connect(kVsock);
    CHECK(fixture.hear(in_proof) == "(closed)");
    CHECK(fixture.hear(first) == "(closed)");
    CHECK(fixture.hear(second) == "(closed)");
    fixture.say(third, hello_of(ChannelClass::kControl));
    CHECK(fixture.hear(third).size() == 80);
    CHECK(!fixture.slot.is_free());
    fixture.slot.close();
    CHECK(fixture.hear(third) == "(closed)");
    CHECK(fixture.slot.is_free());
}

TEST_CASE("what follows the handshake's bytes is left in the socket") {
    SlotFixture fixture;
    auth::Ticket ticket;
    ticket.fill(5);
    fixture.gate_.tickets[std::string(ticket.begin(), ticket.end())] = 1;
    sys::UniqueFd client = fixture.connect(kHostCid);
    auth::Hello hello = hello_of(ChannelClass::kStream, ticket);
    fixture.say(client, std::string(hello.begin(), hello.end()) + "frame");
    REQUIRE(fixture.gate_.sockets.size() == 1);
    CHECK(fixture.hear(fixture.gate_.sockets[0]) == "frame");
}

TEST_CASE("the local socket is for uid 0 alone") {
    if (geteuid() != 0) {
        MESSAGE("skipped: only root can become somebody else");
        return;
    }
    test::ServerFixture fixture(ListenerKind::kLocal);
    for (uid_t uid : {uid_t{0}, uid_t{65534}}) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (setuid(uid) != 0) _exit(90);
            if (connect(fd, reinterpret_cast<sockaddr*>(&fixture.address), fixture.length) != 0) _exit(91);
            std::string request = wire::encode_request_frame(1, 0,
                                                             {.service = "S",
                                                              .method = "Echo",
                                                              .payload = "x",
                                                              .timeout_nano = 0,
                                                              .containerd_namespace = {}})
                                      .value();
            send(fd, request.data(), request.size(), MSG_NOSIGNAL);
            char byte = 0;
            _exit(recv(fd, &byte, 1, 0) == 1 ? 1 : 0);
        }
        int status = 0;
        CHECK(fixture.spin([&] { return waitpid(child, &status, WNOHANG) == child; }));
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == (uid == 0 ? 1 : 0));
    }
    CHECK(fixture.handler.handled == 1);
}

}  // namespace
}  // namespace berth::service
