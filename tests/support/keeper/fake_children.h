// A fake agent and a fake spawner for the keeper's tests: the test program itself, started by the keeper as
// "berth-agent" or "berth-spawner" (a constructor looks at argv[0] before doctest does).
//
// The N-th agent runs the commands of the file agent.N in its run directory, one a line, and appends what it
// is told to the file `log` there:
//   until end | until spawner | until exited KEY    reads messages until this one came
//   spawn KEY MS CODE [late|orphan]                 asks the spawner for a process that lives MS and exits
//   with CODE;
//                                                   late: registered after its end; orphan: never registered
//   kill-spawner | store NAME | drop NAME | ack KEY | forget KEY | ready | sleep MS | shutdown MODE
//   crash (SIGKILL) | exit CODE | close (the keeper's socket, then sleeps)
// A missing file is a crash; after the last command it reads on for ever.
#pragma once

#include <string>
#include <vector>

#include "agent/keeper/keeper.h"

namespace berth::testing {

struct KeeperRun {
    std::vector<std::string> log;  // what agents were told, in order; the last line is how the keeper ended
    int64_t milliseconds = 0;
};

// Runs a keeper (in a process of its own) over agents with these scripts until it ends, at most 20 s.
// `prepare` may change its set-up; it runs in the keeper's process.
KeeperRun run_keeper(const std::vector<std::string>& scripts,
                     void (*prepare)(keeper::KeeperSetup& setup, keeper::FdStore& store) = nullptr);

}  // namespace berth::testing
