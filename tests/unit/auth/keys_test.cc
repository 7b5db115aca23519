#include "agent/auth/keys.h"

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "agent/core/text.h"

namespace berth::auth {
namespace {

std::string hex_of(std::span<const uint8_t> bytes) {
    return core::hex(bytes.data(), bytes.size());
}

Key counting_secret() {
    Key secret;
    std::iota(secret.begin(), secret.end(), uint8_t{0});
    return secret;
}

const std::string kHexSecret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const std::string kSecretError = "secret: want 32 bytes, or 64 hex digits and at most one newline";

TEST_CASE("HMAC-SHA256 gives RFC 4231's values") {
    std::vector<uint8_t> key(20, 0x0b);
    std::string data = "Hi There";
    std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(data.data()), data.size());
    const std::string want = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
    CHECK(hex_of(hmac_sha256(key, {bytes})) == want);
    CHECK(hex_of(hmac_sha256(key, {bytes.subspan(0, 3), bytes.subspan(3)})) == want);
    std::vector<uint8_t> long_key(131, 0xaa);
    data = "Test Using Larger Than Block-Size Key - Hash Key First";
    bytes = {reinterpret_cast<const uint8_t*>(data.data()), data.size()};
    CHECK(hex_of(hmac_sha256(long_key, {bytes})) ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("HKDF-SHA256 gives the first 32 bytes of RFC 5869's values") {
    std::vector<uint8_t> input(22, 0x0b);
    std::vector<uint8_t> salt(13);
    std::iota(salt.begin(), salt.end(), uint8_t{0});
    std::vector<uint8_t> info(10);
    std::iota(info.begin(), info.end(), uint8_t{0xf0});
    CHECK(hex_of(hkdf_sha256(input, salt, info)) ==
          "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
    CHECK(hex_of(hkdf_sha256(input, {}, {})) ==
          "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
}

TEST_CASE("class keys differ by class, and follow the published vector") {
    core::ClassKeys keys = derive_class_keys(counting_secret());
    CHECK(hex_of(keys.key[0]) == "417cd373b79365d1eab2f103cd2b04e80f734c5709f791628e420b26706f8043");
    CHECK(hex_of(keys.key[1]) == "9fecd866e19150c91bae40e0104a9950eee2ec4935bc97da3f0ccccd064cbde9");
    CHECK(keys.key[2] != keys.key[0]);
    for (uint8_t n = 1; n <= 3; n++) {
        ChannelClass channel_class = static_cast<ChannelClass>(n);
        CHECK(class_key(keys, channel_class) == derive_class_key(counting_secret(), channel_class));
    }
}

TEST_CASE("parse_secret") {
    CHECK(parse_secret(kHexSecret).value() == counting_secret());
    CHECK(parse_secret(kHexSecret + "\n").value() == counting_secret());
    CHECK(parse_secret("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F").value() ==
          counting_secret());
    std::string raw(kHexSecret.begin(), kHexSecret.begin() + 32);
    CHECK(parse_secret(raw).value()[1] == '0');

    const std::string bad[] = {
        "",
        "\n",
        kHexSecret.substr(1),
        kHexSecret + "0",
        kHexSecret + "\n\n",
        kHexSecret + "\r\n",
        kHexSecret + " ",
        " " + kHexSecret,
        "0x" + kHexSecret.substr(2),
        "+1" + kHexSecret.substr(2),
        "g0" + kHexSecret.substr(2),
        std::string("\0", 1) + kHexSecret.substr(1),
        raw + "\n",
        raw.substr(1),
        std::string(1 << 20, 'a'),
    };
    for (const std::string& text : bad) {
        CAPTURE(core::quoted(text));
        core::Result<Key> key = parse_secret(text);
        REQUIRE(!key.ok());
        CHECK(key.error().message == kSecretError);
        CHECK(key.error().code == core::Code::kInvalidArgument);
    }
    CHECK(parse_secret(std::string(32, '\0')).error().message == "secret: all bytes are zero");
    CHECK(parse_secret(std::string(64, '0')).error().message == "secret: all bytes are zero");
}

TEST_CASE("a class 3 key file opens class 3 and nothing else") {
    std::string text = format_read_only_key_file(counting_secret());
    CHECK(text.size() == 7 + 64 + 1);
    ClientKey key = parse_key_file(text).value();
    CHECK(key.is_read_only);
    CHECK(client_class_key(key, ChannelClass::kReadOnly).value() ==
          derive_class_key(counting_secret(), ChannelClass::kReadOnly));
    for (ChannelClass other : {ChannelClass::kControl, ChannelClass::kStream}) {
        CHECK(client_class_key(key, other).error().message ==
              "key file: holds the read-only key (class3:), which opens no other class");
        CHECK(client_class_key(key, other).error().code == core::Code::kPermissionDenied);
    }

    ClientKey full = parse_key_file(kHexSecret + "\n").value();
    CHECK(!full.is_read_only);
    CHECK(client_class_key(full, ChannelClass::kControl).value() ==
          derive_class_key(counting_secret(), ChannelClass::kControl));

    const char* error = "key file: want 64 hex digits and at most one newline after class3:";
    CHECK(parse_key_file("class3:").error().message == error);
    CHECK(parse_key_file("class3: " + kHexSecret).error().message == error);
    CHECK(parse_key_file("class3:" + kHexSecret + "\n\n").error().message == error);
    CHECK(parse_key_file("class3:" + std::string(64, '0')).error().message == "key file: all bytes are zero");
    CHECK(parse_key_file("class1:" + kHexSecret).error().message == kSecretError);
}

TEST_CASE("comparison") {
    Key left = counting_secret();
    Key right = left;
    CHECK(equal_constant_time(left, right));
    for (size_t i = 0; i < right.size(); i++) {
        right = left;
        right[i] ^= 0x80;
        CHECK(!equal_constant_time(left, right));
    }
    CHECK(!equal_constant_time(left, std::span<const uint8_t>(left).subspan(1)));
    wipe(left.data(), left.size());
    CHECK(left == Key{});
}

}  // namespace
}  // namespace berth::auth
