#include "agent/core/id_map.h"

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

bool overlap(uint32_t a, uint32_t b, const IdMapping& one, const IdMapping& other) {
    return a < uint64_t{b} + other.size && b < uint64_t{a} + one.size;
}

void parse_list(JsonObject& in, std::string_view key, IdMappings& out) {
    in.each(key, limits::kIdMappings, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(in.report(), &value, path);
        constexpr uint64_t kIds = 4'294'967'295;  // the last one means "unchanged" to the kernel
        IdMapping mapping;
        entry.read("containerID", mapping.container_id);
        entry.read("hostID", mapping.host_id);
        entry.read("size", mapping.size);
        if (in.report().failed()) return;
        if (mapping.size == 0) return entry.fail("size", "must be more than 0");
        if (mapping.container_id + uint64_t{mapping.size} > kIds ||
            mapping.host_id + uint64_t{mapping.size} > kIds)
            return entry.fail("size", "reaches beyond the last id");
        for (const IdMapping& other : out) {
            if (overlap(mapping.container_id, other.container_id, mapping, other))
                return entry.fail("containerID", "overlaps with an earlier range");
            if (overlap(mapping.host_id, other.host_id, mapping, other))
                return entry.fail("hostID", "overlaps with an earlier range");
        }
        out.push_back(mapping);
    });
}

}  // namespace

std::optional<uint32_t> map_to_host(const IdMappings& mappings, uint32_t id) {
    for (const IdMapping& mapping : mappings)
        if (id >= mapping.container_id && id - mapping.container_id < mapping.size)
            return mapping.host_id + (id - mapping.container_id);
    return std::nullopt;
}

std::string id_map_text(const IdMappings& mappings) {
    std::string text;
    for (const IdMapping& mapping : mappings)
        text += format("%u %u %u\n", mapping.container_id, mapping.host_id, mapping.size);
    return text;
}

std::optional<IdMappings> parse_id_map_text(std::string_view text) {
    IdMappings mappings;
    for (std::string_view line : split_lines(text)) {
        uint32_t numbers[3] = {};
        size_t count = 0;
        for (std::string_view word : split(line, ' ')) {
            if (word.empty()) continue;
            auto number = parse_number<uint32_t>(word);
            if (!number || count == 3) return std::nullopt;
            numbers[count++] = *number;
        }
        if (count != 3) return std::nullopt;
        mappings.push_back({numbers[0], numbers[1], numbers[2]});
    }
    return mappings;
}

void parse_id_map(JsonObject& in, IdMap& out) {
    parse_list(in, "uidMappings", out.uids);
    parse_list(in, "gidMappings", out.gids);
    if (in.report().failed() || out.uids.empty() == out.gids.empty()) return;
    in.fail(out.uids.empty() ? "uidMappings" : "gidMappings", "missing: the other kind is given");
}

}  // namespace berth::core
