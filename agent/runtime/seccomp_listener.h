// Hands the listener of a filter with SCMP_ACT_NOTIFY to the seccomp agent that
// the spec names.
#pragma once

#include <string_view>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class Container;

// One connection to linux.seccomp.listenerPath, one message: the state with
// `status`, the process's pid, and `listener`. Never waits: an agent that does
// not accept at once is FAILED_PRECONDITION, as is one that is not there.
core::Status send_seccomp_listener(const Container& container, std::string_view status, int pid,
                                   sys::FdRef listener);

}  // namespace berth::runtime
