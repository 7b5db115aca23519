#include "agent/service/connection.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <cstring>
#include <string>

#include "tests/support/service/server_fixture.h"

namespace berth::service {
namespace {

using test::ServerFixture;
using test::TestClient;

constexpr int64_t kMs = 1'000'000;

std::string frame(uint32_t length, uint32_t id, uint8_t type, uint8_t flags) {
    auto header =
        wire::encode_frame_header({.length = length, .stream_id = id, .type = type, .flags = flags});
    return std::string(header.begin(), header.end());
}

// Sends bytes with the descriptors on the first of them.
bool send_with(int socket, std::string_view bytes, const std::vector<int>& fds) {
    iovec piece{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
    return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::string request(uint32_t id, std::string method, std::string payload = "") {
    wire::TtrpcRequest request;
    request.method = std::move(method);
    request.payload = std::move(payload);
    return wire::encode_request_frame(id, 0, request).value();
}

int open_descriptors() {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

TEST_CASE("calls are answered, and replies overtake parked ones") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    CHECK(client.call(1, "Park"));
    CHECK(client.call(3, "Fail"));
    CHECK(client.call(5, "Echo", "five"));
    TestClient::Answer answer = client.answer();
    CHECK(answer.header.stream_id == 3);
    CHECK(answer.response.code == core::Code::kNotFound);
    CHECK(answer.response.message == "no such thing");
    CHECK(client.answer().response.payload == "five");
    CHECK(fixture.handler.parked[0]->service == "S");
    CHECK(fixture.handler.parked[0]->deadline_ns == 0);
    fixture.handler.parked[0]->reply("one");
    CHECK(!fixture.handler.parked[0]->alive());
    fixture.handler.parked[0]->reply("one again");
    fixture.handler.parked[0]->fail(core::invalid("late"));
    answer = client.answer();
    CHECK(answer.header.stream_id == 1);
    CHECK(answer.response.payload == "one");
    CHECK(client.echo(7, "seven") == "seven");
    CHECK(fixture.handler.ended.empty());
}

TEST_CASE("several requests in one write, one request in many") {
    ServerFixture fixture;
    TestClient client(fixture);
    REQUIRE(client.handshake());
    std::string bytes;
    for (uint32_t id = 1; id < 201; id += 2) bytes += request(id, "Echo", std::to_string(id));
    CHECK(client.send(bytes));
    for (uint32_t id = 1; id < 201; id += 2) CHECK(client.answer().response.payload == std::to_string(id));
    for (char byte : request(201, "Echo", "slow")) {
        CHECK(client.send(std::string_view(&byte, 1)));
        fixture.settle();
    }
    CHECK(client.answer().response.payload == "slow");
    std::string large(3'000'000, 'l');
    CHECK(client.echo(203, large) == large);
}

TEST_CASE("a deadline is answered, and whoever parked the call is told") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    CHECK(client.call(1, "Slow", "", 0, 10'000 * kMs));
    CHECK(client.call(3, "Slower", "", 0, 400 * kMs));
    CHECK(client.call(5, "Quick", "", 0, 300 * kMs));
    CHECK(client.call(7, "Forever"));
    CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 4; }));
    for (const auto& call : fixture.handler.parked) {
        if (call->method == "Slow") call->reply("in time");
    }
    CHECK(client.answer().response.payload == "in time");
    TestClient::Answer answer = client.answer();
    CHECK(answer.header.stream_id == 5);
    CHECK(answer.response.code == core::Code::kDeadlineExceeded);
    CHECK(answer.response.message == "Quick: the call's deadline passed");
    CHECK(client.answer().header.stream_id == 3);
    REQUIRE(fixture.handler.ended.size() == 2);
    CHECK(fixture.handler.ended[0] == std::make_pair(std::string("Quick"), core::Code::kDeadlineExceeded));
    CHECK(fixture.handler.ended[1].first == "Slower");
    for (const auto& call : fixture.handler.parked) CHECK(call->alive() == (call->method == "Forever"));
}

TEST_CASE("a closed connection ends its parked calls, once") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    CHECK(client.call(1, "Wait"));
    CHECK(client.call(3, "Subscribe", "", 1, 3'600'000 * kMs));
    CHECK(client.call(5, "Answered"));
    CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 3; }));
    CHECK(fixture.handler.parked[1]->is_stream);
    fixture.handler.parked[2]->reply("");
    client.hang_up();
    CHECK(fixture.spin([&] { return fixture.handler.ended.size() == 2; }));
    CHECK(fixture.handler.ended[0] == std::make_pair(std::string("Wait"), core::Code::kCancelled));
    CHECK(fixture.handler.ended[1].first == "Subscribe");
    for (const auto& call : fixture.handler.parked) {
        CHECK(!call->alive());
        call->reply("into the void");
        CHECK(!call->send("into the void"));
        call->finish();
    }
    fixture.settle();
    CHECK(fixture.handler.ended.size() == 2);
    CHECK(fixture.server->control_connections() == 0);
}

