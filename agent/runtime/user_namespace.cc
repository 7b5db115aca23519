#include "agent/runtime/user_namespace.h"

#include <algorithm>

#include "agent/runtime/guest_facts.h"

namespace berth::runtime {
namespace {

// The kernel sorts maps of more than five ranges.
core::IdMappings sorted(core::IdMappings mappings) {
    std::sort(mappings.begin(), mappings.end(), [](const core::IdMapping& a, const core::IdMapping& b) {
        return a.container_id < b.container_id;
    });
    return mappings;
}

}  // namespace

std::optional<core::IdMap> read_id_map(const std::string& process_directory) {
    auto uids = core::parse_id_map_text(read_whole_file(process_directory + "/uid_map"));
    auto gids = core::parse_id_map_text(read_whole_file(process_directory + "/gid_map"));
    if (!uids || !gids || uids->empty() || gids->empty()) return std::nullopt;
    return core::IdMap{std::move(*uids), std::move(*gids)};
}

core::Status complete_user_namespace(core::ContainerSpec& spec) {
    constexpr std::string_view kSuffix = "/ns/user";
    const core::NamespaceSpec* user = spec.find_namespace(core::kNewUser);
    if (user == nullptr || !user->path.starts_with("/proc/") || !user->path.ends_with(kSuffix))
        return core::ok();
    auto found = read_id_map(user->path.substr(0, user->path.size() - kSuffix.size()));
    if (!found) return core::ok();  // opening the path says what is wrong with it
    bool same = spec.id_map.empty() || (sorted(spec.id_map.uids) == sorted(found->uids) &&
                                        sorted(spec.id_map.gids) == sorted(found->gids));
    if (!same)
        return core::invalid(
            "linux.uidMappings: not those of the user namespace that linux.namespaces joins");
    spec.id_map = std::move(*found);
    return core::check_mapped_ids(spec);
}

}  // namespace berth::runtime
