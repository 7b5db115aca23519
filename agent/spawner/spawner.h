// The spawner: the only process that clones.
//
// It is the one binary under the name "berth-spawner", started by the keeper with two SOCK_SEQPACKET sockets:
// 3 to the keeper, 4 to the agent (core/spawner_protocol.h). It holds no state between requests, no secret,
// no filter and no descriptor but those two, its own namespaces, a directory descriptor of /proc and the log:
// a process that it clones can leak nothing else, whoever looks at it. It maps one plan at a time and unmaps
// it again; nothing of a plan is copied.
//
// One request: receive {request, plan memfd, descriptors} - check the seals - map privately - validate -
// clone3 (CLONE_PARENT: the keeper is the parent; CLONE_INTO_CGROUP: the limits hold from the first
// instruction; exit_signal 0, as CLONE_PARENT demands) - mappings, hard limits, oom_score_adj -
// RegisterProcess to the keeper - SpawnReply to the agent - go byte. A failure after the clone kills the
// child by its pidfd. Failures are the reply's {errno, step}; EBUSY and EOPNOTSUPP of "clone3" (the cgroup
// has children of its own, or is not a domain) are for the agent to decide on.
//
// A hook in the guest's namespaces (stay_in_cgroup) stays in the spawner's cgroup.
//
// The namespaces of the plan's header are joined around the clone and left again. A new time namespace is
// unshared by the spawner, since clone3(CLONE_NEWTIME) enters it at once and so freezes its offsets.
//
// With use_intermediate, a first clone (not visible to the container, it stays in our pid namespace) drops
// every descriptor that is not the plan's, joins the container's pid namespace and clones the child from
// there: the child never holds a descriptor that a container with CAP_SYS_PTRACE must not see, not even for
// the instructions before its close_range. The child's pid and pidfd come back through a page that is not
// forked (MADV_DONTFORK) and pidfd_getfd, neither of which that container can reach.
#pragma once

namespace berth::spawner {

// Serves until either socket is at its end, then exits 0; exits 1 when it can no longer go on (the keeper
// starts a new one). Never returns.
[[noreturn]] void run_spawner();

}  // namespace berth::spawner
