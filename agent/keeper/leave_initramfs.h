// From the kernel's rootfs, which nothing can be pivoted away from, to a tmpfs that is an ordinary mount.
#pragma once

#include "agent/core/result.h"

namespace berth::keeper {

// argv[0] of the second start: the kernel cannot give it from its command line.
inline constexpr char kSecondStageName[] = "berth-keeper";

// True when "/" is a ramfs or tmpfs: the kernel unpacked us there.
bool is_on_initramfs();

// Moves every file of "/" into a new tmpfs, each unlinked as soon as it is copied (an image is in memory
// twice otherwise), makes that the root and executes the same program from it with kSecondStageName. What is
// left below is an empty directory. Only returns on failure, when the guest cannot go on.
core::Error leave_initramfs(char** envp);

// Moves everything below `source` except other file systems into `target` (both directories): directories,
// regular files, symbolic links and nodes with mode and owner.
core::Status move_tree(const char* source, const char* target);

}  // namespace berth::keeper
