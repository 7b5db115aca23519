// A server on a real loop and real sockets, with a handler and a gate that record, and clients that the test
// drives by hand.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/auth/handshake.h"
#include "agent/loop/loop.h"
#include "agent/service/listener.h"
#include "agent/wire/ttrpc_frame.h"

namespace berth::test {

// Methods: Echo replies its payload; Big replies as many bytes as its payload says; Fail fails; anything else
// is kept in `parked`.
class RecordingHandler final : public service::CallHandler {
 public:
    void handle(std::shared_ptr<service::Call> call) override {
        handled++;
        last_access = call->access;
        last_was_local = call->is_local;
        if (call->method == "Echo") return call->reply(call->payload);
        if (call->method == "Big") return call->reply(std::string(std::stoul(call->payload), 'x'));
        if (call->method == "Fail")
            return call->fail(core::make_error(core::Code::kNotFound, "no such thing"));
        call->on_end([this, method = call->method](core::Code why) { ended.emplace_back(method, why); });
        parked.push_back(std::move(call));
    }
    std::vector<std::shared_ptr<service::Call>> parked;
    std::vector<std::pair<std::string, core::Code>> ended;
    int handled = 0;
    service::AccessClass last_access{};
    bool last_was_local = false;
};

class RecordingGate final : public service::StreamGate {
 public:
    core::Result<service::TicketGrant> check_ticket(std::span<const uint8_t, 32> ticket) override {
        checks++;
        std::string key(ticket.begin(), ticket.end());
        if (tickets.erase(key) == 0) return core::make_error(core::Code::kNotFound, "ticket");
        return service::TicketGrant{.stream_key = 7};
    }
    void attach(service::TicketGrant grant, sys::UniqueFd socket) override {
        last_key = grant.stream_key;
        sockets.push_back(std::move(socket));
    }
    size_t attached() const override { return sockets.size() + pretended; }
    std::map<std::string, int> tickets;
    std::vector<sys::UniqueFd> sockets;
    size_t pretended = 0;
    uint64_t last_key = 0;
    int checks = 0;
};

inline auth::Key test_secret() {
    auth::Key secret;
    secret.fill(0x42);
    return secret;
}

class ServerFixture {
 public:
    explicit ServerFixture(service::ListenerKind kind = service::ListenerKind::kUnix) {
        keys = auth::derive_class_keys(test_secret());
        config.has_secret = 1;
        config.generation = 3;
        config.instance_id[0] = 9;
        server = std::make_unique<service::Server>(*loop, config, keys, handler, gate);
        listen(kind);
    }
    ~ServerFixture() {
        handler.parked.clear();
        server->close_all();
        CHECK(spin([&] { return server->idle(); }));
    }

    void listen(service::ListenerKind kind) {
        sys::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un any{.sun_family = AF_UNIX, .sun_path = {}};
        REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof any.sun_family) == 0);  // autobind
        length = sizeof address;
        REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
        REQUIRE(::listen(fd.get(), 512) == 0);
        server->add_listener(kind, std::move(fd));
    }

    // Turns the loop until `done`, at least once and for at most `ms`.
    template <typename Done>
    bool spin(Done done, int ms = 2000) {
        for (int i = 0; i <= ms * 2; i++) {
            for (int turn = 0; turn < 3; turn++) loop->turn(false);
            if (done()) return true;
            usleep(500);
        }
        return false;
    }
    void settle() {
        for (int i = 0; i < 20; i++) loop->turn(false);
    }

    std::unique_ptr<loop::Loop> loop = loop::Loop::create(256).value();
    core::AgentConfig config;
    core::ClassKeys keys;
    RecordingHandler handler;
    RecordingGate gate;
    std::unique_ptr<service::Server> server;
    sockaddr_un address{};
    socklen_t length = 0;
};

