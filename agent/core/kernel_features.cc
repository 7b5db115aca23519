#include "agent/core/kernel_features.h"

#include <algorithm>

#include "agent/core/text.h"

namespace berth::core {
namespace {

using Probe = FeatureProbe;
using Value = KernelConfig::Value;
using State = FeatureVerdict::State;

constexpr FeatureNeed kRequired = FeatureNeed::kRequired;
constexpr FeatureNeed kOptional = FeatureNeed::kOptional;

constexpr KernelFeature kFeatures[] = {
    {"boot", "BINFMT_ELF MULTIUSER FUTEX SIGNALFD EVENTFD POSIX_TIMERS FILE_LOCKING UNIX", Probe::kRunning,
     "", kRequired, "everything"},
    {"boot.mounts", "PROC_FS PROC_SYSCTL SYSFS TMPFS DEVTMPFS UNIX98_PTYS", Probe::kRunning, "", kRequired,
     "everything: the keeper mounts proc, sysfs, tmpfs, devtmpfs and devpts"},
    {"boot.initramfs", "BLK_DEV_INITRD", Probe::kConfigOnly, "", kOptional,
     "an image beside or in the kernel, and a secret by initramfs"},
    {"boot.pvh", "PVH", Probe::kConfigOnly, "", kOptional,
     "vmlinux started directly by Cloud Hypervisor and QEMU"},
    {"boot.console", "SERIAL_8250_CONSOLE|VIRTIO_CONSOLE|SERIAL_AMBA_PL011_CONSOLE", Probe::kConfigOnly, "",
     kOptional, "the console, with the reason when a boot stops"},
    {"boot.power_off", "ACPI", Probe::kConfigOnly, "", kOptional,
     "power-off; a VMM then has to end the guest on its reset (reboot=k)"},
    {"io_uring", "IO_URING", Probe::kRunning, "", kRequired, "everything: the agent's own loop"},
    {"vsock", "VSOCKETS VIRTIO_VSOCKETS", Probe::kVsock, "socket(AF_VSOCK)", kRequired,
     "every connection from the host"},
    {"secret.fw_cfg", "FW_CFG_SYSFS", Probe::kConfigOnly, "", kOptional, "a secret by QEMU's fw_cfg"},
    {"secret.smbios", "DMI", Probe::kConfigOnly, "", kOptional, "a secret by SMBIOS"},

    {"cgroup.v2", "CGROUPS", Probe::kCgroupFile, "cgroup.procs", kRequired, "every container"},
    {"cgroup.memory", "MEMCG", Probe::kCgroupFile, "memory.max", kOptional,
     "linux.resources.memory, memory events"},
    {"cgroup.memory.swap", "MEMCG SWAP", Probe::kCgroupFile, "memory.swap.max", kOptional,
     "a swap limit other than 0 or unlimited"},
    {"cgroup.memory.peak", "MEMCG", Probe::kCgroupFile, "memory.peak", kOptional, "peak memory in Stats"},
    {"cgroup.cpu", "CGROUP_SCHED FAIR_GROUP_SCHED CFS_BANDWIDTH", Probe::kCgroupFile, "cpu.max", kOptional,
     "linux.resources.cpu quota, period, shares"},
    {"cgroup.cpu.burst", "CGROUP_SCHED CFS_BANDWIDTH", Probe::kCgroupFile, "cpu.max.burst", kOptional,
     "linux.resources.cpu.burst"},
    {"cgroup.cpu.uclamp", "UCLAMP_TASK UCLAMP_TASK_GROUP", Probe::kCgroupFile, "cpu.uclamp.min", kOptional,
     "unified cpu.uclamp.min and cpu.uclamp.max"},
    {"cgroup.cpuset", "CPUSETS", Probe::kCgroupFile, "cpuset.cpus", kOptional,
     "linux.resources.cpu cpus and mems"},
    {"cgroup.pids", "CGROUP_PIDS", Probe::kCgroupFile, "pids.max", kOptional, "linux.resources.pids"},
    {"cgroup.io", "BLK_CGROUP BLK_DEV_THROTTLING", Probe::kCgroupFile, "io.max", kOptional,
     "linux.resources.blockIO throttles"},
    {"cgroup.io.weight", "BLK_CGROUP_IOCOST", Probe::kCgroupFile, "io.weight", kOptional,
     "linux.resources.blockIO weight by iocost"},
    {"cgroup.io.bfq", "IOSCHED_BFQ BFQ_GROUP_IOSCHED", Probe::kCgroupFile, "io.bfq.weight", kOptional,
     "linux.resources.blockIO weight by BFQ"},
    {"cgroup.hugetlb", "CGROUP_HUGETLB HUGETLBFS", Probe::kCgroupFile, "hugetlb.2MB.max", kOptional,
     "linux.resources.hugepageLimits"},
    {"cgroup.rdma", "CGROUP_RDMA", Probe::kCgroupFile, "rdma.max", kOptional, "linux.resources.rdma"},
    {"cgroup.psi", "PSI !PSI_DEFAULT_DISABLED", Probe::kCgroupFile, "memory.pressure", kOptional,
     "pressure in Stats, pressure watches"},
    {"cgroup.kill", "CGROUPS", Probe::kCgroupFile, "cgroup.kill", kOptional,
     "killing a whole container at once"},
    {"cgroup.freeze", "CGROUPS", Probe::kCgroupFile, "cgroup.freeze", kOptional, "Pause and Resume"},

    {"bpf.cgroup_device", "BPF_SYSCALL CGROUP_BPF", Probe::kDeviceProgram, "", kOptional,
     "linux.resources.devices"},
    {"seccomp.filter", "SECCOMP SECCOMP_FILTER", Probe::kPath, "/proc/sys/kernel/seccomp/actions_avail",
     kRequired, "every container"},
    {"namespace.cgroup", "NAMESPACES CGROUPS", Probe::kPath, "/proc/self/ns/cgroup", kOptional,
     "containers with that namespace"},
    {"namespace.ipc", "NAMESPACES IPC_NS", Probe::kPath, "/proc/self/ns/ipc", kOptional,
     "containers with that namespace"},
    {"namespace.mnt", "NAMESPACES", Probe::kPath, "/proc/self/ns/mnt", kOptional,
     "containers with that namespace"},
    {"namespace.net", "NAMESPACES NET_NS", Probe::kPath, "/proc/self/ns/net", kOptional,
     "containers with that namespace"},
    {"namespace.pid", "NAMESPACES PID_NS", Probe::kPath, "/proc/self/ns/pid", kOptional,
     "containers with that namespace"},
    {"namespace.time", "NAMESPACES TIME_NS", Probe::kPath, "/proc/self/ns/time", kOptional,
     "containers with that namespace"},
    {"namespace.user", "NAMESPACES USER_NS", Probe::kPath, "/proc/self/ns/user", kOptional,
     "containers with that namespace"},
    {"namespace.uts", "NAMESPACES UTS_NS", Probe::kPath, "/proc/self/ns/uts", kOptional,
     "containers with that namespace"},
    {"keys", "KEYS", Probe::kPath, "/proc/keys", kOptional,
     "a session keyring of its own for each container"},
    {"lsm.apparmor", "SECURITY_APPARMOR", Probe::kAppArmor, "/sys/module/apparmor/parameters/enabled",
     kOptional, "process.apparmorProfile"},
    {"lsm.selinux", "SECURITY_SELINUX", Probe::kPath, "/sys/fs/selinux/enforce", kOptional,
     "process.selinuxLabel"},

    {"fs.overlay", "OVERLAY_FS", Probe::kFilesystem, "overlay", kOptional, "overlay mounts"},
    {"fs.erofs", "EROFS_FS", Probe::kFilesystem, "erofs", kOptional, "erofs images"},
    {"fs.ext4", "EXT4_FS", Probe::kFilesystem, "ext4", kOptional, "ext4 images"},
    {"fs.squashfs", "SQUASHFS", Probe::kFilesystem, "squashfs", kOptional, "squashfs images"},
    {"fs.virtiofs", "FUSE_FS VIRTIO_FS", Probe::kFilesystem, "virtiofs", kOptional, "virtiofs shares"},
    {"fs.mqueue", "POSIX_MQUEUE", Probe::kFilesystem, "mqueue", kOptional, "mqueue mounts"},

    {"net.inet", "INET", Probe::kPath, "/proc/sys/net/ipv4", kOptional,
     "IPv4 in containers, and sysctls of net.ipv4"},
    {"net.inet6", "IPV6", Probe::kPath, "/proc/sys/net/ipv6", kOptional,
     "IPv6 in containers, and sysctls of net.ipv6"},
    {"device.tun", "TUN", Probe::kPath, "/sys/class/misc/tun", kOptional, "/dev/net/tun"},
    {"device.fuse", "FUSE_FS", Probe::kPath, "/sys/class/misc/fuse", kOptional, "/dev/fuse"},
    {"device.loop", "BLK_DEV_LOOP", Probe::kPath, "/sys/class/misc/loop-control", kOptional,
     "images mounted from files"},
    {"virtio.pci", "PCI VIRTIO_PCI", Probe::kPath, "/sys/bus/pci/drivers/virtio-pci", kOptional,
     "the devices of QEMU's q35 and of Cloud Hypervisor"},
    {"virtio.mmio", "VIRTIO_MMIO", Probe::kPath, "/sys/bus/platform/drivers/virtio-mmio", kOptional,
     "the devices of Firecracker and of QEMU's microvm"},
    {"virtio.mmio.command_line", "VIRTIO_MMIO_CMDLINE_DEVICES", Probe::kConfigOnly, "", kOptional,
     "the devices of Firecracker and of QEMU's microvm where they are not given by ACPI"},
    {"virtio.blk", "BLOCK VIRTIO_BLK", Probe::kPath, "/sys/bus/virtio/drivers/virtio_blk", kOptional,
     "disks"},
    {"virtio.net", "VIRTIO_NET", Probe::kPath, "/sys/bus/virtio/drivers/virtio_net", kOptional,
     "network interfaces"},
    {"virtio.pmem", "VIRTIO_PMEM BLK_DEV_PMEM", Probe::kPath, "/sys/bus/virtio/drivers/virtio_pmem",
     kOptional, "disks as persistent memory"},
    {"virtio.rng", "HW_RANDOM_VIRTIO", Probe::kPath, "/sys/bus/virtio/drivers/virtio_rng", kOptional,
     "the host's entropy at boot"},
    {"virtio.balloon", "VIRTIO_BALLOON", Probe::kPath, "/sys/bus/virtio/drivers/virtio_balloon", kOptional,
     "giving memory back to the host"},
    {"vmgenid", "VMGENID", Probe::kPath, "/sys/bus/acpi/drivers/vmgenid /sys/bus/platform/drivers/vmgenid",
     kOptional, "fresh random numbers at once after a snapshot is restored"},
};

// The options of one state in a feature's list, as people write them.
struct Reader {
    const KernelConfig& config;
    State state = State::kBuiltIn;
    std::string missing;
    std::string modules;