TEST_CASE("server streams: messages, empty ones too, then an end or an error") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    CHECK(client.call(1, "Good", "", 1));
    CHECK(client.call(3, "Bad", "", 1));
    CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 2; }));
    Call& good = *fixture.handler.parked[0];
    Call& bad = *fixture.handler.parked[1];
    CHECK(good.send("first"));
    CHECK(good.send(""));
    CHECK(bad.send("only"));
    bad.fail(core::make_error(core::Code::kOutOfRange, "gone"));
    good.finish();
    struct Want {
        uint32_t id;
        uint8_t type;
        uint8_t flags;
        std::string body;
    };
    for (const Want& want : {Want{1, 3, 0, "first"}, Want{1, 3, 0, ""}, Want{3, 3, 0, "only"}}) {
        TestClient::Answer answer = client.answer();
        CHECK(answer.header.stream_id == want.id);
        CHECK(answer.header.type == want.type);
        CHECK(answer.header.flags == want.flags);
        CHECK(answer.body == want.body);
    }
    TestClient::Answer answer = client.answer();
    CHECK(answer.header.type == 2);
    CHECK(answer.response.code == core::Code::kOutOfRange);
    answer = client.answer();
    CHECK(answer.header.stream_id == 1);
    CHECK(answer.header.type == 3);
    CHECK(answer.header.flags == 5);
    CHECK(answer.header.length == 0);
    CHECK(good.queued_bytes() == 0);
}

TEST_CASE("data on a unary stream ends its call; on a dead one it is refused") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    CHECK(client.call(1, "Wait"));
    CHECK(client.send(frame(0, 1, 3, 5)));
    TestClient::Answer answer = client.answer();
    CHECK(answer.response.code == core::Code::kInvalidArgument);
    CHECK(answer.response.message == "ttrpc: data on stream 1, whose method takes none");
    CHECK(fixture.handler.ended.size() == 1);
    CHECK(client.send(frame(0, 1, 3, 5)));
    CHECK(client.answer().response.message == "ttrpc: data on stream 1, which is not open");
    CHECK(client.echo(3, "x") == "x");
}

TEST_CASE("refused requests leave the connection open; an oversized one is answered and closes it") {
    ServerFixture fixture;
    TestClient client(fixture);
    TestClient bystander(fixture);
    REQUIRE(client.handshake());
    REQUIRE(bystander.handshake());
    CHECK(client.call(2, "Echo"));
    CHECK(client.answer().response.code == core::Code::kInvalidArgument);
    CHECK(client.send(frame(1, 1, 1, 0) + "\x0A"));
    CHECK(client.answer().response.message == "ttrpc: undecodable request");
    CHECK(client.send(frame(3, 9, 77, 0) + "xyz"));
    CHECK(client.call(1, "Wait"));
    CHECK(client.echo(3, "x") == "x");
    CHECK(client.send(frame(limits::kTtrpcMessageBytes + 1, 5, 1, 0)));
    TestClient::Answer answer = client.answer();
    CHECK(answer.header.stream_id == 5);
    CHECK(answer.response.code == core::Code::kResourceExhausted);
    CHECK(client.is_closed());
    CHECK(fixture.handler.ended.size() == 1);
    CHECK(bystander.echo(1, "x") == "x");
}