// A client whose every read lets the server run.
class TestClient {
 public:
    explicit TestClient(ServerFixture& fixture) : fixture_(fixture) {
        fd_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        REQUIRE(connect(fd_.get(), reinterpret_cast<sockaddr*>(&fixture.address), fixture.length) == 0);
    }
    int fd() const { return fd_.get(); }
    void hang_up() { fd_.reset(); }

    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            ssize_t count = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (count < 0 && errno == EAGAIN) {
                fixture_.settle();
                continue;
            }
            if (count <= 0) return false;
            bytes.remove_prefix(static_cast<size_t>(count));
        }
        return true;
    }
    template <size_t N>
    bool send(const std::array<uint8_t, N>& bytes) {
        return send(std::string_view(reinterpret_cast<const char*>(bytes.data()), N));
    }

    // Exactly `count` bytes; fewer when the server closed or took too long.
    std::string receive(size_t count, int ms = 2000) {
        fixture_.spin(
            [&] {
                pull();
                return inbox_.size() >= count || is_closed_;
            },
            ms);
        std::string bytes = inbox_.substr(0, count);
        inbox_.erase(0, bytes.size());
        return bytes;
    }
    template <size_t N>
    bool receive(std::array<uint8_t, N>& bytes) {
        std::string text = receive(N);
        std::copy(text.begin(), text.end(), bytes.begin());
        return text.size() == N;
    }
    // The server closed without another byte.
    bool is_closed(int ms = 2000) {
        fixture_.spin(
            [&] {
                pull();
                return is_closed_;
            },
            ms);
        return is_closed_ && inbox_.empty();
    }

    // The handshake up to message 4; false when the server closed before.
    bool handshake(auth::ChannelClass channel_class = auth::ChannelClass::kControl,
                   const auth::Ticket& ticket = {}, const auth::Key& secret = test_secret()) {
        auth::Nonce nonce;
        nonce.fill(1);
        auth::ClientHandshake client(auth::derive_class_key(secret, channel_class), channel_class, nonce,
                                     ticket, {});
        auth::Challenge challenge;
        if (!send(client.hello()) || !receive(challenge)) return false;
        core::Result<auth::Proof> proof = client.on_challenge(challenge);
        auth::Proof server_proof;
        if (!proof.ok() || !send(*proof) || !receive(server_proof)) return false;
        last_identity = client.identity();
        return client.on_server_proof(server_proof).ok();
    }

    bool call(uint32_t id, std::string method, std::string payload = "", uint8_t flags = 0,
              int64_t timeout = 0) {
        wire::TtrpcRequest request;
        request.service = "S";
        request.method = std::move(method);
        request.payload = std::move(payload);
        request.timeout_nano = timeout;
        return send(wire::encode_request_frame(id, flags, request).value());
    }
    struct Answer {
        wire::FrameHeader header;
        std::string body;
        wire::TtrpcResponse response;  // when the frame is one
    };
    Answer answer() {
        Answer answer;
        std::array<uint8_t, 10> header{};
        if (!receive(header)) return answer;
        answer.header = wire::decode_frame_header(header);
        answer.body = receive(answer.header.length);
        if (answer.header.type == 2) answer.response = wire::decode_response(answer.body).value();
        return answer;
    }
    std::string echo(uint32_t id, std::string text) {
        if (!call(id, "Echo", std::move(text))) return "(closed)";
        return answer().response.payload;
    }
    auth::ServerIdentity last_identity;

 private:
    void pull() {
        char buffer[65536];
        for (;;) {
            ssize_t count = recv(fd_.get(), buffer, sizeof buffer, 0);
            if (count > 0) {
                inbox_.append(buffer, static_cast<size_t>(count));
                continue;
            }
            if (count == 0 || errno != EAGAIN) is_closed_ = true;
            return;
        }
    }
    ServerFixture& fixture_;
    sys::UniqueFd fd_;
    std::string inbox_;
    bool is_closed_ = false;
};

}  // namespace berth::test
