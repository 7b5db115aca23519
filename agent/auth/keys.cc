#include "agent/auth/keys.h"

#include <sodium.h>

#include <algorithm>
#include <string>

#include "agent/core/text.h"

namespace berth::auth {

namespace {

constexpr std::string_view kClassInfo = "berth/1 class";
constexpr std::string_view kClientInfo = "berth/1 client";
constexpr std::string_view kServerInfo = "berth/1 server";
constexpr std::string_view kReadOnlyPrefix = "class3:";

std::span<const uint8_t> bytes_of(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

bool is_zero(std::span<const uint8_t> bytes) {
    return sodium_is_zero(bytes.data(), bytes.size()) == 1;
}

// 64 hex digits and at most one newline.
bool parse_hex_key(std::string_view text, Key& key) {
    if (text.size() == 2 * kKeyBytes + 1 && text.back() == '\n') text.remove_suffix(1);
    if (text.size() != 2 * kKeyBytes) return false;
    for (size_t i = 0; i < kKeyBytes; i++) {
        std::optional<uint8_t> byte = core::parse_number<uint8_t>(text.substr(2 * i, 2), 16);
        if (!byte) return false;
        key[i] = *byte;
    }
    return true;
}

}  // namespace

Digest hmac_sha256(std::span<const uint8_t> key, std::initializer_list<std::span<const uint8_t>> parts) {
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, key.data(), key.size());
    for (std::span<const uint8_t> part : parts) {
        crypto_auth_hmacsha256_update(&state, part.data(), part.size());
    }
    Digest digest;
    crypto_auth_hmacsha256_final(&state, digest.data());
    wipe(&state, sizeof state);
    return digest;
}

Digest sha256(std::initializer_list<std::span<const uint8_t>> parts) {
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    for (std::span<const uint8_t> part : parts) {
        crypto_hash_sha256_update(&state, part.data(), part.size());
    }
    Digest digest;
    crypto_hash_sha256_final(&state, digest.data());
    return digest;
}

Key hkdf_sha256(std::span<const uint8_t> input_key, std::span<const uint8_t> salt,
                std::span<const uint8_t> info) {
    constexpr std::array<uint8_t, 32> kEmptySalt{};  // what RFC 5869 puts for none
    Digest pseudo_random_key = hmac_sha256(salt.empty() ? kEmptySalt : salt, {input_key});
    constexpr uint8_t kFirstBlock = 1;
    Key key = hmac_sha256(pseudo_random_key, {info, std::span<const uint8_t>(&kFirstBlock, 1)});
    wipe(pseudo_random_key.data(), pseudo_random_key.size());
    return key;
}

Key derive_class_key(std::span<const uint8_t, kKeyBytes> secret, ChannelClass channel_class) {
    std::array<uint8_t, kClassInfo.size() + 1> info;
    std::copy(kClassInfo.begin(), kClassInfo.end(), info.begin());
    info.back() = static_cast<uint8_t>(channel_class);
    return hkdf_sha256(secret, {}, info);
}

core::ClassKeys derive_class_keys(std::span<const uint8_t, kKeyBytes> secret) {
    core::ClassKeys keys;
    for (size_t i = 0; i < kChannelClasses; i++) {
        Key key = derive_class_key(secret, static_cast<ChannelClass>(i + 1));
        std::copy(key.begin(), key.end(), keys.key[i]);
        wipe(key.data(), key.size());
    }
    return keys;
}

Key class_key(const core::ClassKeys& keys, ChannelClass channel_class) {
    Key key;
    const uint8_t* from = keys.key[static_cast<size_t>(channel_class) - 1];
    std::copy(from, from + kKeyBytes, key.begin());
    return key;
}

RoleKeys derive_role_keys(std::span<const uint8_t, kKeyBytes> class_key,
                          std::span<const uint8_t, kInstanceIdBytes> instance_id) {
    return {.client = hkdf_sha256(class_key, instance_id, bytes_of(kClientInfo)),
            .server = hkdf_sha256(class_key, instance_id, bytes_of(kServerInfo))};
}

bool equal_constant_time(std::span<const uint8_t> left, std::span<const uint8_t> right) {
    if (left.size() != right.size()) return false;
    return sodium_memcmp(left.data(), right.data(), left.size()) == 0;
}

void wipe(void* memory, size_t bytes) {
    sodium_memzero(memory, bytes);
}

core::Result<Key> parse_secret(std::string_view bytes) {
    Key key;
    if (bytes.size() == kKeyBytes) {
        std::copy(bytes.begin(), bytes.end(), key.begin());
    } else if (!parse_hex_key(bytes, key)) {
        return core::invalid("secret: want 32 bytes, or 64 hex digits and at most one newline");
    }
    if (is_zero(key)) return core::invalid("secret: all bytes are zero");
    return key;
}

core::Result<ClientKey> parse_key_file(std::string_view bytes) {
    ClientKey client_key;
    if (bytes.size() != kKeyBytes && bytes.starts_with(kReadOnlyPrefix)) {
        client_key.is_read_only = true;
        if (!parse_hex_key(bytes.substr(kReadOnlyPrefix.size()), client_key.key)) {
            return core::invalid("key file: want 64 hex digits and at most one newline after class3:");
        }
        if (is_zero(client_key.key)) return core::invalid("key file: all bytes are zero");
        return client_key;
    }
    BERTH_ASSIGN(client_key.key, parse_secret(bytes));
    return client_key;
}

core::Result<Key> client_class_key(const ClientKey& key, ChannelClass channel_class) {
    if (!key.is_read_only) return derive_class_key(key.key, channel_class);
    if (channel_class == ChannelClass::kReadOnly) return key.key;
    return core::make_error(core::Code::kPermissionDenied,
                            "key file: holds the read-only key (class3:), which opens no other class");
}

std::string format_read_only_key_file(std::span<const uint8_t, kKeyBytes> secret) {
    Key key = derive_class_key(secret, ChannelClass::kReadOnly);
    std::string text = std::string(kReadOnlyPrefix) + core::hex(key.data(), key.size()) + "\n";
    wipe(key.data(), key.size());
    return text;
}

}  // namespace berth::auth
