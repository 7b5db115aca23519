#include "agent/core/cgroup_mount.h"

#include <vector>

#include "agent/core/text.h"

namespace berth::core {
namespace {

// The kernel writes blank, tab, newline and backslash as \ooo.
std::string unescape(std::string_view text) {
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size()) {
            if (std::optional<uint8_t> code = parse_number<uint8_t>(text.substr(i + 1, 3), 8)) {
                plain.push_back(static_cast<char>(*code));
                i += 3;
                continue;
            }
        }
        plain.push_back(text[i]);
    }
    return plain;
}

}  // namespace

std::optional<std::string> find_cgroup2_mount(std::string_view mountinfo) {
    for (std::string_view line : split_lines(mountinfo)) {
        // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [OPTIONAL...] - TYPE SOURCE SUPEROPTIONS
        size_t separator = line.find(" - ");
        if (separator == std::string_view::npos) continue;
        std::vector<std::string_view> head = split(line.substr(0, separator), ' ');
        std::string_view type = line.substr(separator + 3);
        if (head.size() < 6 || type.substr(0, type.find(' ')) != "cgroup2") continue;
        return unescape(head[4]);
    }
    return std::nullopt;
}

std::optional<std::string> find_own_cgroup2(std::string_view proc_cgroup) {
    for (std::string_view line : split_lines(proc_cgroup)) {
        if (line.starts_with("0::/")) return std::string(line.substr(3));
    }
    return std::nullopt;
}

}  // namespace berth::core
