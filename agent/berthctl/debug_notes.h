// What --debug tells of the steps that the agent takes for create, run and exec. In brackets what runc's log
// says there: scripts that look into a container's start search for it.
#pragma once

#include <string_view>

#include "agent/berthctl/error_report.h"

namespace berth::ctl {

// Each once the agent has done it, or, an exec's, has taken it over.
void note_creation(const Log& log);
// `process_json`: the process of the exec, whose CPUs are told when it names any.
void note_exec(const Log& log, std::string_view process_json);
void note_start(const Log& log, bool is_exec);

// "0x5" of "0,2"; empty when it is no list of CPUs, or has one above 1023.
std::string cpu_mask_of(std::string_view cpu_list);

}  // namespace berth::ctl
