// The numbered event log, in memory that outlives the agent (the keeper's memfd).
//
// Crash-consistent at any instruction: what is visible is decided by two counters alone, each changed by one
// 8-byte store. An entry's bytes and its index slot lie in parts that no visible entry uses until `last`
// counts it; an entry is taken out of `evicted`'s sight before its bytes are used again. No syscalls, no
// clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "agent/core/limits.h"

namespace berth::runtime {

class EventLog {
 public:
    EventLog() = default;

    // Opens the log in `memory` (8-aligned, borrowed, limits::kEventLogBytes in the product; at least 16 KiB
    // for limits::kEventLogEntries is a bug of the caller's otherwise). Zeroed memory is an empty log. False:
    // what was there was not a log of this geometry or was damaged, and it was begun anew, empty.
    bool open(std::span<std::byte> memory, size_t max_entries = limits::kEventLogEntries);

    // The next entry, of 1 to limits::kEventBytes bytes (more is a bug of the caller's); evicts the oldest
    // ones that stand in its way. Its sequence number, from 1.
    uint64_t append(std::span<const std::byte> bytes);

    // The oldest entry that is kept; last_sequence() + 1 when there is none.
    uint64_t first_sequence() const;
    // The newest entry; 0 when there never was one.
    uint64_t last_sequence() const;
    uint64_t next_sequence() const { return last_sequence() + 1; }

    // Nothing when the entry was evicted or is still to come.
    std::optional<std::string> read(uint64_t sequence) const;

    // The bytes of the memory that no visible entry uses, whatever they hold; either may be empty. For
    // whoever gives their pages back: a ring that is long in entries' time would otherwise touch all of its
    // memory.
    std::array<std::span<std::byte>, 2> unused() const;

 private:
    struct Header;
    struct Slot;
    Header& header() const;
    Slot& slot(uint64_t sequence) const;
    bool is_sound() const;
    void format();
    uint64_t place_for(size_t length) const;

    std::span<std::byte> memory_;
    size_t max_entries_ = 0;
    size_t data_offset_ = 0;
    uint64_t capacity_ = 0;
};

}  // namespace berth::runtime
