// What the agent takes from itself before it serves: system calls, and capabilities.
//
// It is the only process that parses what the host sends, so what a mistake there could do is bounded by the
// kernel. The filter is the agent's alone: containers are the spawner's children, which has none to pass on.
#pragma once

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "agent/core/result.h"

namespace berth::service {

// The filter of the agent with process id `self`, in three parts:
//   allowed   what the agent and its libc do while serving, some by argument: socket() of AF_UNIX and
//   AF_VSOCK only, no
//             executable memory, a few ioctls and bpf commands, signals to itself.
//   killed    what only foreign code could want of it: execve, clone, ptrace, mounts, identities, modules,
//   another
//             architecture's calls. The process ends; the keeper records the crash and starts another.
//   the rest  ENOSYS, which libc reads as an older kernel and does without; logged by the kernel. A call that
//   a newer
//             libc makes must not end every agent of a fleet.
// Operations of the ring do not pass a filter: the loop allows its own few kinds (loop/ring.cc).
std::vector<sock_filter> agent_filter(pid_t self);

// The capabilities that stay, as a mask: DAC_OVERRIDE, FOWNER (files of any owner below a container's paths),
// KILL (signals by pidfd), NET_ADMIN (the kernel wants it of who looks at device programs), SYS_PTRACE
// (/proc/PID/ns of containers), SYS_ADMIN (open_tree, bpf), SYS_RESOURCE (pipes above the user's share, open
// files).
uint64_t agent_capabilities();

// Drops the other capabilities, for good, and installs the filter. The ring, the listeners and the keeper's
// memory must be there already: none can be made afterwards. Fails when the kernel has no seccomp filters.
core::Status confine_agent();

}  // namespace berth::service
