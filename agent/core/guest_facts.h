// What this guest's kernel and devices can do, read once at boot (its disks when a spec names one) and given
// to the planners as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth::core {

struct Filesystem {
    std::string name;
    bool needs_device = false;  // no "nodev" before it in /proc/filesystems
};

// A disk that the host attached to this guest.
struct BlockDevice {
    std::string serial;  // virtio serial; empty: it has none
    std::string path;    // "/dev/vda"
};

struct GuestFacts {
    uint32_t last_cap = 40;  // /proc/sys/kernel/cap_last_cap
    std::vector<Filesystem> filesystems;
    std::vector<BlockDevice> block_devices;  // listed for a spec that names one
    bool apparmor = false;
    bool selinux = false;
    bool cgroup_namespaces = true;
    // /sys/kernel/cgroup/delegate: what a cgroup's owner may write, one name a line.
    std::string cgroup_delegate = "cgroup.procs\ncgroup.threads\ncgroup.subtree_control\n";
    std::string agent_dir = "/run/berth";  // our own folder, which no container may see; canonical

    const Filesystem* find_filesystem(std::string_view name) const {
        for (const Filesystem& entry : filesystems)
            if (entry.name == name) return &entry;
        return nullptr;
    }
};

}  // namespace berth::core
