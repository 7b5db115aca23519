// linux: namespaces, devices, paths and the rest of what only Linux has.
#include <algorithm>

#include "agent/core/cpu_list.h"
#include "agent/core/limits.h"
#include "agent/core/path.h"
#include "agent/core/spec_parse.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint64_t kMsRec = 0x4000;

constexpr struct {
    std::string_view name;
    uint64_t flag;
} kNamespaceTypes[] = {
    {"pid", kNewPid}, {"network", kNewNet}, {"mount", kNewMount},   {"ipc", kNewIpc},
    {"uts", kNewUts}, {"user", kNewUser},   {"cgroup", kNewCgroup}, {"time", kNewTime},
};

void parse_namespace(JsonObject& in, ContainerSpec& out) {
    std::string type;
    NamespaceSpec entry;
    in.read("type", type);
    in.read("path", entry.path);
    if (in.report().failed()) return;
    for (const auto& known : kNamespaceTypes)
        if (known.name == type) entry.flag = known.flag;
    if (entry.flag == 0) return in.fail("type", "unknown namespace type " + quoted(type));
    if (out.find_namespace(entry.flag)) return in.fail("type", quoted(type) + " is given twice");
    if (!entry.path.empty()) {
        check_absolute(in.report(), in.path_of("path"), entry.path);
    }
    out.namespaces.push_back(std::move(entry));
}

// dev_valid_name() of the kernel.
bool is_interface_name(std::string_view name) {
    constexpr size_t kMost = 15;
    if (name.empty() || name.size() > kMost || name == "." || name == "..") return false;
    for (char c : name)
        if (c == '/' || c == ':' || c == ' ' || (c >= '\t' && c <= '\r')) return false;
    return true;
}

// At most one "%d", for which the kernel's way is the lowest free number.
bool is_name_template(std::string_view name) {
    size_t percent = name.find('%');
    return percent == std::string_view::npos ||
           (name.substr(percent, 2) == "%d" && name.find('%', percent + 1) == std::string_view::npos);
}

void parse_net_devices(JsonObject& in, ContainerSpec& out) {
    in.each_member(
        "netDevices", limits::kNetDevices,
        [&](std::string name, const JsonValue& value, const std::string& path) {
            JsonObject device(in.report(), &value, path);
            NetDevice parsed{std::move(name), ""};
            device.read("name", parsed.new_name);
            if (in.report().failed()) return;
            if (!is_interface_name(parsed.name))
                return in.report().fail(invalid(path + ": not the name of a network interface"));
            if (parsed.new_name.empty()) parsed.new_name = parsed.name;
            if (!is_interface_name(parsed.new_name) || !is_name_template(parsed.new_name))
                return device.fail("name", "not the name of a network interface");
            for (const NetDevice& other : out.net_devices)
                if (other.new_name == parsed.new_name && parsed.new_name.find('%') == std::string::npos)
                    return device.fail("name", quoted(parsed.new_name) + " is given twice");
            out.net_devices.push_back(std::move(parsed));
        });
}

struct NamedBits {
    std::string_view name;
    uint32_t value;
};
// linux/mempolicy.h
constexpr NamedBits kMemoryPolicies[] = {
    {"MPOL_DEFAULT", 0},
    {"MPOL_PREFERRED", 1},
    {"MPOL_BIND", 2},
    {"MPOL_INTERLEAVE", 3},
    {"MPOL_LOCAL", 4},
    {"MPOL_PREFERRED_MANY", 5},
    {"MPOL_WEIGHTED_INTERLEAVE", 6},
};
constexpr NamedBits kMemoryPolicyFlags[] = {{"MPOL_F_STATIC_NODES", 1u << 15},
                                            {"MPOL_F_RELATIVE_NODES", 1u << 14},
                                            {"MPOL_F_NUMA_BALANCING", 1u << 13}};

