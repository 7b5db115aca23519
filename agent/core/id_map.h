// Mappings of user and group ids: of user namespaces, and of id-mapped mounts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/json.h"

namespace berth::core {

struct IdMapping {
    uint32_t container_id = 0;
    uint32_t host_id = 0;
    uint32_t size = 0;
    bool operator==(const IdMapping&) const = default;
};
using IdMappings = std::vector<IdMapping>;

// Both are given, or both are empty.
struct IdMap {
    IdMappings uids;
    IdMappings gids;
    bool empty() const { return uids.empty() && gids.empty(); }
    bool operator==(const IdMap&) const = default;
};

// What `id` inside is outside; none when it is not mapped.
std::optional<uint32_t> map_to_host(const IdMappings& mappings, uint32_t id);

// As /proc/PID/uid_map takes it: "0 100000 65536\n".
std::string id_map_text(const IdMappings& mappings);

// As the kernel shows it: columns of any width. None when it is malformed.
std::optional<IdMappings> parse_id_map_text(std::string_view text);

// Reads `uidMappings` and `gidMappings` of `in`. Refused: more entries than the kernel takes (340), an empty
// range, one beyond the last id, ranges that overlap on either side, one list without the other.
void parse_id_map(JsonObject& in, IdMap& out);

}  // namespace berth::core
