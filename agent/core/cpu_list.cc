#include "agent/core/cpu_list.h"

#include "agent/core/text.h"

namespace berth::core {

std::optional<std::vector<uint64_t>> parse_cpu_list(std::string_view text, uint32_t most) {
    std::vector<uint64_t> mask;
    for (std::string_view part : split(text, ',')) {
        size_t dash = part.find('-');
        auto first = parse_number<uint32_t>(part.substr(0, dash));
        auto last = dash == std::string_view::npos ? first : parse_number<uint32_t>(part.substr(dash + 1));
        if (!first || !last || *first > *last || *last >= most) return std::nullopt;
        if (mask.size() <= *last / 64) mask.resize(*last / 64 + 1);
        for (uint32_t cpu = *first; cpu <= *last; ++cpu) mask[cpu / 64] |= uint64_t{1} << (cpu % 64);
    }
    return mask;
}

}  // namespace berth::core
