// Both ends of the four-message handshake as state machines on fixed-size arrays: no allocation on the
// server's side, no input or output. proto/handshake.md is the contract; the numbers there are these.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "agent/auth/keys.h"
#include "agent/core/result.h"

namespace berth::auth {

inline constexpr size_t kHelloBytes = 80;
inline constexpr size_t kChallengeBytes = 80;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kTicketBytes = 32;
inline constexpr uint8_t kHelloFirstByte = 'B';     // tells a hello from ttrpc, whose first byte is 0
inline constexpr uint32_t kNoAddress = 0xFFFFFFFF;  // peer cid and port where the transport has none
inline constexpr uint16_t kVersion = 1;
inline constexpr uint16_t kSuiteHmacSha256 = 1;
inline constexpr uint8_t kOfferHmacSha256 = 1;  // suites offered, bit 0
inline constexpr uint8_t kOfferAead = 2;        // bit 1: reserved for a later suite

using Hello = std::array<uint8_t, kHelloBytes>;
using Challenge = std::array<uint8_t, kChallengeBytes>;
using Proof = std::array<uint8_t, kProofBytes>;
using Nonce = std::array<uint8_t, kNonceBytes>;
using Ticket = std::array<uint8_t, kTicketBytes>;

// Why a handshake ended; nothing of it is sent to the peer.
enum class HandshakeFailure : uint8_t {
    kNone,
    kMagic,
    kClass,
    kSuites,
    kPadding,
    kTicket,  // zero for class 2, or set for another class
    kProof,
};
const char* handshake_failure_name(HandshakeFailure failure);

// A hello that is well-formed.
struct HelloFields {
    ChannelClass channel_class = ChannelClass::kControl;
    uint8_t suites = 0;
    Nonce client_nonce{};
    Ticket ticket{};
};
HandshakeFailure parse_hello(std::span<const uint8_t, kHelloBytes> hello, HelloFields& fields);

// Where the server's nonce comes from. Two guests resumed from one snapshot have the same random pool, but
// not the same cycle counter and clocks; the counter tells two connections of one tick apart.
struct NonceInputs {
    std::array<uint8_t, 32> random{};
    uint64_t cycle_counter = 0;
    uint64_t monotonic_ns = 0;
    uint64_t realtime_ns = 0;
    uint64_t counter = 0;
};
// HMAC-SHA256(K_n, random, cycle counter, monotonic, real clock, counter), numbers as big-endian u64.
Nonce make_server_nonce(std::span<const uint8_t, kKeyBytes> class_key, const NonceInputs& inputs);

// What the agent says about itself and the peer in message 2.
struct ChallengeFields {
    uint32_t generation = 1;
    Nonce server_nonce{};
    InstanceId instance_id{};
    uint32_t peer_cid = kNoAddress;
    uint32_t peer_port = kNoAddress;
};
Challenge encode_challenge(const ChallengeFields& fields);

// The agent's side of one connection. on_hello, then on_proof; each at most once; a failure is final.
class ServerHandshake {
 public:
    enum class Step : uint8_t { kWantHello, kWantProof, kDone, kFailed };

    // Checks a hello's form and keeps it. Its class says which key and nonce to go on with.
    HandshakeFailure on_hello(std::span<const uint8_t, kHelloBytes> hello);
    // Message 2; after on_hello, once.
    const Challenge& challenge(const ChallengeFields& fields);
    // Checks message 3 with K_n in constant time. kNone: `server_proof` is message 4. The caller checks its
    // limits and the ticket before it sends that.
    HandshakeFailure on_proof(std::span<const uint8_t, kProofBytes> client_proof,
                              std::span<const uint8_t, kKeyBytes> class_key, Proof& server_proof);

    Step step() const { return step_; }
    const HelloFields& hello() const { return fields_; }

 private:
    HandshakeFailure fail(HandshakeFailure failure);
    Step step_ = Step::kWantHello;
    bool has_challenge_ = false;
    HelloFields fields_;
    Hello hello_{};
    Challenge challenge_{};
};

// What a client knows beforehand and compares with message 2; kNoAddress: not compared.
struct ClientExpectations {
    uint32_t minimum_generation = 0;
    uint32_t own_cid = kNoAddress;   // AF_VSOCK only: 2, or 1 on the loopback
    uint32_t own_port = kNoAddress;  // AF_VSOCK only: from getsockname
};

struct ServerIdentity {
    uint32_t generation = 0;
    InstanceId instance_id{};
    uint32_t seen_cid = kNoAddress;
    uint32_t seen_port = kNoAddress;
};

// The client's side. hello(), on_challenge(), on_server_proof(), in this order.
class ClientHandshake {
 public:
    // `nonce` must be fresh random bytes; `ticket` is zero unless the class is kStream.
    ClientHandshake(const Key& class_key, ChannelClass channel_class, const Nonce& nonce,
                    const Ticket& ticket, const ClientExpectations& expectations);
    ~ClientHandshake();
    ClientHandshake(const ClientHandshake&) = delete;
    ClientHandshake& operator=(const ClientHandshake&) = delete;

    // Message 1.
    const Hello& hello() const { return hello_; }
    // Checks message 2 and gives message 3. FAILED_PRECONDITION when it is not an answer to this hello.
    core::Result<Proof> on_challenge(std::span<const uint8_t, kChallengeBytes> challenge);
    // Checks message 4. PERMISSION_DENIED when the peer does not know the secret.
    core::Status on_server_proof(std::span<const uint8_t, kProofBytes> proof);
    // Of the challenge; to be trusted once on_server_proof was ok.
    const ServerIdentity& identity() const { return identity_; }

 private:
    enum class Step : uint8_t { kWantChallenge, kWantServerProof, kDone, kFailed };
    Step step_ = Step::kWantChallenge;
    Key class_key_;
    ClientExpectations expectations_;
    ServerIdentity identity_;
    Hello hello_{};
    Digest expected_proof_{};
};

// Message 1 alone, for a stream on a transport without messages 2-4.
Hello encode_hello(ChannelClass channel_class, const Nonce& nonce, const Ticket& ticket);

}  // namespace berth::auth
