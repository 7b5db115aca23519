// What goes over the spawner's two sockets (SOCK_SEQPACKET, flat structs of one binary: both ends are the
// same build).
#pragma once

#include <cstdint>

namespace berth::core {

// agent -> spawner. With it, SCM_RIGHTS: the plan's descriptors in slot order. A plan of no more than
// limits::kInlinePlanBytes may follow in the same message; of any other, a sealed memfd comes before the
// descriptors.
struct SpawnRequest {
    uint64_t request = 0;      // echoed in the reply
    uint64_t process_key = 0;  // names the process for the keeper
    uint32_t plan_bytes = 0;   // that follow; 0: the plan is in the memfd
    uint32_t reserved = 0;
};

// spawner -> agent. With it, when err = 0, SCM_RIGHTS: the pidfd.
struct SpawnReply {
    uint64_t request = 0;
    int32_t pid = 0;     // in the keeper's pid namespace
    int32_t err = 0;     // errno of the step that failed
    char step[56] = {};  // "clone3", "setns pid", "uid_map", ...
};

// spawner -> keeper, before the child may run. With it, SCM_RIGHTS: the pidfd, which the keeper stores.
struct RegisterProcess {
    uint64_t process_key = 0;
    int32_t pid = 0;
    int32_t reserved = 0;
};

// The order that makes a process known before it can run: clone3 -> RegisterProcess to the keeper ->
// SpawnReply to the agent -> one go byte to the child. End of file instead of the byte: the child exits
// (kExitSetupFailed).

}  // namespace berth::core
