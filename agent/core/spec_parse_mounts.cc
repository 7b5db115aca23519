// mounts: where what is mounted, with which words.
#include "agent/core/limits.h"
#include "agent/core/path.h"
#include "agent/core/spec_parse.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr std::string_view kProc = "/proc";

// Files of /proc that lxcfs and others replace; any other mount inside /proc could redirect what later steps
// write there (runc's list).
constexpr std::string_view kReplaceableInProc[] = {
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/slabinfo",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/crypto/fips_enabled",
};

void check_destination(JsonObject& in, const MountSpec& mount) {
    if (mount.destination == "/") return in.fail("destination", "must not be \"/\"");
    if (!is_at_or_below(mount.destination, kProc)) return;
    if (mount.destination == kProc) {
        bool is_proc = mount.options.bind ? clean_path(mount.source) == kProc : mount.type == "proc";
        if (!is_proc)
            in.fail("destination", "\"/proc\" takes only a proc filesystem", Code::kPermissionDenied);
        return;
    }
    for (std::string_view allowed : kReplaceableInProc)
        if (mount.destination == allowed) return;
    in.fail("destination", quoted(mount.destination) + ": no mounts inside /proc", Code::kPermissionDenied);
}

void check_source(JsonObject& in, const MountSpec& mount) {
    if (mount.source.size() > limits::kPathBytes) return in.fail("source", "longer than 4095 bytes");
    if (!mount.options.bind) {
        if (mount.type.empty() || mount.type == "none") in.fail("type", "missing");
        return;
    }
    if (mount.source.empty()) return in.fail("source", "missing for a bind mount");
    if (has_dot_dot(mount.source)) return in.fail("source", "must not contain \"..\"");
}

void parse_mount(JsonObject& in, ContainerSpec& out) {
    MountSpec mount;
    std::string destination;
    std::vector<std::string> words;
    in.read("destination", destination);
    in.read("type", mount.type);
    in.read("source", mount.source);
    in.read("options", words, limits::kMountOptions);
    parse_id_map(in, mount.id_map);
    if (in.report().failed()) return;
    if (destination.empty()) return in.fail("destination", "missing");
    if (destination.size() > limits::kPathBytes) return in.fail("destination", "longer than 4095 bytes");
    if (has_dot_dot(destination)) return in.fail("destination", "must not contain \"..\"");
    mount.destination = clean_path(destination);
    auto options = parse_mount_options(words);
    if (!options.ok()) return in.report().fail(std::move(options.error()).within(in.path_of("options")));
    mount.options = std::move(*options);
    if (mount.type == "bind" || mount.type == "rbind") {
        mount.options.bind = true;
        mount.options.bind_recursive = mount.options.bind_recursive || mount.type == "rbind";
    }
    size_t data_bytes = 0;
    for (const std::string& option : mount.options.data) data_bytes += option.size() + 1;
    if (data_bytes > limits::kMountDataBytes)
        in.fail("options",
                format("take %zu bytes, more than the limit of %zu", data_bytes, limits::kMountDataBytes),
                Code::kResourceExhausted);
    if (!mount.id_map.empty()) mount.options.idmap = true;
    if (mount.options.idmap && !mount.options.bind)
        in.fail(mount.id_map.empty() ? "options" : "uidMappings", "only a bind mount can be id-mapped");
    if (mount.options.tmpcopyup && mount.type != "tmpfs")
        in.fail("options", "\"tmpcopyup\" is for tmpfs only");
    if (mount.options.copy_symlink && !mount.options.bind)
        in.fail("options", "\"copy-symlink\" is for bind mounts only");
    check_source(in, mount);
    check_destination(in, mount);
    out.mounts.push_back(std::move(mount));
}

}  // namespace

void parse_mounts(JsonObject& config, ContainerSpec& out) {
    config.each("mounts", limits::kMounts, [&](const JsonValue& value, const std::string& path) {
        JsonObject in(config.report(), &value, path);
        parse_mount(in, out);
    });
}

}  // namespace berth::core
