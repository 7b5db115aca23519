// memory.events and memory.events.local: counters that only ever rise while their cgroup lives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/core/result.h"

namespace berth::core {

struct MemoryEvents {
    uint64_t low = 0;
    uint64_t high = 0;
    uint64_t max = 0;
    uint64_t oom = 0;
    uint64_t oom_kill = 0;
    uint64_t oom_group_kill = 0;                                // since Linux 5.17
    uint64_t sock_throttled = 0;                                // since Linux 6.19
    std::vector<std::pair<std::string, uint64_t>> others = {};  // keys of newer kernels, in the file's order

    bool operator==(const MemoryEvents&) const = default;
    // True when no counter is above zero: of a difference, that nothing happened.
    bool empty() const;
};

// The file's text. Keys may come in any order, in part, or be new. INTERNAL, naming the line: a line that is
// not "key number", a key twice, more than limits::kMemoryEventKeys keys.
Result<MemoryEvents> parse_memory_events(std::string_view text);

// What rose from `before` to `after`; a counter that is lower (a cgroup made anew) counts from zero.
MemoryEvents memory_events_since(const MemoryEvents& before, const MemoryEvents& after);

// `into` += `more`, key by key: the .local counters of a container's two levels.
void add_memory_events(MemoryEvents& into, const MemoryEvents& more);

// True when nothing rose but what rises with every round of reclaim (low, high, max, sock_throttled): no OOM,
// no kill, no counter that we do not know.
bool only_pressure_rose(const MemoryEvents& before, const MemoryEvents& after);

// What one cgroup's two files said at one moment.
struct MemoryEventsReading {
    MemoryEvents total;  // memory.events: with everything below
    MemoryEvents local;  // memory.events.local of the container's levels, added
    bool operator==(const MemoryEventsReading&) const = default;
};

}  // namespace berth::core
