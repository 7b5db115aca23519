#include "agent/runtime/guest_facts.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "agent/core/kernel_features.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"
#include "agent/sys/device_program.h"
#include "agent/sys/fd.h"

namespace berth::runtime {
namespace {

std::vector<std::string> list_directory(const std::string& path) {
    std::vector<std::string> names;
    std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(path.c_str()), closedir);
    if (entries == nullptr) return names;
    while (const dirent* entry = readdir(entries.get())) {
        if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    return names;
}

std::vector<core::Filesystem> list_filesystems() {
    std::vector<core::Filesystem> found;
    std::string content = read_whole_file("/proc/filesystems");
    for (std::string_view line : core::split_lines(content)) {
        size_t tab = line.find('\t');
        if (tab == std::string_view::npos) continue;
        found.push_back({std::string(line.substr(tab + 1)), line.substr(0, tab) != "nodev"});
    }
    return found;
}

// Not access: it asks for the real ids, in credentials that are made for it.
bool exists(const char* path) {
    struct stat found;
    return stat(path, &found) == 0;
}

std::vector<std::string> list_files(const std::string& path) {
    std::vector<std::string> names;
    std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(path.c_str()), closedir);
    if (entries == nullptr) return names;
    while (const dirent* entry = readdir(entries.get())) {
        if (entry->d_type == DT_REG) names.emplace_back(entry->d_name);
    }
    return names;
}

core::Result<std::vector<std::string>> list_container_cgroup_files(const std::string& sandbox) {
    // Where all controllers are passed on, the files are the sandbox's own, and no cgroup has to be made to
    // see them.
    std::string controllers = read_whole_file(sandbox + "/cgroup.controllers");
    if (!controllers.empty() && controllers == read_whole_file(sandbox + "/cgroup.subtree_control")) {
        if (std::vector<std::string> files = list_files(sandbox); !files.empty()) return files;
    }
    std::string probe = sandbox + "/berth.probe";
    if (mkdir(probe.c_str(), 0755) != 0 && errno != EEXIST) return core::errno_error(errno, "mkdir " + probe);
    std::vector<std::string> files = list_directory(probe);
    rmdir(probe.c_str());
    return files;
}

bool can_load_device_programs() {
    // r0 = 1; exit: everything is allowed. It is never attached.
    constexpr bpf_insn kAllow[] = {{BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 1},
                                   {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    return sys::load_device_program(kAllow).ok();
}

bool has_vsock() {
    return sys::UniqueFd(socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0)).valid();
}

GuestFeature try_feature(const GuestProbe& probe, const core::KernelFeature& row) {
    GuestFeature feature{std::string(row.name), true, row.subject, row.refused};
    switch (row.probe) {
        case core::FeatureProbe::kRunning:
        case core::FeatureProbe::kConfigOnly: feature.detail = "running"; break;
        case core::FeatureProbe::kCgroupFile:
            feature.available = probe.cgroup.has(row.subject);
            if (!feature.available) feature.detail += ": not in a container's cgroup";
            break;
        case core::FeatureProbe::kFilesystem:
            feature.available = probe.facts.find_filesystem(row.subject) != nullptr;
            feature.detail = feature.available ? "in /proc/filesystems" : "not in /proc/filesystems";
            break;
        case core::FeatureProbe::kPath:
            feature.available = false;
            // A driver's place may be another one in a newer kernel.
            for (std::string_view path : core::split(row.subject, ' '))
                feature.available = feature.available || exists(std::string(path).c_str());
            break;
        case core::FeatureProbe::kVsock: feature.available = has_vsock(); break;
        case core::FeatureProbe::kDeviceProgram:
            feature.available = can_load_device_programs();
            feature.detail = "bpf(BPF_PROG_LOAD)";
            break;
        case core::FeatureProbe::kAppArmor: feature.available = probe.facts.apparmor; break;
    }
    return feature;
}

void try_features(GuestProbe& probe) {
    for (const core::KernelFeature& row : core::kernel_features()) {
        if (row.probe == core::FeatureProbe::kConfigOnly) continue;
        GuestFeature feature = try_feature(probe, row);
        if (feature.available && row.name == "cgroup.memory")
            feature.detail +=
                core::format(": bytes are rounded down to pages of %zu", size_t{probe.cgroup.page_size});
        probe.features.push_back(std::move(feature));
    }
    probe.features.push_back({"create.options", true, "berth.v1.CreateOptions", ""});
    probe.features.push_back({"exec.options", true, "berth.v1.ExecOptions", ""});
}

}  // namespace

std::string read_whole_file(const std::string& path) {
    sys::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return {};
    char text[16384];
    std::string content;
    while (true) {
        ssize_t count = read(fd.get(), text, sizeof text);
        if (count <= 0) break;
        content.append(text, static_cast<size_t>(count));
    }
    return content;
}

bool char_device_exists(uint32_t major, uint32_t minor) {
    return exists(core::format("/sys/dev/char/%u:%u", major, minor).c_str());
}

std::vector<core::BlockDevice> list_block_devices() {
    std::vector<core::BlockDevice> devices;
    for (const std::string& name : list_directory("/sys/block")) {
        // Only disks that the host attached; the guest's own (zram, loop, ram) are nobody's to name.
        if (!name.starts_with("vd") && !name.starts_with("sd") && !name.starts_with("nvme") &&
            !name.starts_with("pmem"))
            continue;
        std::string serial(core::trim(read_whole_file("/sys/block/" + name + "/serial")));
        devices.push_back({std::move(serial), "/dev/" + name});
    }
    return devices;
}

core::Result<GuestProbe> probe_guest(const core::AgentConfig& config) {
    GuestProbe probe;
    probe.facts.last_cap =
        core::parse_number<uint32_t>(core::trim(read_whole_file("/proc/sys/kernel/cap_last_cap")))
            .value_or(40);
    probe.facts.filesystems = list_filesystems();
    probe.facts.agent_dir = config.run_dir;
    probe.facts.apparmor = core::trim(read_whole_file("/sys/module/apparmor/parameters/enabled")) == "Y";
    probe.facts.selinux = exists("/sys/fs/selinux/enforce");
    if (std::string files = read_whole_file("/sys/kernel/cgroup/delegate"); !files.empty())
        probe.facts.cgroup_delegate = std::move(files);
    probe.facts.cgroup_namespaces = exists("/proc/self/ns/cgroup");
    BERTH_ASSIGN(probe.cgroup.files, list_container_cgroup_files(config.cgroup_root));
    probe.cgroup.page_size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    probe.has_memory_controller = probe.cgroup.has("memory.events");
    for (const core::UnifiedKey& key : core::unified_keys()) {
        if (probe.cgroup.has(key.name)) probe.unified_keys.emplace_back(key.name);
    }
    try_features(probe);
    return probe;
}

std::vector<std::pair<std::string, uint64_t>> limits_by_name() {
    return {
        {"containers", limits::kContainers},
        {"execs_per_container", limits::kExecsPerContainer},
        {"container_id_bytes", limits::kContainerIdBytes},
        {"ttrpc_message_bytes", limits::kTtrpcMessageBytes},
        {"open_streams_per_connection", limits::kOpenStreamsPerConnection},
        {"control_connections", limits::kControlConnections},
        {"stream_connections", limits::kStreamConnections},
        {"stream_window_bytes", limits::kStreamWindowBytes},
        {"event_log_entries", limits::kEventLogEntries},
        {"pressure_watches", limits::kPressureWatches},
        {"spec_json_bytes", limits::kSpecJsonBytes},
        {"mounts", limits::kMounts},
        {"devices", limits::kDevices},
        {"rootfs_mounts", limits::kRootfsMounts},
        {"argv_envp_bytes", limits::kArgvEnvpBytes},
    };
}

}  // namespace berth::runtime
