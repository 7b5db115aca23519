// What this guest can do, found by trying it, once at the agent's start.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/cgroup_plan.h"
#include "agent/core/guest_facts.h"
#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"

namespace berth::runtime {

struct GuestFeature {
    std::string name;
    bool available = false;
    std::string detail;
    std::string refused;  // what is refused, or left out, without it
};

struct GuestProbe {
    core::GuestFacts facts;
    core::CgroupFacts cgroup;               // of a fresh cgroup in the sandbox
    std::vector<std::string> unified_keys;  // of the ten, those this guest has files for
    std::vector<GuestFeature> features;
    bool has_memory_controller = false;
};

// Makes and removes one cgroup below the sandbox to see which files a container's cgroup will have.
core::Result<GuestProbe> probe_guest(const core::AgentConfig& config);

// The disks attached now: /sys/block/*/serial. Called again when a request names one.
std::vector<core::BlockDevice> list_block_devices();

// A file of the kernel's own, whole; empty when it cannot be read.
std::string read_whole_file(const std::string& path);

// limits.h by name, for Info.
std::vector<std::pair<std::string, uint64_t>> limits_by_name();

// Whether the guest's kernel has a character device of that number: /sys/dev/char/MAJOR:MINOR.
bool char_device_exists(uint32_t major, uint32_t minor);

}  // namespace berth::runtime
