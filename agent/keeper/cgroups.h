// The keeper's own part of the cgroup v2 tree: berth.agent, berth.spawner and berth, side by side.
#pragma once

#include <initializer_list>
#include <string>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::keeper {

struct CgroupLayout {
    std::string mount;    // where the hierarchy is mounted
    std::string parent;   // "/sys/fs/cgroup", or the directory of --cgroup-parent
    std::string agent;    // keeper and agent
    std::string spawner;  // the spawner, and whatever it leaves there
    std::string sandbox;  // containers
};
// `below` is the parent's path from `mount` on: "" or "/machine".
CgroupLayout plan_cgroups(const std::string& mount, const std::string& below);

// Makes the three directories, moves the caller into `agent`, and enables every controller that `parent`
// offers, in `parent` and in `sandbox`. The caller goes first: a cgroup with processes in it (other than the
// root) can enable none. A controller that cannot be enabled is logged; that none can is an error, which says
// what to do.
core::Status prepare_cgroups(const CgroupLayout& layout);

// Holds layout.agent (made when missing) against a second keeper for as long as the descriptor is open.
// ALREADY_EXISTS when another holds it. The lock ends when the directory is removed.
core::Result<sys::UniqueFd> lock_cgroups(const CgroupLayout& layout);

// Kills everything in each of `directories` and removes them with all below them; a missing one is fine. The
// caller must not be in one. Waits at most `wait_ms` for the killed to be gone; `reap` is called meanwhile,
// since zombies keep a cgroup busy. What stays is logged.
void remove_cgroups(std::initializer_list<const std::string*> directories, int wait_ms, void (*reap)());

// The same for every container's cgroup outside these that bears the agent's mark (--cgroups-path);
// what was made on the way to one goes when nobody else uses it.
void remove_marked_cgroups(const CgroupLayout& layout, int wait_ms, void (*reap)());

}  // namespace berth::keeper
