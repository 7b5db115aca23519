// `berth --helper`: the keeper under another init, as a subreaper.
#pragma once

#include <span>
#include <string_view>

namespace berth::keeper {

// Runs in the foreground until it is told to stop, and logs to stderr; returns the exit status: 0 after an
// orderly end, 1 when it could not start (one line says why), 2 for bad flags. It mounts nothing and touches
// nothing but its run directory and its own three cgroups; it leaves neither processes nor cgroups behind.
int run_helper(std::span<const std::string_view> flags);

}  // namespace berth::keeper
