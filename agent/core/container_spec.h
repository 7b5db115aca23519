// What an OCI config.json says, as plain data: parsed, every field checked on its own and against the others.
// What the guest can or cannot do is not asked here (container_plan.h does).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/core/hooks.h"
#include "agent/core/id_map.h"
#include "agent/core/mount_options.h"
#include "agent/core/resources.h"
#include "agent/core/result.h"
#include "agent/core/rlimits.h"
#include "agent/core/seccomp_profile.h"

namespace berth::core {

// CLONE_NEW* of linux/sched.h.
inline constexpr uint64_t kNewTime = 0x00000080;
inline constexpr uint64_t kNewMount = 0x00020000;
inline constexpr uint64_t kNewCgroup = 0x02000000;
inline constexpr uint64_t kNewUts = 0x04000000;
inline constexpr uint64_t kNewIpc = 0x08000000;
inline constexpr uint64_t kNewUser = 0x10000000;
inline constexpr uint64_t kNewPid = 0x20000000;
inline constexpr uint64_t kNewNet = 0x40000000;

struct UserSpec {
    uint32_t uid = 0;
    uint32_t gid = 0;
    std::optional<uint32_t> umask;
    std::vector<uint32_t> additional_gids;
};

// Masks, bit n for capability n.
struct CapabilitySets {
    uint64_t bounding = 0;
    uint64_t effective = 0;
    uint64_t permitted = 0;
    uint64_t inheritable = 0;
    uint64_t ambient = 0;
};

// struct sched_attr as the kernel takes it (56 bytes, linux/sched/types.h).
struct SchedulerAttributes {
    uint32_t size = 56;
    uint32_t policy = 0;
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime_ns = 0;
    uint64_t deadline_ns = 0;
    uint64_t period_ns = 0;
    uint32_t util_min = 0;
    uint32_t util_max = 0;
};
static_assert(sizeof(SchedulerAttributes) == 56);

struct ConsoleSize {
    uint32_t height = 0;
    uint32_t width = 0;
};

struct ProcessSpec {
    bool terminal = false;
    ConsoleSize console_size;  // zeros: not given
    UserSpec user;
    std::vector<std::string> args;  // not empty
    std::vector<std::string> env;   // "NAME=value"; of a name given twice only the last
    std::string cwd;
    std::optional<CapabilitySets> capabilities;
    std::vector<Rlimit> rlimits;
    bool no_new_privileges = false;
    std::optional<int32_t> oom_score_adj;
    std::optional<SchedulerAttributes> scheduler;
    std::optional<uint32_t> io_priority;  // class << 13 | level
    // Of an exec: while it is set up, and from then on. Masks, bit n of word
    // n/64; empty: not given.
    std::vector<uint64_t> affinity_initial;
    std::vector<uint64_t> affinity_final;
    std::string apparmor_profile;
    std::string selinux_label;
    std::vector<std::string> warnings;  // unknown capabilities
    std::vector<std::string> ignored;   // properties that no version of the spec we know defines
};

struct NamespaceSpec {
    uint64_t flag = 0;  // CLONE_NEW*
    std::string path;   // empty: a new one
};

// An offset of a clock of a time namespace.
struct TimeOffset {
    int64_t secs = 0;
    uint32_t nanosecs = 0;
};

// set_mempolicy(2): `mode` with its flags, and a mask of nodes.
struct MemoryPolicy {
    uint32_t mode = 0;
    std::vector<uint64_t> nodes;
};

// A network interface of the guest's that moves into the container.
struct NetDevice {
    std::string name;      // in the guest
    std::string new_name;  // in the container; may hold one %d
};

struct MountSpec {
    std::string destination;  // cleaned, absolute, never "/"
    std::string type;
    std::string source;
    MountOptions options;
    // Of an id-mapped mount: its own; with options.idmap and no map of its own the container's is meant.
    IdMap id_map{};
};

struct DeviceSpec {
    std::string path;    // cleaned
    char type = 'c';     // c, u (same as c), b, p
    uint32_t major = 0;  // of c, u and b
    uint32_t minor = 0;
    uint32_t mode = 0666;  // permission bits
    uint32_t uid = 0;
    uint32_t gid = 0;
};

// What the annotations `berth.*` ask for.
struct BerthAnnotations {
    bool allow_vsock = false;  // berth.vsock=allow: no filter of ours against AF_VSOCK
    bool drop_stdio = false;   // berth.stdio=drop: output that nobody takes is dropped, not waited for
};

struct ContainerSpec {
    std::string oci_version;
    ProcessSpec process;
    std::string root_path;  // as written: relative means below the bundle
    bool root_readonly = false;
    std::string hostname;
    std::string domainname;
    std::vector<MountSpec> mounts;
    std::vector<std::pair<std::string, std::string>> annotations;  // all of them
    BerthAnnotations berth;
    Hooks hooks;
    std::vector<NamespaceSpec> namespaces;
    // Of a new user namespace: complete, and ids 0 are mapped. Of a joined one: what was given, or empty.
    IdMap id_map;
    std::optional<TimeOffset> monotonic_offset;
    std::optional<TimeOffset> boottime_offset;
    std::vector<DeviceSpec> devices;
    std::vector<std::pair<std::string, std::string>> sysctls;  // {"net/ipv4/ip_forward", "1"}
    Resources resources;
    std::string cgroups_path;                 // as written
    uint64_t rootfs_propagation = 0;          // MS_* with MS_REC; 0: not given
    std::vector<std::string> masked_paths;    // cleaned, each once
    std::vector<std::string> readonly_paths;  // cleaned, each once
    std::optional<SeccompProfile> seccomp;
    std::vector<NetDevice> net_devices;
    std::optional<MemoryPolicy> memory_policy;
    std::optional<uint32_t> personality;  // 0 (PER_LINUX) or 8 (PER_LINUX32)
    std::string mount_label;
    std::vector<std::string> ignored;  // as in ProcessSpec; at most 64

    // The namespace entry of a CLONE_NEW* flag, or null: the guest's is kept.
    const NamespaceSpec* find_namespace(uint64_t flag) const {
        for (const NamespaceSpec& entry : namespaces)
            if (entry.flag == flag) return &entry;
        return nullptr;
    }
};

// Parses and checks a whole config.json. Errors name the JSON path: INVALID_ARGUMENT for what is wrong,
// UNIMPLEMENTED for what the spec knows and we cannot do, PERMISSION_DENIED for what we never do,
// RESOURCE_EXHAUSTED for what is over a limit. Properties that the spec does not define are skipped and
// listed in `ignored` (OCI runtime spec, "Extensibility").
Result<ContainerSpec> parse_container_spec(std::string_view config_json);

// INVALID_ARGUMENT when the process's user or groups, or a device's owner, are not in spec.id_map.
Status check_mapped_ids(const ContainerSpec& spec);

// Parses the `process` object alone, as Exec hands it over. Paths in errors begin with "process.".
Result<ProcessSpec> parse_process_spec(std::string_view process_json);

// Parses the `linux.resources` object alone, as Update hands it over. Paths in errors begin with "resources".
Result<Resources> parse_resources_json(std::string_view resources_json);

// The sources of bind mounts, which the caller stats before it plans: nodes among them obey the device rules
// (check_bind_source in container_plan.h). Cleaned; a relative source is joined to `bundle_dir`.
std::vector<std::string> bind_sources_to_check(const ContainerSpec& spec, std::string_view bundle_dir);

}  // namespace berth::core
