// The processes of a container as ps(1) shows them; beside the agent only, from /proc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "agent/core/result.h"

namespace berth::ctl {

// "UID PID PPID C STIME TTY TIME CMD", as ps -ef has it. What has ended meanwhile is left out.
std::string process_table(std::span<const uint32_t> pids);

// Runs ps with these options and keeps the lines of these processes. NOT_FOUND when there is no ps.
core::Result<std::string> process_table_of_ps(std::span<const std::string_view> options,
                                              std::span<const uint32_t> pids);

// The lines of a table with a column PID that name one of `pids`, and its first.
core::Result<std::string> filter_table(std::string_view table, std::span<const uint32_t> pids);

}  // namespace berth::ctl