void parse_memory_policy(JsonObject& in, ContainerSpec& out) {
    JsonObject policy(in.report(), in.find("memoryPolicy"), in.path_of("memoryPolicy"));
    if (!policy.present()) return;
    MemoryPolicy parsed;
    std::string mode;
    std::string nodes;
    policy.read("mode", mode);
    policy.read("nodes", nodes);
    if (in.report().failed()) return;
    bool known = false;
    for (const auto& entry : kMemoryPolicies) {
        if (entry.name != mode) continue;
        parsed.mode = entry.value;
        known = true;
    }
    if (!known) return policy.fail("mode", mode.empty() ? "missing" : "unknown mode " + quoted(mode));
    policy.each("flags", std::size(kMemoryPolicyFlags), [&](const JsonValue& value, const std::string& path) {
        std::string flag = json_string(in.report(), value, path);
        uint32_t bit = 0;
        for (const auto& entry : kMemoryPolicyFlags)
            if (entry.name == flag) bit = entry.value;
        if (bit == 0) in.report().fail(invalid(path + ": unknown flag " + quoted(flag)));
        parsed.mode |= bit;
    });
    if (!nodes.empty()) {
        auto mask = parse_cpu_list(nodes, limits::kMemoryNodes);
        if (!mask) return policy.fail("nodes", quoted(nodes) + " is not a list of memory nodes");
        parsed.nodes = std::move(*mask);
    }
    out.memory_policy = std::move(parsed);
}

void parse_time_offsets(JsonObject& in, ContainerSpec& out) {
    constexpr size_t kClocks = 8;
    in.each_member(
        "timeOffsets", kClocks, [&](std::string name, const JsonValue& value, const std::string& path) {
            JsonObject offset(in.report(), &value, path);
            TimeOffset parsed;
            offset.read("secs", parsed.secs);
            offset.read_between("nanosecs", parsed.nanosecs, 0u, 999'999'999u);
            if (name == "monotonic")
                out.monotonic_offset = parsed;
            else if (name == "boottime")
                out.boottime_offset = parsed;
            else
                in.report().fail(invalid(path + ": only \"monotonic\" and \"boottime\" have an offset"));
        });
}

void parse_device(JsonObject& in, ContainerSpec& out) {
    DeviceSpec device;
    std::string path;
    std::string type;
    constexpr uint32_t kMajorMost = (1u << 12) - 1;
    constexpr uint32_t kMinorMost = (1u << 20) - 1;
    constexpr uint32_t kIdMost = 4'294'967'294;
    in.read("path", path);
    in.read("type", type);
    in.read_between("major", device.major, 0u, kMajorMost);
    in.read_between("minor", device.minor, 0u, kMinorMost);
    in.read_between("fileMode", device.mode, 0u, 0xffffu);
    in.read_between("uid", device.uid, 0u, kIdMost);
    in.read_between("gid", device.gid, 0u, kIdMost);
    if (in.report().failed()) return;
    check_absolute(in.report(), in.path_of("path"), path);
    if (has_dot_dot(path)) return in.fail("path", "must not contain \"..\"");
    device.path = clean_path(path);
    if (device.path == "/") return in.fail("path", "must not be \"/\"");
    if (is_at_or_below(device.path, "/proc")) return in.fail("path", "must not lie in /proc");
    if (type != "c" && type != "u" && type != "p" && type != "b")
        return in.fail("type", "unknown device type " + quoted(type));
    bool numbered = in.find("major") && in.find("minor");
    if (type != "p" && !numbered)
        return in.fail("major",
                       format("and minor are needed for a %s device", type == "b" ? "block" : "character"));
    // Go marshals the file type bits along (os.FileMode as stat's st_mode); only permissions are ours to set.
    device.mode &= 07777;
    device.type = type == "u" ? 'c' : type[0];
    for (const DeviceSpec& other : out.devices)
        if (other.path == device.path) return in.fail("path", quoted(path) + " is given twice");
    out.devices.push_back(std::move(device));
}

// sysctl's rule: the first separator decides. "net.ipv4.conf.eth0/1.forwarding" has its "/" as a dot in the
// name; "net/ipv4/conf/eth0.1/forwarding" is a path already.
std::string sysctl_path(std::string_view key) {
    std::string path(key);
    size_t first = path.find_first_of("./");
    if (first == std::string::npos || path[first] == '/') return path;
    for (char& c : path) c = c == '.' ? '/' : c == '/' ? '.' : c;
    return path;
}

bool is_ipc_sysctl(std::string_view path) {
    constexpr std::string_view kIpc[] = {"kernel/msgmax", "kernel/msgmnb",         "kernel/msgmni",
                                         "kernel/sem",    "kernel/shmall",         "kernel/shmmax",
                                         "kernel/shmmni", "kernel/shm_rmid_forced"};
    return path.starts_with("fs/mqueue/") ||
           std::find(std::begin(kIpc), std::end(kIpc), path) != std::end(kIpc);
}

