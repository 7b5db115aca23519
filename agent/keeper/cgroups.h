// The keeper's own part of the cgroup v2 tree: berth.agent, berth.spawner and berth, side by side.
#pragma once

#include <string>

#include "agent/core/result.h"

namespace berth::keeper {

struct CgroupLayout {
    std::string parent;   // "/sys/fs/cgroup", or the directory of --cgroup-parent
    std::string agent;    // keeper and agent
    std::string spawner;  // the spawner, and whatever it leaves there
    std::string sandbox;  // containers
};
CgroupLayout plan_cgroups(const std::string& parent);

// Makes the three directories, moves the caller into `agent`, and enables every controller that `parent`
// offers, in `parent` and in `sandbox`. The caller goes first: a cgroup with processes in it (other than the
// root) can enable none. A controller that cannot be enabled is logged; that none can is an error, which says
// what to do.
core::Status prepare_cgroups(const CgroupLayout& layout);

// Kills everything in `sandbox` and `spawner` and removes the three directories; the caller must have left
// `agent`. Waits at most `wait_ms` for the killed to be gone; `reap` is called meanwhile, since zombies keep
// a cgroup busy.
void remove_cgroups(const CgroupLayout& layout, int wait_ms, void (*reap)());

}  // namespace berth::keeper
