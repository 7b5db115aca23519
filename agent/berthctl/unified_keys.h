// linux.resources.unified as other runtimes take it: any file of the cgroup. The agent writes ten of them;
// what linux.resources has a property of its own for goes there.
#pragma once

#include <string>
#include <string_view>

#include "agent/core/json.h"
#include "agent/core/result.h"

namespace berth::ctl {

struct Context;

// Moves cpu.max, cpu.weight, cpu.idle, cpuset.cpus, cpuset.mems and io.max of `resources` to cpu.quota and
// the like, which unified beats. A value that the kernel would not take either stays where it is, for the
// agent to refuse by name. Whether anything was moved.
bool move_unified_keys(core::JsonValue& resources, rapidjson::Document& document);

// The same of LinuxResources as text.
core::Result<std::string> with_unified_keys_moved(const std::string& resources);

// Whether that is to be done with `json`, which may hold unified: beside an agent under another init, where
// berthctl stands for such a runtime. In a guest the list of ten is the contract.
core::Result<bool> takes_any_unified(Context& context, std::string_view json);

}  // namespace berth::ctl