TEST_CASE("1,024 parked calls; one more is refused, and none of them disturbs the others") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    uint32_t id = 1;
    for (size_t i = 0; i < limits::kOpenStreamsPerConnection; i++, id += 2) CHECK(client.call(id, "Wait"));
    CHECK(client.call(id, "Wait"));
    TestClient::Answer answer = client.answer();
    CHECK(answer.header.stream_id == id);
    CHECK(answer.response.code == core::Code::kResourceExhausted);
    TestClient other(fixture);
    CHECK(other.echo(1, "x") == "x");
    fixture.handler.parked[17]->reply("done");
    CHECK(client.answer().response.payload == "done");
    CHECK(client.echo(id, "x") == "x");
}

TEST_CASE("a client that never reads is refused, then dropped; others do not notice") {
    ServerFixture fixture;
    TestClient stuck(fixture);
    TestClient other(fixture);
    REQUIRE(stuck.handshake());
    REQUIRE(other.handshake());
    // 4 answers of 3 MB: the third does not fit 8 MiB any more, whatever the socket holds.
    for (uint32_t id = 1; id < 9; id += 2) CHECK(stuck.call(id, "Big", "3000000"));
    fixture.settle();
    CHECK(other.echo(1, "x") == "x");
    CHECK(fixture.server->control_connections() == 2);
    // Refusals pile up until the slack is gone.
    std::string flood;
    for (int i = 0; i < 1000; i++) flood += frame(0, 2, 1, 0);
    bool is_dropped = false;
    for (int i = 0; i < 100 && !is_dropped; i++) {
        is_dropped = !stuck.send(flood);
        fixture.settle();
        CHECK(other.echo(static_cast<uint32_t>(3 + 2 * i), "x") == "x");
    }
    CHECK(is_dropped);
    CHECK(fixture.server->control_connections() == 1);
}

TEST_CASE("answers that do not fit the queue become RESOURCE_EXHAUSTED") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    for (uint32_t id = 1; id < 9; id += 2) CHECK(client.call(id, "Big", "3000000"));
    fixture.spin([&] { return fixture.handler.handled == 4; });
    int large = 0;
    int refused = 0;
    for (int i = 0; i < 4; i++) {
        TestClient::Answer answer = client.answer();
        large += answer.response.payload.size() == 3'000'000;
        refused += answer.response.code == core::Code::kResourceExhausted;
        if (answer.response.code == core::Code::kResourceExhausted) {
            CHECK(answer.response.message == "ttrpc: earlier answers on this connection wait to be read");
        }
    }
    CHECK(large == 2);
    CHECK(refused == 2);
    CHECK(client.echo(9, "x") == "x");
}

TEST_CASE("a subscriber that does not read gets false, room for one marker, and an end") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    CHECK(client.call(1, "Subscribe", "", 1));
    CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 1; }));
    Call& call = *fixture.handler.parked[0];
    std::string message(1000, 'e');
    size_t sent = 0;
    while (call.send(message)) {
        sent++;
        REQUIRE(sent < 10'000);
        if (sent % 50 == 0) fixture.settle();
    }
    CHECK(call.queued_bytes() <= limits::kSubscriberQueueBytes);
    CHECK(call.queued_bytes() > limits::kSubscriberQueueBytes - 2000);
    CHECK(call.alive());
    CHECK(!call.send(std::string(limits::kStreamMarkerBytes + 1, 'x')));
    CHECK(call.send("marker"));
    CHECK(!call.send("second marker"));
    call.finish();
    for (size_t i = 0; i < sent; i++) REQUIRE(client.answer().body == message);
    CHECK(client.answer().body == "marker");
    CHECK(client.answer().header.flags == 5);
    CHECK(client.echo(3, "x") == "x");
}

