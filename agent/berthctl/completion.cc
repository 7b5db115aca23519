#include "agent/berthctl/completion.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "agent/berthctl/config.h"
#include "agent/berthctl/json_edit.h"
#include "agent/berthctl/json_text.h"
#include "agent/berthctl/unified_keys.h"
#include "agent/core/path.h"
#include "agent/core/text.h"

namespace berth::ctl {

namespace {

using core::JsonValue;
using rapidjson::Document;

bool makes_user_namespace(JsonValue& linux_part) {
    JsonValue* namespaces = find_member(linux_part, "namespaces");
    if (namespaces == nullptr || !namespaces->IsArray()) return false;
    for (JsonValue& entry : namespaces->GetArray()) {
        if (!entry.IsObject() || !entry.HasMember("type") || !entry["type"].IsString()) continue;
        bool joins =
            entry.HasMember("path") && entry["path"].IsString() && entry["path"].GetStringLength() > 0;
        if (std::string_view(entry["type"].GetString()) == "user" && !joins) return true;
    }
    return false;
}

uint32_t user_number(JsonValue& document, const char* name) {
    JsonValue* process = find_object(document, "process");
    JsonValue* user = process == nullptr ? nullptr : find_object(*process, "user");
    JsonValue* number = user == nullptr ? nullptr : find_member(*user, name);
    return number != nullptr && number->IsUint() ? number->GetUint() : 0;
}

void add_map(JsonValue& maps, uint32_t inside, uint32_t outside, uint32_t count, Document& document) {
    JsonValue map(rapidjson::kObjectType);
    set_member(map, "containerID", JsonValue(inside), document);
    set_member(map, "hostID", JsonValue(outside), document);
    set_member(map, "size", JsonValue(count), document);
    maps.PushBack(map, document.GetAllocator());
}

// `inside` is the caller, ids below and above it are subordinate ones while there are some.
JsonValue default_map(uint32_t inside, uint32_t caller, const char* table_path, Document& document) {
    JsonValue maps(rapidjson::kArrayType);
    core::Result<std::string> table = read_file(table_path);
    std::optional<std::pair<uint32_t, uint32_t>> range;
    const char* name = ::getenv("USER");
    std::string_view user = caller == 0 ? "root" : name == nullptr ? "" : name;
    if (table.ok()) range = find_subordinate_ids(*table, user, caller);
    uint32_t below = range ? std::min(inside, range->second) : 0;
    if (below > 0) add_map(maps, 0, range->first, below, document);
    add_map(maps, inside, caller, 1, document);
    if (range && range->second > below)
        add_map(maps, inside + 1, range->first + below, range->second - below, document);
    return maps;
}

bool add_default_maps(Document& document) {
    JsonValue* linux_part = find_object(document, "linux");
    if (linux_part == nullptr || !makes_user_namespace(*linux_part)) return false;
    if (!is_empty_list(*linux_part, "uidMappings") || !is_empty_list(*linux_part, "gidMappings"))
        return false;
    set_member(*linux_part, "uidMappings",
               default_map(user_number(document, "uid"), ::geteuid(), "/etc/subuid", document), document);
    set_member(*linux_part, "gidMappings",
               default_map(user_number(document, "gid"), ::getegid(), "/etc/subgid", document), document);
    return true;
}

bool add_original_groups(Document& document) {
    constexpr const char* kAnnotation = "run.oci.keep_original_groups";
    JsonValue* annotations = find_object(document, "annotations");
    JsonValue* keep = annotations == nullptr ? nullptr : find_member(*annotations, kAnnotation);
    if (keep == nullptr || !keep->IsString() || std::string_view(keep->GetString()) != "1") return false;
    gid_t groups[NGROUPS_MAX];
    int count = ::getgroups(NGROUPS_MAX, groups);
    JsonValue list(rapidjson::kArrayType);
    for (int i = 0; i < count; ++i) list.PushBack(JsonValue(groups[i]), document.GetAllocator());
    JsonValue& process = member(document, "process", JsonValue(rapidjson::kObjectType), document);
    JsonValue& user = member(process, "user", JsonValue(rapidjson::kObjectType), document);
    set_member(user, "additionalGids", std::move(list), document);
    return true;
}

void add_mount(const BindMount& mount, Document& document) {
    constexpr std::string_view kOptions[] = {"bind", "nosuid", "noexec", "nodev", "ro"};
    JsonValue entry(rapidjson::kObjectType);
    set_member(entry, "destination", string_value(mount.target, document), document);
    set_member(entry, "type", string_value("bind", document), document);
    set_member(entry, "source", string_value(mount.source, document), document);
    set_member(entry, "options", string_array(kOptions, document), document);
    JsonValue& mounts = member(document, "mounts", JsonValue(rapidjson::kArrayType), document);
    mounts.PushBack(entry, document.GetAllocator());
}

bool move_unified(Document& document) {
    JsonValue* linux_part = find_object(document, "linux");
    JsonValue* resources = linux_part == nullptr ? nullptr : find_object(*linux_part, "resources");
    return resources != nullptr && move_unified_keys(*resources, document);
}

// A destination is a path in the container. runc takes one that repeats the path of the root file system, and
// strips that.
bool strip_root(std::string_view bundle, Document& document) {
    JsonValue* root = find_object(document, "root");
    JsonValue* path = root == nullptr ? nullptr : find_member(*root, "path");
    JsonValue* mounts = find_member(document, "mounts");
    if (path == nullptr || !path->IsString() || mounts == nullptr || !mounts->IsArray()) return false;
    std::string prefix(path->GetString(), path->GetStringLength());
    if (!prefix.starts_with('/')) prefix = std::string(bundle) + "/" + prefix;
    prefix = core::clean_path(prefix) + "/";
    bool changed = false;
    for (JsonValue& mount : mounts->GetArray()) {
        JsonValue* destination = mount.IsObject() ? find_member(mount, "destination") : nullptr;
        if (destination == nullptr || !destination->IsString()) continue;
        std::string_view text(destination->GetString(), destination->GetStringLength());
        if (prefix.size() < 3 || !text.starts_with(prefix)) continue;
        set_member(mount, "destination", string_value(std::string(text.substr(prefix.size() - 1)), document),
                   document);
        changed = true;
    }
    return changed;
}

bool has_text(JsonValue& object, const char* list, std::string_view text) {
    JsonValue* found = find_member(object, list);
    if (found == nullptr || !found->IsArray()) return false;
    for (JsonValue& entry : found->GetArray()) {
        if (entry.IsString() && std::string_view(entry.GetString(), entry.GetStringLength()) == text)
            return true;
    }
    return false;
}

// The kernel raises what is permitted and inheritable, PR_CAP_AMBIENT_RAISE says EPERM of all others. Nothing
// is told where none is inheritable: older spec commands write it so, and nobody who uses them means it.
void warn_of_ambient(Document& document, std::vector<std::string>& warnings) {
    JsonValue* process = find_object(document, "process");
    JsonValue* sets = process == nullptr ? nullptr : find_object(*process, "capabilities");
    JsonValue* ambient = sets == nullptr ? nullptr : find_member(*sets, "ambient");
    if (ambient == nullptr || !ambient->IsArray() || is_empty_list(*sets, "inheritable")) return;
    for (JsonValue& entry : ambient->GetArray()) {
        if (!entry.IsString()) continue;
        std::string_view name(entry.GetString(), entry.GetStringLength());
        if (has_text(*sets, "permitted", name) && has_text(*sets, "inheritable", name)) continue;
        warnings.push_back("can't raise ambient capability " + std::string(name) +
                           ": it must be permitted and inheritable, too");
    }
}

}  // namespace

std::optional<std::pair<uint32_t, uint32_t>> find_subordinate_ids(std::string_view table,
                                                                  std::string_view user, uint32_t id) {
    std::string number = core::format("%u", id);
    for (std::string_view line : core::split_lines(table)) {
        std::vector<std::string_view> parts = core::split(core::trim(line), ':');
        if (parts.size() != 3 || (parts[0] != user && parts[0] != number)) continue;
        auto first = core::parse_number<uint32_t>(parts[1]);
        auto count = core::parse_number<uint32_t>(parts[2]);
        if (first && count && *count > 0) return std::pair{*first, *count};
    }
    return std::nullopt;
}

core::Result<std::string> complete_config(std::string config, const CallersPart& part,
                                          std::vector<std::string>* warnings) {
    BERTH_ASSIGN(Document document, parse_object(config, "config.json"));
    bool changed = !part.variables.empty() || !part.mounts.empty();
    if (!part.variables.empty()) {
        JsonValue& process = member(document, "process", JsonValue(rapidjson::kObjectType), document);
        JsonValue& env = member(process, "env", JsonValue(rapidjson::kArrayType), document);
        for (const std::string& variable : part.variables) set_environment(variable, env, document);
    }
    for (const BindMount& mount : part.mounts) add_mount(mount, document);
    changed = add_default_maps(document) || changed;
    changed = add_original_groups(document) || changed;
    if (!part.bundle.empty()) changed = strip_root(part.bundle, document) || changed;
    if (part.any_unified) changed = move_unified(document) || changed;
    if (warnings != nullptr) warn_of_ambient(document, *warnings);
    return changed ? json_text_of(document) : std::move(config);
}

}  // namespace berth::ctl
