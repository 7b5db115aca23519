// What init and exec have in common: stdio, who the process is, its filters and the way to execve.
#pragma once

#include <string>
#include <string_view>

#include "agent/core/container_plan.h"
#include "agent/core/launch_plan.h"

namespace berth::core {

// Everything that decides how a process runs, after what an exec leaves out was filled in.
struct ProcessPlanInput {
    const ProcessSpec* process = nullptr;
    const GuestFacts* facts = nullptr;
    const StdioLayout* stdio = nullptr;
    const SeccompPrograms* seccomp = nullptr;
    std::string container_id;
    CapabilitySets capabilities;  // none when the spec gives none
    bool no_new_privileges = false;
    bool allow_vsock = false;
    bool has_profile = false;  // the spec has a linux.seccomp: its filter must be there
    bool make_cwd = false;     // a missing process.cwd is made
    std::optional<uint32_t> personality;
    const MemoryPolicy* memory_policy = nullptr;
    bool is_exec = false;
    bool waits = true;              // for the go of Start, once it is set up
    bool start_hooks = false;       // waits for hooks after Start
    std::string_view executable{};  // empty: args[0]
};

// Refuses what this guest cannot do for the process (LSM labels) or what contradicts itself: too many groups,
// extra descriptors twice, a filter that is missing. Nothing is emitted.
Status check_process(const ProcessPlanInput& input);

// Joins the namespaces of the running container by its init's pidfd, its pid namespace by way of the spawner.
// `mounts_left`: a container without a mount namespace of its own (kLeaveMounts) has reached its program's.
void emit_join(LaunchPlanBuilder& builder, const ContainerSpec& spec, bool mounts_left);
// Into the agent's own mount namespace, which is the machine's. Returns the step.
PlanStep& emit_leave_mounts(LaunchPlanBuilder& builder);

// The pty when process.terminal is set: opened from the container's own devpts in the register `root`.
void emit_pty(LaunchPlanBuilder& builder, const ProcessPlanInput& input);

// An empty mask: all CPUs of the cgroup.
void emit_affinity(LaunchPlanBuilder& builder, std::string_view label, const std::vector<uint64_t>& mask);

// What the descriptor of a stream is to be opened from.
FdRequest stdio_request(const StdioStream& stream, uint32_t fd);

// Fds 0 to 2, and the ones the caller passed on.
void emit_stdio(LaunchPlanBuilder& builder, const ProcessPlanInput& input);

// From priority and limits to execve; in the root that the process will see.
void emit_process(LaunchPlanBuilder& builder, const ProcessPlanInput& input);

}  // namespace berth::core
