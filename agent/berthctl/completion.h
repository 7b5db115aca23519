// What a runtime adds to a configuration of its caller's own, beside the agent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/core/result.h"

namespace berth::ctl {

// Read-only, without devices, programs and set-user-ID.
struct BindMount {
    std::string source;
    std::string target;
};

struct CallersPart {
    std::span<const std::string> variables;  // NAME=VALUE, into the process's environment
    std::span<const BindMount> mounts = {};  // after the configuration's own
    bool any_unified = false;                // see unified_keys.h
    std::string_view bundle = {};            // where a relative root.path begins, absolute
};

// The configuration with the caller's part in it; with crun's default maps of a user namespace that has none
// (the process's user is the caller, others are the caller's of /etc/subuid and /etc/subgid); with the
// caller's groups where the annotation run.oci.keep_original_groups asks; with destinations of mounts that
// begin with the root file system's own path without it, as runc has them. Not touched when there is nothing
// to add. `warnings` gets a line for each ambient capability that the kernel will not raise, but where none
// is inheritable.
core::Result<std::string> complete_config(std::string config, const CallersPart& part,
                                          std::vector<std::string>* warnings = nullptr);

// The first range of `user` or `id` in a file like /etc/subuid ("NAME:FIRST:COUNT" lines).
std::optional<std::pair<uint32_t, uint32_t>> find_subordinate_ids(std::string_view table,
                                                                  std::string_view user, uint32_t id);

}  // namespace berth::ctl
