// Every process that the spawner registered, until the agent has acknowledged its exit; and the last few
// exits of processes that nobody has registered (yet).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "agent/core/keeper_protocol.h"
#include "agent/sys/fd.h"

namespace berth::keeper {

struct Process {
    core::ProcessRecord record;
    sys::UniqueFd pidfd;  // only while it runs
    bool has_exited = false;
    bool is_told = false;  // the present agent knows of the exit
};

// What its pidfd says about a process at the time of its registration.
enum class ProcessState : uint8_t {
    kRunning,  // or a zombie that is still to be reaped
    kReaped,   // gone: its status is among the unregistered exits, unless that ring has overflowed
};

class ExitTable {
 public:
    // The status of a process whose exit fell out of the ring before it was registered: exit code 255.
    static constexpr int32_t kLostStatus = 255 << 8;

    // A registration. A pid number may have been used before: a running process takes nothing from the ring.
    // An older process of the same key is forgotten.
    void add(uint64_t key, int32_t pid, sys::UniqueFd pidfd, ProcessState state);

    // `exit` as the reaper found it (`key` is ignored); true when the process was registered.
    bool on_reaped(core::ProcessRecord exit);

    // Drops an exited process; a running one is kept (false).
    bool acknowledge(uint64_t key);

    // Drops a process, exited or not; its exit will be nobody's.
    bool forget(uint64_t key);

    // In order of keys, for the welcome: the first process whose key is above `key`; `std::nullopt` begins.
    Process* next_after(std::optional<uint64_t> key);

    // The oldest exit that the present agent does not know; nullptr when there is none. The caller sets
    // is_told.
    Process* next_untold();

    // A new agent knows nothing: all exits are untold, and come with the welcome's walk.
    void forget_told();

    size_t size() const { return processes_.size(); }

 private:
    void mark_exited(Process& process, const core::ProcessRecord& exit);
    void remember_unregistered(const core::ProcessRecord& exit);
    std::optional<core::ProcessRecord> take_unregistered(int32_t pid);

    std::map<uint64_t, Process> processes_;
    std::unordered_map<int32_t, uint64_t> key_of_pid_;  // running ones
    std::deque<uint64_t> untold_;                       // keys in order of exit
    std::deque<core::ProcessRecord> unregistered_;      // newest last, at most limits::kUnregisteredExits
};

}  // namespace berth::keeper