void check_sysctl(JsonReport& report, const std::string& json_path, std::string_view path,
                  const ContainerSpec& spec) {
    auto needs = [&](uint64_t flag, std::string_view name) {
        if (!spec.find_namespace(flag))
            report.fail(
                invalid(json_path + ": needs a " + std::string(name) + " namespace of the container's own"));
    };
    std::vector<std::string_view> parts = split(path, '/');
    for (std::string_view part : parts)
        if (part.empty() || part == "." || part == "..")
            return report.fail(invalid(json_path + ": not a sysctl name"));
    if (path == "kernel/hostname") return report.fail(invalid(json_path + ": use hostname"));
    if (is_ipc_sysctl(path)) return needs(kNewIpc, "ipc");
    if (path.starts_with("net/")) return needs(kNewNet, "network");
    if (path.starts_with("user/")) return needs(kNewUser, "user");
    if (path == "kernel/domainname") return needs(kNewUts, "uts");
    report.fail(
        make_error(Code::kPermissionDenied, json_path + ": is not a sysctl of a container's namespaces"));
}

void parse_sysctls(JsonObject& in, ContainerSpec& out) {
    JsonReport& report = in.report();
    in.each_member("sysctl", limits::kSysctls,
                   [&](std::string name, const JsonValue& value, const std::string& path) {
                       std::string text = json_string(report, value, path);
                       if (name.find('\0') != std::string::npos)
                           return report.fail(invalid(path + ": not a sysctl name"));
                       if (name.size() > limits::kPathBytes || text.size() > limits::kSysctlValueBytes)
                           return report.fail(invalid(path + ": longer than 4095 bytes"));
                       std::string sysctl = sysctl_path(name);
                       check_sysctl(report, path, sysctl, out);
                       out.sysctls.emplace_back(std::move(sysctl), std::move(text));
                   });
}

void parse_paths(JsonObject& in, std::string_view key, std::vector<std::string>& out) {
    in.each(key, limits::kMaskedPaths, [&](const JsonValue& value, const std::string& path) {
        std::string text = json_string(in.report(), value, path);
        check_absolute(in.report(), path, text);
        if (in.report().failed()) return;
        if (has_dot_dot(text)) return in.report().fail(invalid(path + ": must not contain \"..\""));
        text = clean_path(text);
        if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(std::move(text));
    });
}

void parse_propagation(JsonObject& in, ContainerSpec& out) {
    std::string word;
    in.read("rootfsPropagation", word);
    if (word.empty()) return;
    auto parsed = parse_mount_options(std::span<const std::string>(&word, 1));
    if (!parsed.ok() || parsed->propagation.size() != 1)
        return in.fail("rootfsPropagation", "unknown propagation " + quoted(word));
    out.rootfs_propagation = parsed->propagation[0].type | (parsed->propagation[0].recursive ? kMsRec : 0);
}

void parse_personality(JsonObject& in, ContainerSpec& out) {
    JsonObject personality(in.report(), in.find("personality"), in.path_of("personality"));
    if (!personality.present()) return;
    std::string domain;
    personality.read("domain", domain);
    refuse_if_set(personality, "flags");
    constexpr uint32_t kPerLinux = 0;
    constexpr uint32_t kPerLinux32 = 8;
    if (domain != "LINUX" && domain != "LINUX32")
        return personality.fail("domain", "unknown domain " + quoted(domain));
    out.personality = domain == "LINUX32" ? kPerLinux32 : kPerLinux;
}

void parse_nested(JsonObject& in, ContainerSpec& out) {
    std::vector<std::string> skipped;
    if (const JsonValue* value = in.find("resources")) {
        auto resources = parse_resources(*value, in.path_of("resources"), &skipped);
        if (!resources.ok()) return in.report().fail(std::move(resources.error()));
        out.resources = std::move(*resources);
    }
    if (const JsonValue* value = in.find("seccomp")) {
        auto profile = parse_seccomp(*value, in.path_of("seccomp"), &skipped);
        if (!profile.ok()) return in.report().fail(std::move(profile.error()));
        out.seccomp = std::move(*profile);
    }
    for (std::string& path : skipped) in.report().ignore(std::move(path));
}

}  // namespace

