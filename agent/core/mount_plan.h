// Mounts as steps of a launch plan. Used by rootfs_plan.cc and container_plan.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/core/container_spec.h"
#include "agent/core/guest_facts.h"
#include "agent/core/launch_plan.h"
#include "agent/core/result.h"

namespace berth::core {

struct KeptMounts;

// Refuses (PERMISSION_DENIED) a guest path that a container may not see: what is, lies below or contains
// facts.agent_dir, and /sys/firmware, where the host may have left the secret (fw_cfg, SMBIOS).
// `allowed_dir`, when not empty, is the one place below agent_dir that may be seen. `path` is cleaned;
// `json_path` begins the error.
Status check_guest_path(std::string_view json_path, std::string_view path, const GuestFacts& facts,
                        std::string_view allowed_dir);

// A mount that makes a filesystem (not a bind), after every check.
struct FilesystemMount {
    std::string type;    // the kernel's name
    std::string source;  // a block device's path, a virtiofs tag, or a word
    MountOptions options;
};

// Checks type and source of a filesystem mount: the kernel has it; a block device is one that the host
// attached, by "serial:X" or by its path (FAILED_PRECONDITION, NOT_FOUND, PERMISSION_DENIED); an overlay's
// directories obey check_guest_path. `json_path` ("mounts[3]") begins the error.
Result<FilesystemMount> resolve_filesystem(std::string_view json_path, std::string_view type,
                                           std::string_view source, const MountOptions& options,
                                           const GuestFacts& facts, std::string_view allowed_dir);

// fsconfig(2) carries values of at most 255 bytes; an overlay of many layers needs mount(2).
bool needs_mount_syscall(const FilesystemMount& mount);

// Steps that mount(2) it on `place`, a directory in the guest that is made when missing.
void emit_mount_syscall(LaunchPlanBuilder& builder, std::string_view label, const FilesystemMount& mount,
                        std::string_view place);

// Steps that leave the new filesystem, or the tree at `source`, detached in the register `mount`. Its root
// gets the mode of the directory `inherit_mode_of` in root, when that is given and exists. Only when
// needs_mount_syscall() says no.
void emit_filesystem(LaunchPlanBuilder& builder, std::string_view label, const FilesystemMount& mount,
                     std::string_view inherit_mode_of);
void emit_bind(LaunchPlanBuilder& builder, std::string_view label, std::string_view source,
               const MountOptions& options, bool keeps_locked);

// Changes the attributes of what is in `mount`; no step when there is nothing to change. The second is for a
// bind (attributes_of_bind).
void emit_attributes(LaunchPlanBuilder& builder, std::string_view label, const MountOptions& options);
void emit_bind_attributes(LaunchPlanBuilder& builder, std::string_view label, const MountOptions& options,
                          bool keeps_locked);

// Attaches `mount` to `target` and applies the propagation words in order.
void emit_attach(LaunchPlanBuilder& builder, std::string_view label, const MountOptions& options);

struct MountPlanInput {
    const ContainerSpec* spec = nullptr;
    const GuestFacts* facts = nullptr;
    std::string bundle_dir;     // ours
    std::string source_bundle;  // for relative bind sources
    // The directory that is the root file system, cleaned; empty when Create's own mounts are. A bind source
    // below it is taken from the container's tree, with what earlier mounts have put there, as runc and crun
    // do it.
    std::string root_path;
    KeptMounts* kept = nullptr;  // with a stage (user_namespace_plan.h): what it keeps, or kept
};

// Of spec.mounts, those that only the guest's root can make (binds, disks, overlays), detached, into kept.
Status emit_staged_mounts(LaunchPlanBuilder& builder, const MountPlanInput& input);

// True when the spec mounts its cgroup and may write there.
bool has_writable_cgroup_mount(const ContainerSpec& spec);

// All of spec.mounts, in order, into the register `root`.
Status emit_spec_mounts(LaunchPlanBuilder& builder, const MountPlanInput& input);

// Where /sys/firmware shows in the container: below every sysfs of spec.mounts, and every bind of /sys.
std::vector<std::string> firmware_paths(const ContainerSpec& spec);

// True when "/dev" is a bind mount from outside, in which nothing of ours is made.
bool dev_is_foreign(const ContainerSpec& spec);

}  // namespace berth::core
