#include "agent/auth/handshake.h"

#include <algorithm>
#include <string_view>

#include "agent/core/check.h"
#include "agent/core/text.h"

namespace berth::auth {

namespace {

constexpr std::string_view kMagic = "BERTH/1\n";
constexpr std::string_view kClientLabel = "berth/1 client";
constexpr std::string_view kServerLabel = "berth/1 server";

// Offsets in message 1.
constexpr size_t kHelloClass = 8;
constexpr size_t kHelloSuites = 9;
constexpr size_t kHelloZero = 10;
constexpr size_t kHelloNonce = 16;
constexpr size_t kHelloTicket = 48;
// Offsets in message 2.
constexpr size_t kChallengeVersion = 8;
constexpr size_t kChallengeSuite = 10;
constexpr size_t kChallengeGeneration = 12;
constexpr size_t kChallengeNonce = 16;
constexpr size_t kChallengeInstance = 48;
constexpr size_t kChallengeCid = 64;
constexpr size_t kChallengePort = 68;
constexpr size_t kChallengeZero = 72;

template <typename Number>
void put_big_endian(uint8_t* to, Number number) {
    for (size_t i = sizeof(Number); i-- > 0;) {
        to[i] = static_cast<uint8_t>(number);
        number = static_cast<Number>(number >> 8);
    }
}

template <typename Number>
Number get_big_endian(const uint8_t* from) {
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(Number); i++) number = number << 8 | from[i];
    return static_cast<Number>(number);
}

bool all_zero(std::span<const uint8_t> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

std::span<const uint8_t> bytes_of(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

Proof prove_client(const Key& key, std::span<const uint8_t> hello, std::span<const uint8_t> challenge) {
    Digest transcript = sha256({hello, challenge});
    return hmac_sha256(key, {bytes_of(kClientLabel), transcript});
}

Proof prove_server(const Key& key, std::span<const uint8_t> hello, std::span<const uint8_t> challenge,
                   std::span<const uint8_t> client_proof) {
    Digest transcript = sha256({hello, challenge, client_proof});
    return hmac_sha256(key, {bytes_of(kServerLabel), transcript});
}

}  // namespace

const char* handshake_failure_name(HandshakeFailure failure) {
    switch (failure) {
        case HandshakeFailure::kNone: return "none";
        case HandshakeFailure::kMagic: return "magic";
        case HandshakeFailure::kClass: return "class";
        case HandshakeFailure::kSuites: return "suites";
        case HandshakeFailure::kPadding: return "padding";
        case HandshakeFailure::kTicket: return "ticket";
        case HandshakeFailure::kProof: return "proof";
    }
    return "unknown";
}

HandshakeFailure parse_hello(std::span<const uint8_t, kHelloBytes> hello, HelloFields& fields) {
    if (!std::equal(kMagic.begin(), kMagic.end(), hello.begin())) return HandshakeFailure::kMagic;
    uint8_t channel_class = hello[kHelloClass];
    if (channel_class < 1 || channel_class > kChannelClasses) return HandshakeFailure::kClass;
    uint8_t suites = hello[kHelloSuites];
    if ((suites & kOfferHmacSha256) == 0 || (suites & ~(kOfferHmacSha256 | kOfferAead)) != 0) {
        return HandshakeFailure::kSuites;
    }
    if (!all_zero(hello.subspan(kHelloZero, kHelloNonce - kHelloZero))) return HandshakeFailure::kPadding;
    fields.channel_class = static_cast<ChannelClass>(channel_class);
    fields.suites = suites;
    std::copy_n(hello.begin() + kHelloNonce, kNonceBytes, fields.client_nonce.begin());
    std::copy_n(hello.begin() + kHelloTicket, kTicketBytes, fields.ticket.begin());
    bool has_ticket = !all_zero(fields.ticket);
    bool wants_ticket = fields.channel_class == ChannelClass::kStream;
    return has_ticket == wants_ticket ? HandshakeFailure::kNone : HandshakeFailure::kTicket;
}

Nonce make_server_nonce(std::span<const uint8_t, kKeyBytes> class_key, const NonceInputs& inputs) {
    std::array<uint8_t, 4 * sizeof(uint64_t)> numbers;
    put_big_endian(&numbers[0], inputs.cycle_counter);
    put_big_endian(&numbers[8], inputs.monotonic_ns);
    put_big_endian(&numbers[16], inputs.realtime_ns);
    put_big_endian(&numbers[24], inputs.counter);
    return hmac_sha256(class_key, {inputs.random, numbers});
}

Challenge encode_challenge(const ChallengeFields& fields) {
    Challenge challenge{};
    std::copy(kMagic.begin(), kMagic.end(), challenge.begin());
    put_big_endian(&challenge[kChallengeVersion], kVersion);
    put_big_endian(&challenge[kChallengeSuite], kSuiteHmacSha256);
    put_big_endian(&challenge[kChallengeGeneration], fields.generation);
    std::copy(fields.server_nonce.begin(), fields.server_nonce.end(), challenge.begin() + kChallengeNonce);
    std::copy(fields.instance_id.begin(), fields.instance_id.end(), challenge.begin() + kChallengeInstance);
    put_big_endian(&challenge[kChallengeCid], fields.peer_cid);
    put_big_endian(&challenge[kChallengePort], fields.peer_port);
    return challenge;
}

Hello encode_hello(ChannelClass channel_class, const Nonce& nonce, const Ticket& ticket) {
    Hello hello{};
    std::copy(kMagic.begin(), kMagic.end(), hello.begin());
    hello[kHelloClass] = static_cast<uint8_t>(channel_class);
    hello[kHelloSuites] = kOfferHmacSha256;
    std::copy(nonce.begin(), nonce.end(), hello.begin() + kHelloNonce);
    std::copy(ticket.begin(), ticket.end(), hello.begin() + kHelloTicket);
    return hello;
}

HandshakeFailure ServerHandshake::fail(HandshakeFailure failure) {
    step_ = Step::kFailed;
    return failure;
}

HandshakeFailure ServerHandshake::on_hello(std::span<const uint8_t, kHelloBytes> hello) {
    BERTH_CHECK(step_ == Step::kWantHello);
    HandshakeFailure failure = parse_hello(hello, fields_);
    if (failure != HandshakeFailure::kNone) return fail(failure);
    std::copy(hello.begin(), hello.end(), hello_.begin());
    step_ = Step::kWantProof;
    return HandshakeFailure::kNone;
}

const Challenge& ServerHandshake::challenge(const ChallengeFields& fields) {
    BERTH_CHECK(step_ == Step::kWantProof && !has_challenge_);
    has_challenge_ = true;
    challenge_ = encode_challenge(fields);
    return challenge_;
}

HandshakeFailure ServerHandshake::on_proof(std::span<const uint8_t, kProofBytes> client_proof,
                                           std::span<const uint8_t, kKeyBytes> class_key,
                                           Proof& server_proof) {
    BERTH_CHECK(step_ == Step::kWantProof && has_challenge_);
    std::span<const uint8_t, kInstanceIdBytes> instance_id =
        std::span<const uint8_t, kChallengeBytes>(challenge_).subspan<kChallengeInstance, kInstanceIdBytes>();
    RoleKeys keys = derive_role_keys(class_key, instance_id);
    Proof expected = prove_client(keys.client, hello_, challenge_);
    bool is_right = equal_constant_time(expected, client_proof);
    if (is_right) server_proof = prove_server(keys.server, hello_, challenge_, client_proof);
    wipe(&keys, sizeof keys);
    wipe(expected.data(), expected.size());
    if (!is_right) return fail(HandshakeFailure::kProof);
    step_ = Step::kDone;
    return HandshakeFailure::kNone;
}

ClientHandshake::ClientHandshake(const Key& class_key, ChannelClass channel_class, const Nonce& nonce,
                                 const Ticket& ticket, const ClientExpectations& expectations)
    : class_key_(class_key),
      expectations_(expectations),
      hello_(encode_hello(channel_class, nonce, ticket)) {}

ClientHandshake::~ClientHandshake() {
    wipe(class_key_.data(), class_key_.size());
    wipe(expected_proof_.data(), expected_proof_.size());
}

core::Result<Proof> ClientHandshake::on_challenge(std::span<const uint8_t, kChallengeBytes> challenge) {
    BERTH_CHECK(step_ == Step::kWantChallenge);
    step_ = Step::kFailed;
    auto refuse = [](std::string what) {
        return core::make_error(core::Code::kFailedPrecondition, "handshake: " + std::move(what));
    };
    if (!std::equal(kMagic.begin(), kMagic.end(), challenge.begin())) {
        return refuse("the peer does not speak this protocol");
    }
    uint16_t version = get_big_endian<uint16_t>(&challenge[kChallengeVersion]);
    if (version != kVersion) return refuse(core::format("version %u was not offered", version));
    uint16_t suite = get_big_endian<uint16_t>(&challenge[kChallengeSuite]);
    if (suite != kSuiteHmacSha256) return refuse(core::format("suite %u was not offered", suite));
    if (!all_zero(challenge.subspan(kChallengeZero))) return refuse("a reserved byte is set");
    identity_.generation = get_big_endian<uint32_t>(&challenge[kChallengeGeneration]);
    identity_.seen_cid = get_big_endian<uint32_t>(&challenge[kChallengeCid]);
    identity_.seen_port = get_big_endian<uint32_t>(&challenge[kChallengePort]);
    std::copy_n(challenge.begin() + kChallengeInstance, kInstanceIdBytes, identity_.instance_id.begin());
    if (identity_.generation < expectations_.minimum_generation) {
        return refuse(core::format("generation %u is older than %u", identity_.generation,
                                   expectations_.minimum_generation));
    }
    if (expectations_.own_cid != kNoAddress && identity_.seen_cid != expectations_.own_cid) {
        return refuse(core::format("the agent sees CID %u, not %u: something relays this connection",
                                   identity_.seen_cid, expectations_.own_cid));
    }
    if (expectations_.own_port != kNoAddress && identity_.seen_port != expectations_.own_port) {
        return refuse(core::format("the agent sees port %u, not %u: something relays this connection",
                                   identity_.seen_port, expectations_.own_port));
    }
    RoleKeys keys = derive_role_keys(class_key_, identity_.instance_id);
    Proof proof = prove_client(keys.client, hello_, challenge);
    expected_proof_ = prove_server(keys.server, hello_, challenge, proof);
    wipe(&keys, sizeof keys);
    step_ = Step::kWantServerProof;
    return proof;
}

core::Status ClientHandshake::on_server_proof(std::span<const uint8_t, kProofBytes> proof) {
    BERTH_CHECK(step_ == Step::kWantServerProof);
    if (!equal_constant_time(expected_proof_, proof)) {
        step_ = Step::kFailed;
        return core::make_error(core::Code::kPermissionDenied,
                                "handshake: the peer's proof is wrong: it does not know the secret");
    }
    step_ = Step::kDone;
    return core::ok();
}

}  // namespace berth::auth
