// Seccomp programs: a spec's profile through libseccomp, and the agent's own denials for containers.
//
// The two are loaded one after the other, never merged: one libseccomp context cannot hold both (an allowing
// rule for socket hides our denial). The kernel takes the strictest verdict of all filters.
#pragma once

#include <linux/filter.h>

#include <string>
#include <vector>

#include "agent/core/result.h"
#include "agent/core/seccomp_profile.h"

namespace berth::sys {

// Compiles `profile` for this machine: the native architecture, and of those that the profile names the ones
// that this kernel could run. As runc: a rule with the default's own verdict is left out; calls that are
// newer than every call the profile names answer ENOSYS when the default denies (so that a libc falls back),
// but not those that a rule names. System calls that libseccomp does not know are left out, and put into
// `unknown_names` when that is not null. Of two rules without arguments for one call the first one counts.
// INVALID_ARGUMENT when the program is longer than the kernel takes. Allocates; makes a memfd; takes about a
// millisecond: callers keep the result by core::seccomp_cache_key().
core::Result<std::vector<sock_filter>> compile_profile(const core::SeccompProfile& profile,
                                                       std::vector<std::string>* unknown_names = nullptr);

// The filter of every container process, loaded first (unless the spec's annotation berth.vsock=allow):
//   socket(AF_VSOCK)       EAFNOSUPPORT, as a kernel without vsock answers. The kernel takes the domain as 32
//                          bits, so only those are compared.
//   io_uring_setup         ENOSYS: a ring opens sockets that no filter sees.
//   x32 calls              ENOSYS.
//   i386 socketcall(SYS_SOCKET)   ENOSYS: its arguments are in memory, where no filter looks. A libc from
//   2016
//                          on calls socket itself.
//   an architecture that we do not know   ENOSYS.
std::vector<sock_filter> compile_own_filter();

}  // namespace berth::sys
