#include "agent/runtime/guest_facts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"
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

core::Result<std::vector<std::string>> list_container_cgroup_files(const std::string& sandbox) {
    std::string probe = sandbox + "/berth.probe";
    if (mkdir(probe.c_str(), 0755) != 0 && errno != EEXIST) return core::errno_error(errno, "mkdir " + probe);
    std::vector<std::string> files = list_directory(probe);
    rmdir(probe.c_str());
    return files;
}

void feature(GuestProbe& probe, const char* name, bool available, std::string detail, const char* refused) {
    probe.features.push_back({name, available, std::move(detail), refused});
}

void probe_cgroup_features(GuestProbe& probe) {
    struct Row {
        const char* name;
        const char* file;
        const char* refused;
    };
    constexpr Row kRows[] = {
        {"cgroup.memory", "memory.max", "linux.resources.memory, memory events"},
        {"cgroup.memory.swap", "memory.swap.max", "a swap limit other than 0 or unlimited"},
        {"cgroup.memory.peak", "memory.peak", "peak memory in Stats"},
        {"cgroup.cpu", "cpu.max", "linux.resources.cpu quota, period, shares"},
        {"cgroup.cpu.burst", "cpu.max.burst", "linux.resources.cpu.burst"},
        {"cgroup.cpu.uclamp", "cpu.uclamp.min", "unified cpu.uclamp.min and cpu.uclamp.max"},
        {"cgroup.cpuset", "cpuset.cpus", "linux.resources.cpu cpus and mems"},
        {"cgroup.pids", "pids.max", "linux.resources.pids"},
        {"cgroup.io", "io.max", "linux.resources.blockIO throttles"},
        {"cgroup.hugetlb", "hugetlb.2MB.max", "linux.resources.hugepageLimits"},
        {"cgroup.rdma", "rdma.max", "linux.resources.rdma"},
        {"cgroup.psi", "memory.pressure", "pressure in Stats"},
        {"cgroup.kill", "cgroup.kill", "killing a whole container at once"},
        {"cgroup.freeze", "cgroup.freeze", "Pause and Resume"},
    };
    for (const Row& row : kRows) {
        bool found = probe.cgroup.has(row.file);
        std::string detail = std::string(row.file) + (found ? "" : ": not in a container's cgroup");
        if (found && std::string_view(row.file) == "memory.max")
            detail +=
                core::format(": bytes are rounded down to pages of %zu", size_t{probe.cgroup.page_size});
        feature(probe, row.name, found, std::move(detail), row.refused);
    }
}

void probe_kernel_features(GuestProbe& probe) {
    struct Filesystem {
        const char* name;
        const char* refused;
    };
    constexpr Filesystem kFilesystems[] = {{"overlay", "overlay mounts"},   {"erofs", "erofs images"},
                                           {"ext4", "ext4 images"},         {"squashfs", "squashfs images"},
                                           {"virtiofs", "virtiofs shares"}, {"mqueue", "mqueue mounts"}};
    for (const Filesystem& row : kFilesystems) {
        bool found = probe.facts.find_filesystem(row.name) != nullptr;
        feature(probe, (std::string("fs.") + row.name).c_str(), found,
                found ? "in /proc/filesystems" : "not in /proc/filesystems", row.refused);
    }
    for (const char* name : {"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}) {
        bool found = access((std::string("/proc/self/ns/") + name).c_str(), F_OK) == 0;
        feature(probe, (std::string("namespace.") + name).c_str(), found,
                std::string("/proc/self/ns/") + name, "containers with that namespace");
    }
    bool seccomp = access("/proc/sys/kernel/seccomp/actions_avail", F_OK) == 0;
    feature(probe, "seccomp.filter", seccomp, "kernel.seccomp.actions_avail", "every container");
    bool bpf = syscall(SYS_bpf, -1, nullptr, 0) == -1 && errno != ENOSYS;
    feature(probe, "bpf.cgroup_device", bpf, bpf ? "bpf(2)" : "bpf: ENOSYS", "linux.resources.devices");
    feature(probe, "lsm.apparmor", probe.facts.apparmor, "/sys/module/apparmor/parameters/enabled",
            "process.apparmorProfile");
    feature(probe, "lsm.selinux", probe.facts.selinux, "/sys/fs/selinux", "process.selinuxLabel");
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
    return access(core::format("/sys/dev/char/%u:%u", major, minor).c_str(), F_OK) == 0;
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
    probe.facts.block_devices = list_block_devices();
    probe.facts.apparmor = core::trim(read_whole_file("/sys/module/apparmor/parameters/enabled")) == "Y";
    probe.facts.selinux = access("/sys/fs/selinux/enforce", F_OK) == 0;
    probe.facts.cgroup_namespaces = access("/proc/self/ns/cgroup", F_OK) == 0;
    BERTH_ASSIGN(probe.cgroup.files, list_container_cgroup_files(config.cgroup_root));
    probe.cgroup.page_size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    probe.has_memory_controller = probe.cgroup.has("memory.events");
    for (const core::UnifiedKey& key : core::unified_keys()) {
        if (probe.cgroup.has(key.name)) probe.unified_keys.emplace_back(key.name);
    }
    probe_cgroup_features(probe);
    probe_kernel_features(probe);
    feature(probe, "io_uring", true, "the agent's own loop", "everything");
    feature(probe, "create.options", true, "berth.v1.CreateOptions with spec", "");
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
