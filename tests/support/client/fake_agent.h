// An agent's end of connections, played by a test in a thread of its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/auth/handshake.h"
#include "agent/sys/fd.h"
#include "agent/wire/stream_frame.h"
#include "agent/wire/ttrpc_frame.h"

namespace berth::test {

// A unix socket in a directory that is removed with it.
class FakeListener {
 public:
    FakeListener();
    ~FakeListener();
    const std::string& path() const { return path_; }
    sys::UniqueFd accept();  // blocking

 private:
    std::string directory_;
    std::string path_;
    sys::UniqueFd fd_;
};

// A connected pair; `near` is non-blocking as the client's are, `far` blocks.
struct Pair {
    sys::UniqueFd near;
    sys::UniqueFd far;
};
Pair make_pair();

// Blocking; false at the end of the connection.
bool read_all(const sys::UniqueFd& fd, void* into, size_t bytes);
bool write_all(const sys::UniqueFd& fd, std::string_view bytes);
bool write_all(const sys::UniqueFd& fd, std::span<const std::byte> bytes);
std::string read_to_end(const sys::UniqueFd& fd);

inline constexpr uint8_t kSecretByte = 7;  // the secret is 32 of them
struct FakeHandshake {
    uint32_t generation = 1;
    uint8_t secret_byte = kSecretByte;
};
// The whole handshake; false when the client's proof is wrong or the connection ended.
bool shake_hands(const sys::UniqueFd& fd, const FakeHandshake& options, auth::HelloFields* hello = nullptr);

struct FakeRequest {
    uint32_t id = 0;
    uint8_t flags = 0;
    wire::TtrpcRequest message;
};
// `ok` false at the end.
bool read_request(const sys::UniqueFd& fd, FakeRequest& request);

struct FakeFrame {
    wire::StreamHeader header;
    std::string payload;
};
bool read_stream_frame(const sys::UniqueFd& fd, FakeFrame& frame);
uint64_t ack_of(const FakeFrame& frame);
bool write_stream_data(const sys::UniqueFd& fd, std::string_view data);

}  // namespace berth::test
