// linux: namespaces, devices, paths and the rest of what only Linux has.
#include <algorithm>

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
    if (entry.flag == kNewUser || entry.flag == kNewTime)
        return in.fail("type", quoted(type) + " is not supported", Code::kUnimplemented);
    if (!entry.path.empty()) {
        check_absolute(in.report(), in.path_of("path"), entry.path);
        if (entry.flag == kNewMount)
            return in.fail("path", "joining a mount namespace is not supported", Code::kUnimplemented);
    }
    out.namespaces.push_back(std::move(entry));
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
    if (type == "b")
        return in.fail("type", "block devices are not given to containers", Code::kPermissionDenied);
    if (type != "c" && type != "u" && type != "p")
        return in.fail("type", "unknown device type " + quoted(type));
    bool numbered = in.find("major") && in.find("minor");
    if (type != "p" && !numbered) return in.fail("major", "and minor are needed for a character device");
    // Go marshals the file type bits along (os.FileMode as stat's st_mode); only permissions are ours to set.
    device.mode &= 07777;
    device.type = type == "p" ? 'p' : 'c';
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
    for (std::string_view key :
         {"uidMappings", "gidMappings", "timeOffsets", "intelRdt", "netDevices", "memoryPolicy"})
        refuse_if_set(in, key);
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

Status check_spec(const ContainerSpec& spec) {
    if (!spec.find_namespace(kNewUts)) {
        if (!spec.hostname.empty()) return invalid("hostname: needs a uts namespace");
        if (!spec.domainname.empty()) return invalid("domainname: needs a uts namespace");
    }
    if (!spec.find_namespace(kNewMount)) {
        if (!spec.masked_paths.empty()) return invalid("linux.maskedPaths: needs a mount namespace");
        if (!spec.readonly_paths.empty()) return invalid("linux.readonlyPaths: needs a mount namespace");
        // The container's mounts would be the guest's own.
        return make_error(Code::kUnimplemented,
                          "linux.namespaces: a container without its own mount namespace is not "
                          "supported");
    }
    return ok();
}

}  // namespace berth::core
