// Part of adopt.cc: the event log against the state files.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "agent/core/text.h"
#include "agent/runtime/runtime.h"

namespace berth::runtime {

// Of a state file's counters or an event's: those that both have.
template <typename Counters>
core::MemoryEvents known_counters(const Counters& from) {
    core::MemoryEvents counters;
    counters.low = from.low();
    counters.high = from.high();
    counters.max = from.max();
    counters.oom = from.oom();
    counters.oom_kill = from.oom_kill();
    counters.oom_group_kill = from.oom_group_kill();
    return counters;
}

// What the log says and the state files do not, of an agent that ended between the two; and the reverse.
class Runtime::LogReplay {
 public:
    explicit LogReplay(Runtime& runtime) : runtime_(runtime) {}

    // Facts that were logged, and whose state file our predecessor did not get to write.
    void read();
    // States that were written, and whose event it did not get to log. After read(), before anything newer.
    void tell();
    // Deletions that were told, and whose last traces it did not get to remove. Once the streams are adopted.
    void finish_deletions();

 private:
    static std::string name_of(v1::Event::WhatCase what, const std::string& id, const std::string& exec_id) {
        return core::format("%d %s/%s", static_cast<int>(what), id.c_str(), exec_id.c_str());
    }
    void take_exit(Container& container, Process& process, const v1::Event& event);
    void tell_process(Container& container, Process& process, bool has_all);

    Runtime& runtime_;
    std::set<std::string> told_;
    std::set<std::pair<std::string, std::string>> deleted_;
    int64_t oldest_ns_ = 0;  // time of the oldest event that is kept
    uint64_t last_ = 0;      // number of the newest event of our predecessors
};

}  // namespace berth::runtime
