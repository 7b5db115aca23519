#include "agent/core/text.h"

#include <cstdarg>
#include <cstdio>

namespace berth::core {

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (true) {
        size_t at = text.find(separator);
        parts.push_back(text.substr(0, at));
        if (at == std::string_view::npos) return parts;
        text.remove_prefix(at + 1);
    }
}

std::vector<std::string_view> split_lines(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        size_t at = text.find('\n');
        lines.push_back(text.substr(0, at));
        if (at == std::string_view::npos) break;
        text.remove_prefix(at + 1);
    }
    return lines;
}

std::string_view trim(std::string_view text) {
    constexpr std::string_view kBlank = " \t\r\n";
    size_t first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) return {};
    size_t last = text.find_last_not_of(kBlank);
    return text.substr(first, last - first + 1);
}

std::string format(const char* pattern, ...) {
    va_list arguments;
    va_start(arguments, pattern);
    va_list again;
    va_copy(again, arguments);
    int needed = vsnprintf(nullptr, 0, pattern, arguments);
    va_end(arguments);
    std::string text;
    if (needed > 0) {
        text.resize(static_cast<size_t>(needed) + 1);
        vsnprintf(text.data(), text.size(), pattern, again);
        text.pop_back();
    }
    va_end(again);
    return text;
}

std::string quoted(std::string_view text) {
    constexpr size_t kShown = 256;
    std::string out = "\"";
    for (char c : text.substr(0, kShown)) {
        auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out.push_back('\\');
            out.push_back(c);
        } else if (c == '\n') {
            out.append("\\n");
        } else if (byte < 0x20 || byte == 0x7f) {
            out.append(format("\\x%02x", byte));
        } else {
            out.push_back(c);
        }
    }
    if (text.size() > kShown) out.append("...");
    out.push_back('"');
    return out;
}

std::string hex(const uint8_t* bytes, size_t count) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    out.reserve(count * 2);
    for (size_t i = 0; i < count; ++i) {
        out.push_back(kDigits[bytes[i] >> 4]);
        out.push_back(kDigits[bytes[i] & 15]);
    }
    return out;
}

std::optional<std::vector<uint8_t>> unhex(std::string_view text) {
    if (text.size() % 2 != 0) return std::nullopt;
    std::vector<uint8_t> bytes;
    bytes.reserve(text.size() / 2);
    for (size_t i = 0; i < text.size(); i += 2) {
        uint8_t value = 0;
        for (size_t j = i; j < i + 2; ++j) {
            char c = text[j];
            uint8_t digit = 0;
            if (c >= '0' && c <= '9')
                digit = static_cast<uint8_t>(c - '0');
            else if (c >= 'a' && c <= 'f')
                digit = static_cast<uint8_t>(c - 'a' + 10);
            else if (c >= 'A' && c <= 'F')
                digit = static_cast<uint8_t>(c - 'A' + 10);
            else
                return std::nullopt;
            value = static_cast<uint8_t>(value << 4 | digit);
        }
        bytes.push_back(value);
    }
    return bytes;
}

}  // namespace berth::core
