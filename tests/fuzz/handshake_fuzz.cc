// Any 80 bytes of hello and 32 of proof: the server never crashes, never lets anybody in, and gives its own
// proof to nobody. Any challenge and proof: the client never believes them. Any file: never a zero key.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "agent/auth/handshake.h"
#include "agent/core/check.h"

namespace {

using namespace berth::auth;

template <size_t N>
std::array<uint8_t, N> take(const uint8_t*& data, size_t& size) {
    std::array<uint8_t, N> bytes{};
    size_t count = std::min(N, size);
    std::copy_n(data, count, bytes.begin());
    data += count;
    size -= count;
    return bytes;
}

void fuzz_server(const uint8_t* data, size_t size) {
    Key secret;
    secret.fill(0x42);
    Hello hello = take<kHelloBytes>(data, size);
    ServerHandshake server;
    if (server.on_hello(hello) != HandshakeFailure::kNone) {
        BERTH_CHECK(server.step() == ServerHandshake::Step::kFailed);
        return;
    }
    ChallengeFields fields;
    Key key = derive_class_key(secret, server.hello().channel_class);
    fields.server_nonce = make_server_nonce(key, {});
    server.challenge(fields);
    Proof proof = take<kProofBytes>(data, size);
    Proof own{};
    BERTH_CHECK(server.on_proof(proof, key, own) == HandshakeFailure::kProof);
    BERTH_CHECK(own == Proof{} && server.step() == ServerHandshake::Step::kFailed);
}

void fuzz_client(const uint8_t* data, size_t size) {
    Key key;
    key.fill(0x42);
    ClientHandshake client(key, ChannelClass::kControl, Nonce{}, Ticket{}, {.minimum_generation = 2});
    Challenge challenge = take<kChallengeBytes>(data, size);
    if (!client.on_challenge(challenge).ok()) return;
    BERTH_CHECK(client.identity().generation >= 2);
    BERTH_CHECK(!client.on_server_proof(take<kProofBytes>(data, size)).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz_server(data, size);
    fuzz_client(data, size);
    std::string_view text(reinterpret_cast<const char*>(data), size);
    berth::core::Result<ClientKey> key = parse_key_file(text);
    BERTH_CHECK(!key.ok() || key->key != Key{});
    return 0;
}
