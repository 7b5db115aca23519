#include "agent/core/rlimits.h"

#include <iterator>

namespace berth::core {
namespace {

// Index = number on x86_64 and aarch64 (asm-generic/resource.h).
constexpr std::string_view kNames[] = {
    "RLIMIT_CPU",      "RLIMIT_FSIZE", "RLIMIT_DATA",   "RLIMIT_STACK",
    "RLIMIT_CORE",     "RLIMIT_RSS",   "RLIMIT_NPROC",  "RLIMIT_NOFILE",
    "RLIMIT_MEMLOCK",  "RLIMIT_AS",    "RLIMIT_LOCKS",  "RLIMIT_SIGPENDING",
    "RLIMIT_MSGQUEUE", "RLIMIT_NICE",  "RLIMIT_RTPRIO", "RLIMIT_RTTIME",
};
static_assert(std::size(kNames) == 16 && kNames[kRlimitNofile] == "RLIMIT_NOFILE");

}  // namespace

std::optional<uint32_t> rlimit_number(std::string_view name) {
    for (uint32_t number = 0; number < std::size(kNames); ++number)
        if (kNames[number] == name) return number;
    return std::nullopt;
}

std::string_view rlimit_name(uint32_t resource) {
    return resource < std::size(kNames) ? kNames[resource] : std::string_view{};
}

}  // namespace berth::core
