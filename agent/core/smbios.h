// SMBIOS structures, as /sys/firmware/dmi/tables/DMI holds them (DMTF DSP0134): written by the VMM, so
// foreign bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace berth::core {

// What follows `prefix` in the first OEM string (type 11) that begins with it; the view points into `table`.
// Nothing when there is none or the table is malformed before it.
std::optional<std::string_view> find_oem_string(std::span<const std::byte> table, std::string_view prefix);

}  // namespace berth::core
