// linux.resources.unified: exactly ten keys, each with a grammar. Everything else is refused before any
// write.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/core/result.h"

namespace berth::core {

enum class UnifiedGrammar : uint8_t {
    kBytes,         // decimal bytes below 2^63, or "max"
    kCount,         // decimal tasks up to the kernel's PID_MAX_LIMIT, or "max"
    kMicroseconds,  // decimal, within the kernel's bandwidth range
    kPercent,       // 0 to 100 with at most two decimals, or "max"
    kSwitch,        // 0 or 1
};

struct UnifiedKey {
    std::string_view name;        // the kernel's file
    std::string_view controller;  // whose file it is
    UnifiedGrammar grammar = UnifiedGrammar::kBytes;
};

// The ten, sorted by name.
std::span<const UnifiedKey> unified_keys();

// The key of this exact name, or null.
const UnifiedKey* find_unified_key(std::string_view name);

// INVALID_ARGUMENT, naming `json_path`["key"] and listing the ten, when the key is not one of them or the
// value is outside its grammar. Numbers are plain decimals: no sign, no blank, no unit, no leading zero (the
// kernel would read that as octal).
Status check_unified(std::string_view json_path, std::string_view key, std::string_view value);

// The same error for a value that is no string in the JSON (`what`: "a number").
Error unified_not_a_string(std::string_view json_path, std::string_view key, std::string_view what);

// The value as the kernel will show it: bytes rounded down to `page_size`, percents with two decimals, full
// scale as "max". The value must have passed check_unified().
std::string normalize_unified(const UnifiedKey& key, std::string_view value, uint64_t page_size);

// Bytes as memory.* files show them: rounded down to `page_size`, and "max" from the kernel's ceiling on.
// `bytes` < 0 means no limit.
std::string page_rounded(int64_t bytes, uint64_t page_size);

// Decimal digits without a leading zero, up to `maximum`.
std::optional<uint64_t> parse_plain_decimal(std::string_view text, uint64_t maximum);

// Largest values that the kernel takes.
inline constexpr uint64_t kPidsMax = 4'194'304;                    // PID_MAX_LIMIT
inline constexpr uint64_t kCfsMicrosecondsMax = (1ull << 44) - 1;  // MAX_BW of the CPU bandwidth controller

}  // namespace berth::core
