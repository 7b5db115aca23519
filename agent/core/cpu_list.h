// Lists of numbers as the kernel writes them: CPUs and memory nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace berth::core {

// "0-3,8" as a mask: bit n of word n/64. None for what is malformed, empty, or
// names a number of `most` or above.
std::optional<std::vector<uint64_t>> parse_cpu_list(std::string_view text, uint32_t most);

}  // namespace berth::core
