// The stage of a container with a user namespace.
//
// In its user namespace the container's root may neither reach what only the guest's root can (bundles,
// sources of bind mounts), nor mount disks, make device nodes, join namespaces of the guest's or map ids of
// mounts. So an intermediate process, still the guest's root in a mount namespace of its own, makes all of
// that as detached mounts, and is cloned into the user namespace with them in its hands.
#pragma once

#include <string>
#include <vector>

#include "agent/core/container_plan.h"
#include "agent/core/launch_plan.h"
#include "agent/core/result.h"

namespace berth::core {

// Places of kKeepMount.
struct KeptMounts {
    uint32_t count = 0;
    uint32_t root = 0;
    std::vector<int> mounts;                              // by index in spec.mounts; -1: not kept
    std::vector<std::pair<std::string, uint32_t>> nodes;  // device nodes: path in the container, place
    uint32_t add() { return count++; }
};

inline bool has_user_namespace(const ContainerSpec& spec) {
    return spec.find_namespace(kNewUser) != nullptr;
}

// "linux.devices[0] (/dev/x)" for one of the spec's, else "device /dev/null".
std::string device_label(const ContainerSpec& spec, const DeviceSpec& node);

// Emits the stage and closes it; `kept` is what the steps after it find. Errors as emit_rootfs and
// emit_spec_mounts have them; RESOURCE_EXHAUSTED over limits::kKeptMounts.
Status emit_stage(LaunchPlanBuilder& builder, const ContainerLaunch& launch, const std::string& root_path,
                  KeptMounts& kept);

// After it, in the user namespace: becomes its root, takes the root file system over.
void emit_after_stage(LaunchPlanBuilder& builder, const ContainerSpec& spec, const KeptMounts& kept);

// Gives stdio that is not /dev/null to the process's user, who is another one outside.
void emit_stdio_owner(LaunchPlanBuilder& builder, const ContainerSpec& spec, const UserSpec& user,
                      const StdioLayout& stdio);

// Hands the container's cgroup over to the process's user when it may write to it: a cgroup namespace and a
// writable mount (runc's rule; the kernel names the files).
void emit_cgroup_owner(LaunchPlanBuilder& builder, const ContainerSpec& spec, const GuestFacts& facts);

}  // namespace berth::core