TEST_CASE("one message above the subscriber's bound goes out when nothing waits") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    CHECK(client.call(1, "Subscribe", "", 1));
    CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 1; }));
    CHECK(fixture.handler.parked[0]->send(std::string(2'000'000, 'e')));
    CHECK(!fixture.handler.parked[0]->send("e"));
    CHECK(client.answer().body.size() == 2'000'000);
}

TEST_CASE("descriptors ride on the first byte of their request") {
    ServerFixture fixture(ListenerKind::kLocal);
    TestClient client(fixture);
    int pipe_fds[2];
    REQUIRE(pipe2(pipe_fds, O_CLOEXEC) == 0);
    // The very first request, and one after others in the same burst.
    CHECK(send_with(client.fd(), request(1, "One", std::string(100'000, 'p')), {pipe_fds[0]}));
    CHECK(client.send(request(3, "None")));
    CHECK(send_with(client.fd(), request(5, "Two"), {pipe_fds[0], pipe_fds[1]}));
    CHECK(client.send(request(7, "None")));
    CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 4; }));
    size_t want[] = {1, 0, 2, 0};
    for (size_t i = 0; i < 4; i++) CHECK(fixture.handler.parked[i]->descriptors.size() == want[i]);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    Call& two = *fixture.handler.parked[2];
    CHECK((fcntl(two.descriptors[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(write(two.descriptors[1].get(), "z", 1) == 1);
    char byte = 0;
    CHECK(read(fixture.handler.parked[0]->descriptors[0].get(), &byte, 1) == 1);
    CHECK(byte == 'z');
}

TEST_CASE(
    "descriptors of a refused request are closed; inside a frame or with a hello they end the connection") {
    ServerFixture fixture(ListenerKind::kLocal);
    {
        TestClient client(fixture);
        CHECK(client.echo(1, "x") == "x");
        int before = open_descriptors();
        CHECK(send_with(client.fd(), request(2, "Even"), {0, 0, 0}));
        CHECK(client.answer().response.code == core::Code::kInvalidArgument);
        CHECK(open_descriptors() == before);
        CHECK(client.call(3, "Plain"));
        CHECK(fixture.spin([&] { return fixture.handler.parked.size() == 1; }));
        CHECK(fixture.handler.parked[0]->descriptors.empty());
    }
    {
        TestClient client(fixture);
        std::string bytes = request(1, "Split");
        CHECK(client.send(bytes.substr(0, 12)));
        fixture.settle();
        CHECK(send_with(client.fd(), bytes.substr(12), {0}));
        CHECK(client.is_closed());
    }
    {
        TestClient client(fixture);
        CHECK(send_with(client.fd(), "BERTH", {0}));
        CHECK(client.is_closed());
    }
    {
        ServerFixture handshake;
        TestClient client(handshake);
        REQUIRE(client.handshake());
        CHECK(send_with(client.fd(), request(1, "Remote"), {0}));
        CHECK(handshake.spin([&] { return handshake.handler.parked.size() == 1; }));
        CHECK(handshake.handler.parked[0]->descriptors.empty());
    }
}

TEST_CASE("a handler may close its own connection") {
    class Closer final : public CallHandler {
     public:
        void handle(std::shared_ptr<Call> call) override {
            server->close_all_but(nullptr);
            CHECK(!call->alive());
            call->reply("nobody");
        }
        Server* server = nullptr;
    };
    ServerFixture fixture;
    Closer closer;
    test::RecordingGate gate;
    Server server(*fixture.loop, fixture.config, fixture.keys, closer, gate);
    closer.server = &server;
    sys::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un any{.sun_family = AF_UNIX, .sun_path = {}};
    REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof any.sun_family) == 0);
    fixture.length = sizeof fixture.address;
    REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&fixture.address), &fixture.length) == 0);
    REQUIRE(listen(fd.get(), 5) == 0);
    server.add_listener(ListenerKind::kLocal, std::move(fd));
    TestClient client(fixture);
    CHECK(client.send(request(1, "A") + request(3, "B")));
    CHECK(client.is_closed());
    server.close_all();
    CHECK(fixture.spin([&] { return server.idle(); }));
}

}  // namespace
}  // namespace berth::service
