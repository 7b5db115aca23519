// What create, run and exec have in common: a process's stdio, its start, its end.
#pragma once

#include <string>
#include <string_view>

#include "agent/berthctl/attach.h"
#include "agent/berthctl/command.h"
#include "agent/berthctl/passing.h"
#include "agent/core/result.h"

namespace berth::ctl {

// Flags that more than one of them has.
inline constexpr Flag kInteractive = {"interactive", 'i', Flag::Kind::kSwitch,
                                      "connect standard input (the default)"};
inline constexpr Flag kPidFile = {"pid-file", 0, Flag::Kind::kValue, "FILE  write the process's pid there"};
inline constexpr Flag kConsoleSocket = {"console-socket", 0, Flag::Kind::kValue,
                                        "PATH  a unix socket that is sent the terminal's master"};
inline constexpr Flag kPidfdSocket = {"pidfd-socket", 0, Flag::Kind::kValue,
                                      "PATH  a unix socket that is sent a pidfd"};
inline constexpr Flag kPreserveFds = {"preserve-fds", 0, Flag::Kind::kValue,
                                      "N  pass on descriptors 3 to 2+N"};
inline constexpr Flag kNoSubreaper = {"no-subreaper", 0, Flag::Kind::kSwitch, "accepted; there is none"};
inline constexpr Flag kNoStdin = {"no-stdin", 0, Flag::Kind::kSwitch, "give it /dev/null as standard input"};

// What becomes of a process's stdio.
struct Stdio {
    Passing passing;
    bool with_streams = false;
};

// Beside the agent a process gets the caller's own stdio, its terminal goes to the console socket. Streams
// are for all others, and for a terminal that is shown on the caller's. `Request`: of Create or Exec.
template <typename Request>
core::Result<Stdio> choose_stdio(Context& context, Request& request, bool detach);

core::Result<uint32_t> start(Context& context, const std::string& id, const std::string& exec_id);

// --pidfd-socket and --pid-file.
core::Status tell_pid(Context& context, uint32_t pid);

// Kills the process, and waits until it is gone: what follows is its deletion.
void end_process(Context& context, const AttachTarget& target);

// Attaches to what was created and not started, starts it, and stays until it ends. An exec has its pid only
// now. `notify` (null: none) listens.
core::Result<int> start_attached(Context& context, const AttachTarget& target, Notify* notify = nullptr);

core::Status remove(Context& context, const std::string& id, const std::string& exec_id);

// What a failed or finished command leaves behind is removed; the first error is the one to tell.
core::Result<int> remove_after(Context& context, const AttachTarget& target, core::Result<int> status);

}  // namespace berth::ctl
