#include "tests/support/client/fake_agent.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "agent/core/check.h"

namespace berth::test {

FakeListener::FakeListener() {
    char directory[] = "/tmp/berth-client-XXXXXX";
    BERTH_CHECK(::mkdtemp(directory) != nullptr);
    directory_ = directory;
    path_ = directory_ + "/socket";
    fd_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    BERTH_CHECK(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    BERTH_CHECK(::listen(fd_.get(), 16) == 0);
}

FakeListener::~FakeListener() {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
}

sys::UniqueFd FakeListener::accept() {
    return sys::UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

Pair make_pair() {
    int fds[2];
    BERTH_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    BERTH_CHECK(::fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
    return {sys::UniqueFd(fds[0]), sys::UniqueFd(fds[1])};
}

bool read_all(const sys::UniqueFd& fd, void* into, size_t bytes) {
    char* at = static_cast<char*>(into);
    while (bytes > 0) {
        ssize_t count = ::read(fd.get(), at, bytes);
        if (count <= 0) return false;
        at += count;
        bytes -= static_cast<size_t>(count);
    }
    return true;
}

bool write_all(const sys::UniqueFd& fd, std::string_view bytes) {
    while (!bytes.empty()) {
        ssize_t count = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count <= 0) return false;
        bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
}

bool write_all(const sys::UniqueFd& fd, std::span<const std::byte> bytes) {
    return write_all(fd, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::string read_to_end(const sys::UniqueFd& fd) {
    std::string text;
    char buffer[4096];
    for (;;) {
        ssize_t count = ::read(fd.get(), buffer, sizeof(buffer));
        if (count <= 0) return text;
        text.append(buffer, static_cast<size_t>(count));
    }
}

bool shake_hands(const sys::UniqueFd& fd, const FakeHandshake& options, auth::HelloFields* hello) {
    auth::Key secret;
    secret.fill(options.secret_byte);
    auth::Hello message{};
    if (!read_all(fd, message.data(), message.size())) return false;
    auth::ServerHandshake server;
    if (server.on_hello(message) != auth::HandshakeFailure::kNone) return false;
    if (hello != nullptr) *hello = server.hello();
    auth::ChallengeFields fields;
    fields.generation = options.generation;
    fields.server_nonce.fill(0x22);
    fields.instance_id.fill(0x33);
    const auth::Challenge& challenge = server.challenge(fields);
    if (!write_all(fd, std::as_bytes(std::span(challenge)))) return false;
    auth::Proof proof{};
    if (!read_all(fd, proof.data(), proof.size())) return false;
    auth::Key key = auth::derive_class_key(secret, server.hello().channel_class);
    auth::Proof answer{};
    if (server.on_proof(proof, key, answer) != auth::HandshakeFailure::kNone) return false;
    return write_all(fd, std::as_bytes(std::span(answer)));
}

bool read_request(const sys::UniqueFd& fd, FakeRequest& request) {
    std::array<uint8_t, wire::kFrameHeaderBytes> bytes{};
    if (!read_all(fd, bytes.data(), bytes.size())) return false;
    wire::FrameHeader header = wire::decode_frame_header(bytes);
    std::string payload(header.length, '\0');
    if (!read_all(fd, payload.data(), payload.size())) return false;
    core::Result<wire::TtrpcRequest> message = wire::decode_request(payload);
    if (!message.ok()) return false;
    request = {header.stream_id, header.flags, std::move(*message)};
    return true;
}

bool read_stream_frame(const sys::UniqueFd& fd, FakeFrame& frame) {
    std::array<uint8_t, wire::kStreamHeaderBytes> bytes{};
    if (!read_all(fd, bytes.data(), bytes.size())) return false;
    core::Result<wire::StreamHeader> header = wire::decode_stream_header(bytes);
    if (!header.ok()) return false;
    frame.header = *header;
    frame.payload.assign(header->length, '\0');
    return read_all(fd, frame.payload.data(), frame.payload.size());
}

uint64_t ack_of(const FakeFrame& frame) {
    BERTH_CHECK(frame.header.type == wire::StreamFrameType::kAck && frame.payload.size() == 8);
    uint64_t value = 0;
    for (char c : frame.payload) value = value << 8 | static_cast<uint8_t>(c);
    return value;
}

bool write_stream_data(const sys::UniqueFd& fd, std::string_view data) {
    auto header = wire::encode_stream_header(
        {.type = wire::StreamFrameType::kData, .length = static_cast<uint32_t>(data.size())});
    return write_all(fd, std::as_bytes(std::span(header))) && write_all(fd, data);
}

}  // namespace berth::test
