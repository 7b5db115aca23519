// One cgroup directory, by descriptor: one kernel call for each function unless it says otherwise. Nothing
// here waits: what takes time (populated 0, frozen 1) is announced by cgroup.events, which the caller polls.
// Writes to memory.* may reclaim for seconds: see CgroupWrite::may_reclaim; open_cgroup_file() gives the ring
// a descriptor.
//
// Errors are named "cgroup.STEP OBJECT: ERRNO" ("cgroup.write memory.max=5: EINVAL").
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/cgroup_stats.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::sys {

// Opens a directory below `parent` for reading (enough for mkdirat, CLONE_INTO_CGROUP and attaching
// programs). `path` is relative; it may neither leave `parent` nor cross a symlink.
core::Result<UniqueFd> open_cgroup(FdRef parent, std::string_view path);

// mkdirat(0755). ALREADY_EXISTS when it is there. `path` as above; its parent must exist.
core::Status create_cgroup(FdRef parent, std::string_view path);

// What a cgroup outside the agent's own part is to whoever tidies up: an xattr of the directory, so it ends
// with it, and needs no record elsewhere.
enum class CgroupMark : uint8_t {
    kContainer,  // a container's: killed and removed
    kAncestor,   // made on the way to one: removed when nobody uses it
};
// fsetxattr; `owner` names the agent whose it is (the sandbox's path). PERMISSION_DENIED without
// CAP_SYS_ADMIN.
core::Status mark_cgroup(FdRef cgroup, CgroupMark mark, std::string_view owner);
bool has_cgroup_mark(FdRef cgroup, CgroupMark mark, std::string_view owner);

// rmdir of one directory. FAILED_PRECONDITION (EBUSY) while it holds processes or children.
core::Status remove_cgroup(FdRef parent, std::string_view path);

enum class RemoveOutcome : uint8_t { kRemoved, kMore };

// Removes `name` below `parent` with every cgroup in it, deepest first, at most `budget` directories looked
// at: kMore when that was not enough (call again on a later turn). One that is gone is no error. A busy one
// ends it with FAILED_PRECONDITION and its path from `name` on.
core::Result<RemoveOutcome> remove_cgroup_tree(FdRef parent, std::string_view name, size_t budget);

struct CgroupEntries {
    std::vector<std::string> files;
    std::vector<std::string> children;  // at most what was asked for
};
// What is in the directory: several calls. Not more than `max_children` children.
core::Result<CgroupEntries> list_cgroup(FdRef cgroup, size_t max_children);

// The whole file, at most `max_bytes` of it (RESOURCE_EXHAUSTED when it has more). NOT_FOUND: the controller
// is off. FAILED_PRECONDITION (ENODEV): the cgroup was removed.
core::Result<std::string> read_cgroup_file(FdRef cgroup, const char* file, size_t max_bytes = 65'536);

// The same into the caller's buffer, without allocation unless it fails; what does not fit is cut at the last
// whole line.
core::Result<std::string_view> read_cgroup_file_into(FdRef cgroup, const char* file, std::span<char> buffer);

// A descriptor of one file; `flags` as for open (O_CLOEXEC is added).
core::Result<UniqueFd> open_cgroup_file(FdRef cgroup, const char* file, int flags);

// One write of the whole value; a short one is an error.
core::Status write_cgroup_file(FdRef cgroup, const char* file, std::string_view value);

// The names in cgroup.controllers.
core::Result<std::vector<std::string>> available_controllers(FdRef cgroup);

// Turns controllers on for the children of `cgroup`: in one write, and when the kernel refuses that, one by
// one, so that the error names the controller. What is on already is no error.
core::Status enable_controllers(FdRef cgroup, std::span<const std::string> controllers);

// Kills everything in the cgroup and below, forks included.
core::Status kill_cgroup(FdRef cgroup);

enum class FreezerState : uint8_t { kThawed, kFrozen };
// Asks for the state; cgroup.events says "frozen 1" when it is reached.
core::Status set_freezer(FdRef cgroup, FreezerState state);

// cgroup.events.
core::Result<core::CgroupState> cgroup_state(FdRef cgroup);

// The processes in this cgroup alone, at most `max`; as pids of the agent's namespace.
core::Result<std::vector<pid_t>> cgroup_procs(FdRef cgroup, size_t max);

// Those of the cgroup and everything below it, sorted, each once; `budget` bounds the directories looked at.
core::Result<std::vector<pid_t>> cgroup_procs_recursive(FdRef cgroup, size_t max, size_t budget);

}  // namespace berth::sys
