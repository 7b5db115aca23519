// The keys of the handshake: how they follow from the secret, and how people hand them over. Pure but for
// the input: no allocation besides error texts, no clock, no system call. proto/handshake.md is the contract.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"

namespace berth::auth {

inline constexpr size_t kKeyBytes = 32;
inline constexpr size_t kInstanceIdBytes = 16;

using Key = std::array<uint8_t, kKeyBytes>;
using Digest = std::array<uint8_t, 32>;
using InstanceId = std::array<uint8_t, kInstanceIdBytes>;

// What a connection is for: the class byte of the hello.
enum class ChannelClass : uint8_t { kControl = 1, kStream = 2, kReadOnly = 3 };
inline constexpr size_t kChannelClasses = 3;

// HMAC-SHA256 (RFC 2104) of the concatenated parts, and SHA-256 of them.
Digest hmac_sha256(std::span<const uint8_t> key, std::initializer_list<std::span<const uint8_t>> parts);
Digest sha256(std::initializer_list<std::span<const uint8_t>> parts);

// HKDF-SHA256 (RFC 5869), extract then expand, 32 bytes of output.
Key hkdf_sha256(std::span<const uint8_t> input_key, std::span<const uint8_t> salt,
                std::span<const uint8_t> info);

// K_1..K_3 = HKDF(secret, salt empty, info "berth/1 class" and the byte n).
core::ClassKeys derive_class_keys(std::span<const uint8_t, kKeyBytes> secret);
// K_n alone.
Key derive_class_key(std::span<const uint8_t, kKeyBytes> secret, ChannelClass channel_class);
Key class_key(const core::ClassKeys& keys, ChannelClass channel_class);

// Kc or Ks: HKDF(K_n, salt = instance id, info "berth/1 client" or "berth/1 server").
struct RoleKeys {
    Key client;
    Key server;
};
RoleKeys derive_role_keys(std::span<const uint8_t, kKeyBytes> class_key,
                          std::span<const uint8_t, kInstanceIdBytes> instance_id);

// Takes a time that does not depend on the contents.
bool equal_constant_time(std::span<const uint8_t> left, std::span<const uint8_t> right);

// Overwrites memory that held a key; never optimised away.
void wipe(void* memory, size_t bytes);

// A secret as a file, fw_cfg item or SMBIOS string carries it: 32 raw bytes, or 64 hex digits and at most one
// newline. INVALID_ARGUMENT, without a byte of the input in the text, for anything else and for 32 zeros.
core::Result<Key> parse_secret(std::string_view bytes);

// What a client may hold: the secret, from which it derives every class, or the key of class 3 alone.
struct ClientKey {
    bool is_read_only = false;  // `key` is K_3, else the secret
    Key key{};
};

// A key file of a client: a secret, or "class3:" and 64 hex digits and at most one newline.
core::Result<ClientKey> parse_key_file(std::string_view bytes);

// The K_n to use for a class. PERMISSION_DENIED when the file held the key of class 3 and another is asked.
core::Result<Key> client_class_key(const ClientKey& key, ChannelClass channel_class);

// The text of a class 3 key file, with its newline, to hand to a monitor.
std::string format_read_only_key_file(std::span<const uint8_t, kKeyBytes> secret);

}  // namespace berth::auth
