// Linux capabilities by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace berth::core {

inline constexpr uint32_t kCapSysPtrace = 19;
inline constexpr uint32_t kCapSysAdmin = 21;

// The number of "CAP_CHOWN" (upper case, with the prefix, as in the OCI spec); nullopt when there is none of
// that name up to CAP_CHECKPOINT_RESTORE (40).
std::optional<uint32_t> capability_number(std::string_view name);

// "CAP_CHOWN" for 0; "capability 63" for what has no name.
std::string capability_name(uint32_t number);

// A set as a mask, bit n for capability n.
constexpr uint64_t capability_bit(uint32_t number) {
    return uint64_t{1} << number;
}

// The mask of all capabilities up to and including `last`.
constexpr uint64_t capabilities_up_to(uint32_t last) {
    return last >= 63 ? ~uint64_t{0} : (uint64_t{1} << (last + 1)) - 1;
}

}  // namespace berth::core
