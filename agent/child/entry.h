// What runs between clone and exec.
//
//   spawner: clone3 ──► child: run_child()
//     maps, hard limits,        undumpable; every descriptor closed but the plan's; signal mask cleared
//     oom_score_adj             waits for the go byte (end of file: exits 125)
//     kRegister to the keeper
//     reply to the agent
//     go byte ─────────────►    the plan's steps, one system call or a few each, in their order
//                               kReady: waits for the agent's go on the sync socket
//                               execve: the sync socket closes by itself, which tells the agent
//
// Everything here is raw system calls on the plan and the stack: no allocation, no libc, no locks, no log. A
// step that fails is reported with its number and errno in one ChildMessage on the sync socket (slot 0), then
// the child exits with kExitSetupFailed. What the child made of the kernel's objects (mounts, namespaces)
// goes with it.
//
// What a container can see of it: the child is undumpable from the start (the spawner is), holds no
// descriptor but its own plan's, and its memory is a copy of the spawner's, which holds nothing foreign.
#pragma once

#include <cstddef>

namespace berth::child {

// Walks a validated plan; never returns. `plan` is a private, writable mapping of `bytes` bytes (the argument
// vectors are turned into pointers in place). `slot_fds` are the plan's descriptors by slot, `go_fd` the read
// end of the pipe that brings the go byte, or -1 when the child may run at once. Every other descriptor above
// 2 is closed.
[[noreturn]] void run_child(std::byte* plan, size_t bytes, const int* slot_fds, int fd_count, int go_fd);

// Clones the child of a stage: as fork does, 0 in the child; -errno on failure.
using CloneChild = long (*)(void* context);

// In the intermediate: walks the steps of the plan's stage, then calls `clone` once. In the child it walks
// the rest and never returns; in the intermediate it returns the child's pid, or -errno: of the clone, or of
// a step that failed (which the agent was told).
// `unneeded` are descriptors that the child closes first of all.
long run_stage(std::byte* plan, const int* slot_fds, int fd_count, int go_fd, const int* unneeded,
               int unneeded_count, CloneChild clone, void* context);

// Closes every descriptor above 2 but those of `keep` (at most limits::kLaunchPlanFds + 4; entries below 3
// are ignored).
void close_all_but(const int* keep, int keep_count);

}  // namespace berth::child