void parse_linux(JsonObject& in, ContainerSpec& out) {
    constexpr size_t kNamespaces = 64;
    JsonReport& report = in.report();
    in.each("namespaces", kNamespaces, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(report, &value, path);
        parse_namespace(entry, out);
    });
    refuse_if_set(in, "intelRdt");
    parse_net_devices(in, out);
    parse_memory_policy(in, out);
    parse_id_map(in, out.id_map);
    parse_time_offsets(in, out);
    in.each("devices", limits::kDevices, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(report, &value, path);
        parse_device(entry, out);
    });
    parse_sysctls(in, out);
    in.read("cgroupsPath", out.cgroups_path);
    parse_propagation(in, out);
    parse_paths(in, "maskedPaths", out.masked_paths);
    parse_paths(in, "readonlyPaths", out.readonly_paths);
    in.read("mountLabel", out.mount_label);
    parse_personality(in, out);
    parse_nested(in, out);
}

Status check_mapped_ids(const ContainerSpec& spec) {
    const UserSpec& user = spec.process.user;
    auto check = [](const IdMappings& mappings, uint32_t id, const std::string& field) -> Status {
        if (map_to_host(mappings, id)) return ok();
        return invalid(field + format(": %u is not mapped into the user namespace", id));
    };
    BERTH_TRY(check(spec.id_map.uids, user.uid, "process.user.uid"));
    BERTH_TRY(check(spec.id_map.gids, user.gid, "process.user.gid"));
    for (size_t i = 0; i < user.additional_gids.size(); ++i)
        BERTH_TRY(
            check(spec.id_map.gids, user.additional_gids[i], format("process.user.additionalGids[%zu]", i)));
    for (size_t i = 0; i < spec.devices.size(); ++i) {
        BERTH_TRY(check(spec.id_map.uids, spec.devices[i].uid, format("linux.devices[%zu].uid", i)));
        BERTH_TRY(check(spec.id_map.gids, spec.devices[i].gid, format("linux.devices[%zu].gid", i)));
    }
    return ok();
}

namespace {

Status check_user_namespace(const ContainerSpec& spec) {
    const NamespaceSpec* user = spec.find_namespace(kNewUser);
    if (!user) {
        if (!spec.id_map.empty()) return invalid("linux.uidMappings: needs a user namespace");
        for (size_t i = 0; i < spec.mounts.size(); ++i)
            if (spec.mounts[i].options.idmap && spec.mounts[i].id_map.empty())
                return invalid(
                    format("mounts[%zu].options: \"idmap\" needs "
                           "uidMappings and gidMappings of the "
                           "mount, or a user namespace",
                           i));
        return ok();
    }
    if (spec.id_map.empty())
        return user->path.empty() ? Status(invalid("linux.uidMappings: missing for a new user namespace"))
                                  : ok();
    if (!map_to_host(spec.id_map.uids, 0)) return invalid("linux.uidMappings: id 0 is not mapped");
    if (!map_to_host(spec.id_map.gids, 0)) return invalid("linux.gidMappings: id 0 is not mapped");
    return check_mapped_ids(spec);
}

Status check_time_namespace(const ContainerSpec& spec) {
    if (!spec.monotonic_offset && !spec.boottime_offset) return ok();
    const NamespaceSpec* time = spec.find_namespace(kNewTime);
    if (!time) return invalid("linux.timeOffsets: needs a time namespace");
    if (!time->path.empty()) return invalid("linux.timeOffsets: a time namespace that is joined has its own");
    return ok();
}

}  // namespace

Status check_spec(const ContainerSpec& spec) {
    if (!spec.net_devices.empty() && !spec.find_namespace(kNewNet))
        return invalid("linux.netDevices: needs a network namespace");
    BERTH_TRY(check_user_namespace(spec));
    BERTH_TRY(check_time_namespace(spec));
    if (!spec.find_namespace(kNewUts)) {
        if (!spec.hostname.empty()) return invalid("hostname: needs a uts namespace");
        if (!spec.domainname.empty()) return invalid("domainname: needs a uts namespace");
    }
    if (!spec.find_namespace(kNewMount)) {
        if (!spec.masked_paths.empty()) return invalid("linux.maskedPaths: needs a mount namespace");
        if (!spec.readonly_paths.empty()) return invalid("linux.readonlyPaths: needs a mount namespace");
        // Its root must be one for whoever owns the other mount namespace.
        if (spec.find_namespace(kNewUser))
            return invalid("linux.namespaces: a user namespace needs a mount namespace");
    }
    return ok();
}

}  // namespace berth::core
