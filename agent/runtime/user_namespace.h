// What the maps of user namespaces are that somebody else made.
#pragma once

#include <optional>
#include <string>

#include "agent/core/container_spec.h"
#include "agent/core/id_map.h"

namespace berth::runtime {

// The maps of the user namespace of the process whose directory in /proc this is ("/proc/17"); none when they
// cannot be read.
std::optional<core::IdMap> read_id_map(const std::string& process_directory);

// For a spec that joins a user namespace at /proc/PID/ns/user: takes over its maps; INVALID_ARGUMENT when the
// spec has others, or a user, group or owner that they do not map. A spec without a path, or with another
// kind of path, stays.
core::Status complete_user_namespace(core::ContainerSpec& spec);

}  // namespace berth::runtime
