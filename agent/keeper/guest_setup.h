// What a booting guest needs of the kernel: mounts, the console, modules, sysctls, entropy. Each is one step
// of boot.cc.
#pragma once

#include <string>
#include <vector>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::keeper {

// /proc, /sys, /dev (devtmpfs): what everything else needs. Already mounted is fine.
core::Status mount_first();

// /dev/pts, /dev/shm, /dev/mqueue, /run, /tmp, cgroup2 with nsdelegate, and /dev's usual links. POSIX queues
// may be missing from the kernel; all else is an error.
core::Status mount_rest();

// Descriptors 0, 1 and 2 become /dev/console (or /dev/null without one); returns a second, non-blocking
// opening of it for logs, so that a console that nobody reads delays nothing.
sys::UniqueFd open_console();

// The modules of /lib/modules/berth.modules in load order, one at a time: vsock comes early, the rest can
// wait.
class ModuleLoader {
 public:
    // No list is an empty list. A malformed list is an error.
    static core::Result<ModuleLoader> open();
    // False when all were loaded. A module that cannot be loaded is logged by its path.
    bool load_next();
    void load_all() {
        while (load_next()) {
        }
    }

 private:
    std::vector<std::string> paths_;
    size_t next_ = 0;
};

// Hardening and resource sysctls; what this kernel does not have is skipped, what it refuses is logged.
void tune_kernel();

// Mixes the VMM's random numbers in, and with them credits the pool when the kernel has none of its own yet.
void mix_entropy();

void set_hostname(const std::string& name);  // empty: "berth" unless the kernel has one already
void bring_loopback_up();

// RLIMIT_NOFILE for limits::kStoredFds and more, for the keeper and the agent.
void raise_descriptor_limit();

}  // namespace berth::keeper
