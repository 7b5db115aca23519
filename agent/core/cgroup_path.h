// Where a container's cgroup lies below the sandbox's, and whether it needs a second level.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/ids.h"
#include "agent/core/result.h"

namespace berth::core {

// What decides about the second level.
struct CgroupPowers {
    bool sys_admin = false;              // the init holds CAP_SYS_ADMIN in its bounding or permitted set
    bool user_namespace = false;         // it has a user namespace of its own
    bool writable_cgroup_mount = false;  // a cgroup2 mount without ro
};

struct CgroupLayout {
    // Limits and device program. Relative to the sandbox's cgroup, cleaned: "web", "kubepods/pod1/web";
    // with a '/' in front ("/kubepods/pod1/web") relative to the hierarchy's mount point.
    std::string path;
    // Where processes go and where the cgroup namespace is rooted: `path`, or `path`/kInnerCgroup.
    std::string process_path;
    // With two levels a container that can write its cgroup files or detach programs reaches only the inner
    // level. Limits are written to both: first to `path`, then, since programs read them there, to
    // `process_path` (on update without regard to failures: the container may have written there, too).
    bool two_levels = false;
    // Directories to make, parents first: every ancestor, then `path`, then the inner one.
    std::vector<std::string> directories;
};

inline constexpr std::string_view kInnerCgroup = "berth.inner";

// Where an absolute cgroupsPath begins.
enum class AbsoluteCgroups : uint8_t {
    kInSandbox,  // below the sandbox, as every other
    kFromMount,  // at the hierarchy's mount point, as the runtime spec (config-linux.md, "Cgroups Path") has
                 // it
};

// From the spec's linux.cgroupsPath, or from the id when that is empty.
//   "/a//b/./c", "a/b/c" -> "a/b/c" ("/a/b/c" for the first with kFromMount)
//   "kubepods-pod1.slice:cri-containerd:web" (runc's systemd form, slice:prefix:name) ->
//   "kubepods-pod1.slice/cri-containerd-web.scope", as systemd names it; without a prefix "web.scope" (or
//   "web.slice", when the name ends so); without a slice no directory for it.
//   an id that is also the name of a kernel file ("memory.max") -> "_memory.max"
// INVALID_ARGUMENT: "..", nothing left, a component over NAME_MAX or with control characters, one that looks
// like a kernel file of cgroupfs or is kInnerCgroup, deeper than limits::kCgroupDepth, over
// limits::kPathBytes.
Result<CgroupLayout> plan_cgroup_layout(std::string_view cgroups_path, const ContainerId& id,
                                        const CgroupPowers& powers,
                                        AbsoluteCgroups absolute = AbsoluteCgroups::kInSandbox);

// ALREADY_EXISTS when another container has the same path; FAILED_PRECONDITION when one's path lies above or
// below: its limits would be another's. `existing` are the CgroupLayout::path of all other containers.
Status check_cgroup_collision(std::string_view path, std::span<const std::string_view> existing);

// PERMISSION_DENIED when a path from the mount point is one of the agent's own cgroups (`own`), lies below
// one or above one.
Status check_own_cgroups(std::string_view path, std::span<const std::string> own);

}  // namespace berth::core
