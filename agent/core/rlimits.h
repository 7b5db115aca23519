// Resource limits by name (setrlimit(2)).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace berth::core {

struct Rlimit {
    uint32_t resource = 0;  // RLIMIT_*
    uint64_t soft = 0;      // UINT64_MAX: no limit
    uint64_t hard = 0;
};

inline constexpr uint32_t kRlimitNofile = 7;

// The number of "RLIMIT_NOFILE"; nullopt for a name that Linux does not have.
std::optional<uint32_t> rlimit_number(std::string_view name);
std::string_view rlimit_name(uint32_t resource);  // "" for what has none

}  // namespace berth::core
