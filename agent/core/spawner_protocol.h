// What goes over the spawner's two sockets (SOCK_SEQPACKET, flat structs of one binary: both ends are the
// same build).
#pragma once

#include <cstdint>

namespace berth::core {

// agent -> spawner. With it, SCM_RIGHTS: [0] the plan's sealed memfd, then the plan's descriptors in slot
// order.
struct SpawnRequest {
    uint64_t request = 0;      // echoed in the reply
    uint64_t process_key = 0;  // names the process for the keeper
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
