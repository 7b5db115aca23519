// One launch: from a validated plan to a child that waits for its go byte.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "agent/core/launch_plan.h"
#include "agent/sys/fd.h"

namespace berth::spawner {

// What the spawner opened at its start.
struct Surroundings {
    sys::UniqueFd proc;            // O_PATH, "/proc" of our pid namespace
    sys::UniqueFd pid_namespace;   // our own, to come back to
    sys::UniqueFd time_namespace;  // likewise; not valid on a kernel without time namespaces
};

// The errno of a step and the step's name for SpawnReply; err 0: none failed.
struct Outcome {
    int err = 0;
    const char* step = "";
    bool failed() const { return err != 0; }
};

struct Child {
    pid_t pid = 0;
    sys::UniqueFd pidfd;
    sys::UniqueFd go;  // write end; closing it without the go byte ends the child
};

// Clones the child of a validated plan (a private, writable mapping) and sets from outside what it cannot set
// itself. Blocks only for the intermediate. On failure no child is left. Exits the process when a namespace
// that was joined cannot be left.
Outcome launch(const Surroundings& surroundings, std::span<std::byte> plan, std::span<const int> slots,
               Child& child);

// Kills the child, whatever it does; the keeper reaps it.
void kill_child(const Child& child);

}  // namespace berth::spawner
