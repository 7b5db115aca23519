#include "agent/wire/status.h"

#include <algorithm>

namespace berth::wire {

namespace {

// Bytes of the well-formed UTF-8 sequence at the start of `text`; 0 when there is none.
size_t sequence_bytes(std::string_view text) {
    auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    uint8_t first = byte(0);
    if (first < 0x80) return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
    }
    uint8_t second = byte(1);
    bool is_overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    bool is_surrogate = first == 0xED && second >= 0xA0;
    bool is_too_large = first == 0xF4 && second >= 0x90;
    return is_overlong || is_surrogate || is_too_large ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        size_t length = sequence_bytes(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

std::string status_message(std::string_view text) {
    std::string line;
    line.reserve(std::min(text.size(), kStatusMessageBytes));
    while (!text.empty()) {
        size_t length = sequence_bytes(text);
        if (line.size() + std::max<size_t>(length, 1) > kStatusMessageBytes) break;
        uint8_t first = static_cast<uint8_t>(text[0]);
        if (length == 0 || first < 0x20 || first == 0x7F) {
            line += '?';
            text.remove_prefix(1);
            continue;
        }
        line += text.substr(0, length);
        text.remove_prefix(length);
    }
    return line;
}

int32_t code_to_wire(core::Code code) {
    return static_cast<int32_t>(code);
}

core::Code code_from_wire(int64_t code) {
    if (code < 0 || code > static_cast<int64_t>(core::Code::kUnavailable)) return core::Code::kUnknown;
    return static_cast<core::Code>(code);
}

}  // namespace berth::wire
