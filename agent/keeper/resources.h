// What the keeper holds from its start on, as PID 1 and as a helper alike.
#pragma once

#include "agent/core/boot_options.h"
#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"
#include "agent/keeper/cgroups.h"
#include "agent/keeper/fd_store.h"
#include "agent/keeper/keeper.h"

namespace berth::keeper {

// memory/events and memory/ledger: zeroed memfds of the sizes in limits.h that can neither shrink nor grow,
// so that the agent may map them without fear of SIGBUS.
core::Status store_memory_files(FdStore& store);

// The configuration that follows from the options; a new random instance id. `cgroup_root` is the sandbox's
// directory.
core::Result<core::AgentConfig> make_agent_config(const core::BootOptions& options,
                                                  const std::string& cgroup_root, const std::string& run_dir);

// The path of the running program, for the next agents: a replaced binary is taken at the next restart.
core::Result<std::string> own_program();

int64_t boottime_ns();

}  // namespace berth::keeper
