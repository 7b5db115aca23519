#include "agent/auth/handshake.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "agent/core/text.h"

namespace berth::auth {
namespace {

std::string hex_of(std::span<const uint8_t> bytes) {
    return core::hex(bytes.data(), bytes.size());
}

template <size_t N>
std::array<uint8_t, N> filled(uint8_t value) {
    std::array<uint8_t, N> array;
    array.fill(value);
    return array;
}

template <size_t N>
std::array<uint8_t, N> counting(uint8_t first) {
    std::array<uint8_t, N> array;
    std::iota(array.begin(), array.end(), first);
    return array;
}

// One published vector (proto/handshake.md).
struct Vector {
    Key secret;
    ChannelClass channel_class;
    uint8_t suites;
    Nonce client_nonce;
    Ticket ticket;
    ChallengeFields challenge;
    const char* client_key;
    const char* server_key;
    const char* client_proof;
    const char* server_proof;
};

const Vector kVectors[] = {
    {counting<32>(0),
     ChannelClass::kControl,
     1,
     filled<32>(0x11),
     Ticket{},
     {1, filled<32>(0x22), counting<16>(0), 2, 1234},
     "3b7289273472be39170e2fdabc22d2fa9e13b83ec4c31b77855bfcacfe8d12b1",
     "9342d152089f83c0518664b0b293a80819221b414ce7e9a2057dae55c5457a39",
     "741bef5857e1fe526df892a598071e82f14e26b94f510eb2f7b02486499f8103",
     "ff529da1d60c4552f36f764f2dc7ab3214776636fcef53bddcdf11e80487f5bf"},
    {counting<32>(0),
     ChannelClass::kStream,
     1,
     filled<32>(0x33),
     counting<32>(0xe0),
     {7, filled<32>(0x44), counting<16>(0xf0), kNoAddress, kNoAddress},
     "b5970ac0bece49f091f30f163c000549580b508289e7dcc20a52ba77fae191a2",
     "ac6d8646f1e9d1e237e176db5d7c2ac0c91c0c100005c7067daf0678a38c1cd6",
     "95af4231bae3928c8b869a6a64b3546eb55d77352fd164067b250b9b830496a3",
     "9435d0c74876468b447629be15e0a174d08698b7230fc4b5f2563eb73fad3ff9"},
    {filled<32>(0xff),
     ChannelClass::kReadOnly,
     3,
     filled<32>(0x55),
     Ticket{},
     {0xfffffffe, filled<32>(0x66), filled<16>(0xaa), 1, 4294967294},
     "ca8b5755d0fb5fd177ab396d82cc5ce38fa24ac3fb4b45eae91165d5488b1888",
     "1639d153f0d8d45f411aa713ebd331fd0972ded3314ac4a4decefad4cd597541",
     "14814d3960da4134e559347410f8f6f5959668559414efc39de837eb110607a8",
     "58e0e9ab21def145d94fc088b73988261e3e65a72b5aca207c51dcc6805a8c56"},
};

Proof proof_of_hex(const char* text) {
    std::vector<uint8_t> bytes = core::unhex(text).value();
    Proof proof;
    std::copy(bytes.begin(), bytes.end(), proof.begin());
    return proof;
}

// Drives the server as a recorded client would.
struct Run {
    ServerHandshake server;
    Challenge challenge{};
    Proof server_proof{};
    HandshakeFailure hello_failure = HandshakeFailure::kNone;
    HandshakeFailure proof_failure = HandshakeFailure::kNone;
};

void run_hello(Run& run, const Hello& hello, const ChallengeFields& fields) {
    run.hello_failure = run.server.on_hello(hello);
    if (run.hello_failure == HandshakeFailure::kNone) run.challenge = run.server.challenge(fields);
}

TEST_CASE("the published vectors, from both ends") {
    for (const Vector& vector : kVectors) {
        CAPTURE(vector.client_proof);
        Key key = derive_class_key(vector.secret, vector.channel_class);
        RoleKeys role_keys = derive_role_keys(key, vector.challenge.instance_id);
        CHECK(hex_of(role_keys.client) == vector.client_key);
        CHECK(hex_of(role_keys.server) == vector.server_key);

        Hello hello = encode_hello(vector.channel_class, vector.client_nonce, vector.ticket);
        hello[9] = vector.suites;
        Run run;
        run_hello(run, hello, vector.challenge);
        REQUIRE(run.hello_failure == HandshakeFailure::kNone);
        CHECK(run.server.hello().channel_class == vector.channel_class);
        CHECK(run.server.hello().ticket == vector.ticket);
        CHECK(run.server.on_proof(proof_of_hex(vector.client_proof), key, run.server_proof) ==
              HandshakeFailure::kNone);
        CHECK(hex_of(run.server_proof) == vector.server_proof);
        CHECK(run.server.step() == ServerHandshake::Step::kDone);

        if (vector.suites != 1) continue;  // our client offers suite 1 alone
        ClientHandshake client(key, vector.channel_class, vector.client_nonce, vector.ticket, {});
        CHECK(client.hello() == hello);
        core::Result<Proof> proof = client.on_challenge(run.challenge);
        REQUIRE(proof.ok());
        CHECK(hex_of(*proof) == vector.client_proof);
        CHECK(client.on_server_proof(run.server_proof).ok());
        CHECK(client.identity().generation == vector.challenge.generation);
        CHECK(client.identity().instance_id == vector.challenge.instance_id);
    }
}

TEST_CASE("the published page has these vectors") {
    FILE* file = fopen(BERTH_SOURCE_DIR "/proto/handshake.md", "r");
    REQUIRE(file != nullptr);
    std::string page(1 << 20, '\0');
    page.resize(fread(page.data(), 1, page.size(), file));
    fclose(file);
    for (const Vector& vector : kVectors) {
        for (const char* value :
             {vector.client_key, vector.server_key, vector.client_proof, vector.server_proof}) {
            CAPTURE(value);
            CHECK(page.find(value) != std::string::npos);
        }
    }
}

TEST_CASE("messages are laid out as published") {
    const Vector& vector = kVectors[1];
    CHECK(hex_of(encode_hello(vector.channel_class, vector.client_nonce, vector.ticket)) ==
          "42455254482f310a0201000000000000"
          "3333333333333333333333333333333333333333333333333333333333333333"
          "e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
    CHECK(hex_of(encode_challenge(vector.challenge)) ==
          "42455254482f310a0001000100000007"
          "4444444444444444444444444444444444444444444444444444444444444444"
          "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeffffffffffffffffff0000000000000000");
}

TEST_CASE("a hello that is not well-formed is refused by what is wrong") {
    Hello good = encode_hello(ChannelClass::kControl, filled<32>(1), Ticket{});
    struct Case {
        size_t offset;
        uint8_t value;
        HandshakeFailure want;
    };
    const Case cases[] = {
        {0, 'b', HandshakeFailure::kMagic},  {7, '\r', HandshakeFailure::kMagic},
        {8, 0, HandshakeFailure::kClass},    {8, 4, HandshakeFailure::kClass},
        {8, 255, HandshakeFailure::kClass},  {8, 2, HandshakeFailure::kTicket},
        {9, 0, HandshakeFailure::kSuites},   {9, 2, HandshakeFailure::kSuites},
        {9, 5, HandshakeFailure::kSuites},   {9, 0x81, HandshakeFailure::kSuites},
        {10, 1, HandshakeFailure::kPadding}, {15, 0x80, HandshakeFailure::kPadding},
        {48, 1, HandshakeFailure::kTicket},  {79, 1, HandshakeFailure::kTicket},
        {9, 3, HandshakeFailure::kNone},     {8, 3, HandshakeFailure::kNone},
    };
    for (const Case& test : cases) {
        CAPTURE(test.offset);
        CAPTURE(test.value);
        Hello hello = good;
        hello[test.offset] = test.value;
        Run run;
        run_hello(run, hello, {});
        CHECK(run.hello_failure == test.want);
    }
    CHECK(std::string(handshake_failure_name(HandshakeFailure::kPadding)) == "padding");
}

// Every bit of messages 1, 2 and 3, as seen by the two ends, must make the proof wrong.
TEST_CASE("one bit changed on the way ends the handshake") {
    Key key = derive_class_key(counting<32>(0), ChannelClass::kControl);
    ChallengeFields fields = kVectors[0].challenge;
    int refused_by_form = 0;
    for (size_t bit = 0; bit < (kHelloBytes + kChallengeBytes + kProofBytes) * 8; bit++) {
        CAPTURE(bit);
        ClientHandshake client(key, ChannelClass::kControl, filled<32>(0x11), Ticket{}, {});
        Hello hello = client.hello();
        size_t at = bit / 8;
        uint8_t mask = static_cast<uint8_t>(1u << bit % 8);
        if (at < kHelloBytes) hello[at] ^= mask;
        Run run;
        run_hello(run, hello, fields);
        if (run.hello_failure != HandshakeFailure::kNone) {
            CHECK(run.server.step() == ServerHandshake::Step::kFailed);
            refused_by_form++;
            continue;
        }
        Challenge challenge = run.challenge;
        if (at >= kHelloBytes && at < kHelloBytes + kChallengeBytes) challenge[at - kHelloBytes] ^= mask;
        core::Result<Proof> proof = client.on_challenge(challenge);
        if (!proof.ok()) {
            refused_by_form++;
            continue;
        }
        Proof sent = *proof;
        if (at >= kHelloBytes + kChallengeBytes) sent[at - kHelloBytes - kChallengeBytes] ^= mask;
        Key server_key = derive_class_key(counting<32>(0), run.server.hello().channel_class);
        CHECK(run.server.on_proof(sent, server_key, run.server_proof) == HandshakeFailure::kProof);
        CHECK(run.server_proof == Proof{});
        CHECK(run.server.step() == ServerHandshake::Step::kFailed);
    }
    CHECK(refused_by_form > 0);
}

TEST_CASE("one bit changed in message 4 is noticed by the client") {
    Key key = derive_class_key(counting<32>(0), ChannelClass::kControl);
    for (size_t bit = 0; bit < kProofBytes * 8; bit++) {
        ClientHandshake client(key, ChannelClass::kControl, filled<32>(0x11), Ticket{}, {});
        Run run;
        run_hello(run, client.hello(), kVectors[0].challenge);
        REQUIRE(run.server.on_proof(*client.on_challenge(run.challenge), key, run.server_proof) ==
                HandshakeFailure::kNone);
        run.server_proof[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        core::Status status = client.on_server_proof(run.server_proof);
        REQUIRE(!status.ok());
        CHECK(status.error().code == core::Code::kPermissionDenied);
        CHECK(status.error().message == "handshake: the peer's proof is wrong: it does not know the secret");
    }
}

TEST_CASE("replay: a recorded proof does not open a connection with another nonce, boot or peer") {
    Key key = derive_class_key(counting<32>(0), ChannelClass::kControl);
    Hello hello = encode_hello(ChannelClass::kControl, filled<32>(0x11), Ticket{});
    Proof recorded = proof_of_hex(kVectors[0].client_proof);
    ChallengeFields same = kVectors[0].challenge;
    ChallengeFields fields[5] = {same, same, same, same, same};
    fields[0].server_nonce[31] ^= 1;
    fields[1].instance_id[0] ^= 1;
    fields[2].generation++;
    fields[3].peer_port++;
    fields[4].peer_cid++;
    for (const ChallengeFields& other : fields) {
        Run run;
        run_hello(run, hello, other);
        CHECK(run.server.on_proof(recorded, key, run.server_proof) == HandshakeFailure::kProof);
    }
    Run run;
    run_hello(run, hello, same);
    CHECK(run.server.on_proof(recorded, key, run.server_proof) == HandshakeFailure::kNone);
}

TEST_CASE("reflection: neither proof is good as the other, and a challenge is no hello") {
    Key key = derive_class_key(counting<32>(0), ChannelClass::kControl);
    Hello hello = encode_hello(ChannelClass::kControl, filled<32>(0x11), Ticket{});
    Run run;
    run_hello(run, hello, kVectors[0].challenge);
    CHECK(run.server.on_proof(proof_of_hex(kVectors[0].server_proof), key, run.server_proof) ==
          HandshakeFailure::kProof);

    ClientHandshake client(key, ChannelClass::kControl, filled<32>(0x11), Ticket{}, {});
    Proof own = *client.on_challenge(encode_challenge(kVectors[0].challenge));
    CHECK(!client.on_server_proof(own).ok());

    ServerHandshake server;
    CHECK(server.on_hello(encode_challenge(kVectors[0].challenge)) != HandshakeFailure::kNone);
    ClientHandshake mirrored(key, ChannelClass::kControl, filled<32>(0x11), Ticket{}, {});
    CHECK(!mirrored.on_challenge(mirrored.hello()).ok());
}

TEST_CASE("wrong class: a monitor's key opens neither control nor streams") {
    Key monitor = derive_class_key(counting<32>(0), ChannelClass::kReadOnly);
    for (ChannelClass asked : {ChannelClass::kControl, ChannelClass::kStream}) {
        Ticket ticket = asked == ChannelClass::kStream ? counting<32>(1) : Ticket{};
        ClientHandshake client(monitor, asked, filled<32>(0x11), ticket, {});
        Run run;
        run_hello(run, client.hello(), kVectors[0].challenge);
        Key server_key = derive_class_key(counting<32>(0), run.server.hello().channel_class);
        CHECK(run.server.on_proof(*client.on_challenge(run.challenge), server_key, run.server_proof) ==
              HandshakeFailure::kProof);
    }
}

TEST_CASE("the client refuses what it did not offer, what is stale, and a relay") {
    Key key = derive_class_key(counting<32>(0), ChannelClass::kControl);
    struct Case {
        size_t offset;
        uint8_t value;
        const char* want;
    };
    const Case cases[] = {
        {0, 'X', "handshake: the peer does not speak this protocol"},
        {9, 0, "handshake: version 0 was not offered"},
        {9, 2, "handshake: version 2 was not offered"},
        {8, 1, "handshake: version 257 was not offered"},
        {11, 0, "handshake: suite 0 was not offered"},
        {11, 2, "handshake: suite 2 was not offered"},
        {72, 1, "handshake: a reserved byte is set"},
        {79, 1, "handshake: a reserved byte is set"},
        {15, 4, "handshake: generation 4 is older than 5"},
        {67, 3, "handshake: the agent sees CID 3, not 2: something relays this connection"},
        {71, 0, "handshake: the agent sees port 1024, not 1234: something relays this connection"},
    };
    ChallengeFields fields = kVectors[0].challenge;
    fields.generation = 5;
    ClientExpectations expectations{.minimum_generation = 5, .own_cid = 2, .own_port = 1234};
    for (const Case& test : cases) {
        CAPTURE(test.want);
        ClientHandshake client(key, ChannelClass::kControl, filled<32>(0x11), Ticket{}, expectations);
        Challenge challenge = encode_challenge(fields);
        challenge[test.offset] = test.value;
        core::Result<Proof> proof = client.on_challenge(challenge);
        REQUIRE(!proof.ok());
        CHECK(proof.error().message == test.want);
        CHECK(proof.error().code == core::Code::kFailedPrecondition);
    }
    ClientHandshake client(key, ChannelClass::kControl, filled<32>(0x11), Ticket{}, expectations);
    CHECK(client.on_challenge(encode_challenge(fields)).ok());
}

TEST_CASE("the server's nonce follows from all of its inputs") {
    Key key = derive_class_key(counting<32>(0), ChannelClass::kControl);
    NonceInputs inputs{filled<32>(0x77), 1, 2, 3, 4};
    Nonce nonce = make_server_nonce(key, inputs);
    CHECK(hex_of(nonce) == "491077c30951413c463cdfa0b6802edb26b1f31335693d5ffafd0f23aa0104a3");
    NonceInputs changed[5] = {inputs, inputs, inputs, inputs, inputs};
    changed[0].random[0]++;
    changed[1].cycle_counter++;
    changed[2].monotonic_ns++;
    changed[3].realtime_ns++;
    changed[4].counter++;
    for (const NonceInputs& other : changed) CHECK(make_server_nonce(key, other) != nonce);
    key[0] ^= 1;
    CHECK(make_server_nonce(key, inputs) != nonce);
}

}  // namespace
}  // namespace berth::auth
