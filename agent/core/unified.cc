#include "agent/core/unified.h"

#include <array>

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr std::array<UnifiedKey, 10> kKeys = {{
    {"cpu.max.burst", "cpu", UnifiedGrammar::kMicroseconds},
    {"cpu.uclamp.max", "cpu", UnifiedGrammar::kPercent},
    {"cpu.uclamp.min", "cpu", UnifiedGrammar::kPercent},
    {"memory.high", "memory", UnifiedGrammar::kBytes},
    {"memory.low", "memory", UnifiedGrammar::kBytes},
    {"memory.max", "memory", UnifiedGrammar::kBytes},
    {"memory.min", "memory", UnifiedGrammar::kBytes},
    {"memory.oom.group", "memory", UnifiedGrammar::kSwitch},
    {"memory.swap.max", "memory", UnifiedGrammar::kBytes},
    {"pids.max", "pids", UnifiedGrammar::kCount},
}};

std::string the_ten() {
    std::string text = "; allowed are ";
    for (size_t i = 0; i < kKeys.size(); ++i) {
        if (i != 0) text.append(i + 1 == kKeys.size() ? " and " : ", ");
        text.append(kKeys[i].name);
    }
    return text;
}

Error refused(std::string_view json_path, std::string_view key, std::string_view why) {
    std::string text(json_path);
    text.append("[").append(quoted(key)).append("]: ").append(why).append(the_ten());
    return invalid(std::move(text));
}

const char* grammar_text(UnifiedGrammar grammar) {
    switch (grammar) {
        case UnifiedGrammar::kBytes: return "a number of bytes below 2^63 or \"max\"";
        case UnifiedGrammar::kCount: return "a number of tasks up to 4194304 or \"max\"";
        case UnifiedGrammar::kMicroseconds: return "a number of microseconds up to 17592186044415";
        case UnifiedGrammar::kPercent:
            return "a percentage from 0 to 100 with at most two decimals or \"max\"";
        case UnifiedGrammar::kSwitch: return "0 or 1";
    }
    return "";
}

// Hundredths of a percent.
std::optional<uint32_t> parse_percent(std::string_view text) {
    std::string_view whole = text.substr(0, text.find('.'));
    std::optional<uint64_t> percent = parse_plain_decimal(whole, 100);
    if (!percent) return std::nullopt;
    uint32_t hundredths = static_cast<uint32_t>(*percent) * 100;
    if (whole.size() == text.size()) return hundredths;
    std::string_view decimals = text.substr(whole.size() + 1);
    if (decimals.empty() || decimals.size() > 2) return std::nullopt;
    uint32_t scale = 10;
    for (char c : decimals) {
        if (c < '0' || c > '9') return std::nullopt;
        hundredths += static_cast<uint32_t>(c - '0') * scale;
        scale /= 10;
    }
    if (hundredths > 10'000) return std::nullopt;
    return hundredths;
}

bool matches(UnifiedGrammar grammar, std::string_view value) {
    switch (grammar) {
        case UnifiedGrammar::kBytes: return value == "max" || parse_plain_decimal(value, INT64_MAX);
        case UnifiedGrammar::kCount: return value == "max" || parse_plain_decimal(value, kPidsMax);
        case UnifiedGrammar::kMicroseconds:
            return parse_plain_decimal(value, kCfsMicrosecondsMax).has_value();
        case UnifiedGrammar::kPercent: return value == "max" || parse_percent(value);
        case UnifiedGrammar::kSwitch: return value == "0" || value == "1";
    }
    return false;
}

}  // namespace

std::span<const UnifiedKey> unified_keys() {
    return kKeys;
}

const UnifiedKey* find_unified_key(std::string_view name) {
    for (const UnifiedKey& key : kKeys) {
        if (key.name == name) return &key;
    }
    return nullptr;
}

std::optional<uint64_t> parse_plain_decimal(std::string_view text, uint64_t maximum) {
    if (text.size() > 1 && text[0] == '0') return std::nullopt;
    std::optional<uint64_t> number = parse_number<uint64_t>(text);
    if (!number || *number > maximum) return std::nullopt;
    return number;
}

Status check_unified(std::string_view json_path, std::string_view key, std::string_view value) {
    const UnifiedKey* known = find_unified_key(key);
    if (known == nullptr) return refused(json_path, key, "is not a key that this agent writes");
    if (value.size() > limits::kUnifiedValueBytes) {
        return refused(
            json_path, key,
            format("the value has %zu bytes, more than %zu", value.size(), limits::kUnifiedValueBytes));
    }
    if (!matches(known->grammar, value)) {
        return refused(json_path, key, quoted(value) + " is not " + grammar_text(known->grammar));
    }
    return ok();
}

Error unified_not_a_string(std::string_view json_path, std::string_view key, std::string_view what) {
    return refused(json_path, key, "must be a string, not " + std::string(what));
}

std::string page_rounded(int64_t bytes, uint64_t page_size) {
    // The kernel counts pages, and its "max" is LONG_MAX / PAGE_SIZE of them.
    if (bytes < 0) return "max";
    uint64_t pages = static_cast<uint64_t>(bytes) / page_size;
    if (pages >= static_cast<uint64_t>(INT64_MAX) / page_size) return "max";
    return std::to_string(pages * page_size);
}

std::string normalize_unified(const UnifiedKey& key, std::string_view value, uint64_t page_size) {
    if (value == "max") return "max";
    switch (key.grammar) {
        case UnifiedGrammar::kBytes: {
            std::optional<uint64_t> bytes = parse_plain_decimal(value, INT64_MAX);
            BERTH_CHECK(bytes.has_value());
            return page_rounded(static_cast<int64_t>(*bytes), page_size);
        }
        case UnifiedGrammar::kPercent: {
            std::optional<uint32_t> hundredths = parse_percent(value);
            BERTH_CHECK(hundredths.has_value());
            if (*hundredths == 10'000) return "max";
            return format("%u.%02u", *hundredths / 100, *hundredths % 100);
        }
        case UnifiedGrammar::kCount:
        case UnifiedGrammar::kMicroseconds:
        case UnifiedGrammar::kSwitch: break;
    }
    return std::string(value);
}

}  // namespace berth::core