    static void append(std::string& list, std::string_view option) {
        if (!list.empty()) list += ", ";
        for (std::string_view name : split(option, '|')) {
            if (name.data() != option.data()) list += " or ";
            list += "CONFIG_";
            list += name;
        }
    }

    void read(std::string_view option) {
        if (option.starts_with('!')) {
            option.remove_prefix(1);
            if (config.value(option) == Value::kOff) return;
            append(missing, option);
            missing += " (has to be off)";
            return;
        }
        Value best = Value::kOff;
        for (std::string_view name : split(option, '|')) best = std::max(best, config.value(name));
        if (best == Value::kOff) append(missing, option);
        if (best == Value::kModule) append(modules, option);
    }
};

void append_line(std::string& text, const char* word, const FeatureVerdict& verdict, const char* what,
                 const char* cost) {
    text += format("%-8s  %-24.*s  %s: %s%s\n", word, static_cast<int>(verdict.feature->name.size()),
                   verdict.feature->name.data(), verdict.options.c_str(), what, cost);
}

}  // namespace

std::span<const KernelFeature> kernel_features() {
    return kFeatures;
}

std::vector<FeatureVerdict> check_kernel_config(const KernelConfig& config) {
    std::vector<FeatureVerdict> verdicts;
    verdicts.reserve(std::size(kFeatures));
    for (const KernelFeature& feature : kFeatures) {
        Reader reader{config, State::kBuiltIn, {}, {}};
        for (std::string_view option : split(feature.options, ' ')) reader.read(option);
        FeatureVerdict verdict{&feature, State::kBuiltIn, {}};
        if (!reader.missing.empty()) {
            verdict.state = State::kMissing;
            verdict.options = std::move(reader.missing);
        } else if (!reader.modules.empty()) {
            verdict.state = State::kModule;
            verdict.options = std::move(reader.modules);
        }
        verdicts.push_back(std::move(verdict));
    }
    return verdicts;
}

KernelCheck print_kernel_check(std::span<const FeatureVerdict> verdicts) {
    KernelCheck check{{}, true};
    size_t modules = 0;
    size_t missing = 0;
    size_t required = 0;
    for (const FeatureVerdict& verdict : verdicts) {
        switch (verdict.state) {
            case State::kBuiltIn: break;
            case State::kModule:
                ++modules;
                append_line(check.text, "module", verdict,
                            "has to be in the image, and in its list of modules", "");
                break;
            case State::kMissing:
                ++missing;
                bool is_required = verdict.feature->need == kRequired;
                required += is_required;
                append_line(check.text, is_required ? "REQUIRED" : "missing", verdict,
                            "refused without it: ", verdict.feature->refused);
                break;
        }
    }
    check.serves = required == 0;
    check.text += format("%zu features: %zu built in, %zu modules, %zu missing, %zu of them required\n",
                         verdicts.size(), verdicts.size() - modules - missing, modules, missing, required);
    return check;
}

}  // namespace berth::core
