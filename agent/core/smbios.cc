#include "agent/core/smbios.h"

#include <cstdint>

namespace berth::core {
namespace {

constexpr uint8_t kOemStrings = 11;
constexpr uint8_t kEndOfTable = 127;
constexpr size_t kHeaderBytes = 4;

}  // namespace

std::optional<std::string_view> find_oem_string(std::span<const std::byte> table, std::string_view prefix) {
    std::string_view rest(reinterpret_cast<const char*>(table.data()), table.size());
    while (rest.size() >= kHeaderBytes) {
        auto type = static_cast<uint8_t>(rest[0]);
        auto formatted_bytes = static_cast<uint8_t>(rest[1]);
        if (type == kEndOfTable || formatted_bytes < kHeaderBytes || formatted_bytes > rest.size()) break;
        rest.remove_prefix(formatted_bytes);
        // The strings: each ends in a NUL, the set in one more; a set without strings is two NULs.
        bool any = false;
        while (true) {
            size_t end = rest.find('\0');
            if (end == std::string_view::npos) return std::nullopt;
            std::string_view text = rest.substr(0, end);
            rest.remove_prefix(end + 1);
            if (text.empty()) break;
            any = true;
            if (type == kOemStrings && text.starts_with(prefix)) return text.substr(prefix.size());
        }
        if (!any) {
            if (rest.empty() || rest[0] != '\0') return std::nullopt;
            rest.remove_prefix(1);
        }
    }
    return std::nullopt;
}

}  // namespace berth::core
