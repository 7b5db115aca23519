// Starting the keeper's own children: the agent, the spawner, the image's rc.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "agent/core/result.h"

namespace berth::keeper {

struct ChildSetup {
    const char* program = nullptr;      // absolute path; when it cannot be executed, `fallback` is
    const char* fallback = nullptr;     // nullptr: none
    const char* const* argv = nullptr;  // NULL-terminated
    const char* const* envp = nullptr;  // NULL-terminated
    int input = -1;                     // becomes 0
    int output = -1;                    // becomes 1 and 2
    std::span<const int> fds = {};      // become 3, 4, ...; at most 4
    std::string cgroup_procs = {};  // the file that moves it into its cgroup; empty: it stays with the keeper
    const char* oom_score_adj = nullptr;  // nullptr: inherited
    bool keeps_nofile_limit = false;      // else RLIMIT_NOFILE goes back to what an ordinary process has
    bool dies_with_keeper = false;        // PR_SET_PDEATHSIG
};

// fork and execve. Signal mask and handlers are the default ones, in a session of its own, no other
// descriptor survives. A child that cannot be set up says why on `output` and exits with 127: that is found
// when it is reaped.
core::Result<pid_t> start_child(const ChildSetup& setup);

// How an end is put for people: "exit status 1", "signal 11 (core dumped)".
std::string describe_wait_status(int wait_status);

}  // namespace berth::keeper
