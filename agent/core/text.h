// Text helpers without exceptions, locale or iostream.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace berth::core {

// The whole of `text` as a number in base 10 (or `base`): no sign for unsigned types, no spaces, no "+", no
// rest.
template <typename Number>
std::optional<Number> parse_number(std::string_view text, int base = 10) {
    Number value{};
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
    return value;
}

// Splits at every `separator`; "a,,b" has three parts, "" has one empty part.
std::vector<std::string_view> split(std::string_view text, char separator);

// Lines without their newline; a last line without one counts; "" has none.
std::vector<std::string_view> split_lines(std::string_view text);

// `text` without blanks, tabs and newlines at both ends.
std::string_view trim(std::string_view text);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

// `text` in double quotes with ", \ and control characters escaped and cut at 256 bytes: for error messages.
std::string quoted(std::string_view text);

std::string hex(const uint8_t* bytes, size_t count);
std::optional<std::vector<uint8_t>> unhex(std::string_view text);

}  // namespace berth::core
