// linux.resources.unified as other runtimes take it: any file of the cgroup. The agent writes ten of them;
// what linux.resources has a property of its own for goes there.
#pragma once

#include "agent/core/json.h"

namespace berth::ctl {

// Moves cpu.max, cpu.weight, cpu.idle, cpuset.cpus, cpuset.mems and io.max of `resources` to cpu.quota and
// the like, which unified beats. A value that the kernel would not take either stays where it is, for the
// agent to refuse by name. Whether anything was moved.
bool move_unified_keys(core::JsonValue& resources, rapidjson::Document& document);

}  // namespace berth::ctl
