// The exact accounting of streams, in memory that outlives the agent (the keeper's memfd): one 64-byte slot a
// stream. The names of a stream's descriptors in the keeper carry the slot's number.
//
// Crash-consistent at any instruction: every change of a slot is one store, and what must change together
// (StreamRecord) is written beside the valid one and made valid by a store. No syscalls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "agent/core/limits.h"

namespace berth::runtime {

enum class SlotUse : uint8_t { kFree = 0, kOutput = 1, kInput = 2 };

enum SlotFlags : uint8_t {
    kSlotDropPolicy = 1,   // output: keeps the newest bytes and counts the rest as lost
    kSlotStdinEnded = 2,   // input: nothing more is taken; the process's end closes when all was delivered
    kSlotStdinClosed = 4,  // input: the process's end is closed
    kSlotIsTerminal = 8,
    kSlotFinished = 16,  // output: everything was sent, acknowledged, and the writers are gone
    kSlotUnasked = 32,   // output of a terminal whose client wants none: what is dropped is nobody's loss
};

// What changes together. Output: `end` = offset behind the last byte in the retained pipe; the drain pipe
// held `depth` bytes when this was written, and its first `stale` are in the retained pipe already. Input:
// `end` = bytes taken from the client; a write of `stale` bytes is under way into a stored pipe that held
// `depth`.
struct StreamRecord {
    uint64_t end = 0;
    uint32_t stale = 0;
    uint32_t depth = 0;
    bool operator==(const StreamRecord&) const = default;
};

class LedgerSlot {
 public:
    SlotUse use() const { return use_; }
    uint8_t flags() const { return flags_; }
    void set_flag(SlotFlags flag);

    uint64_t base() const { return base_; }      // output: offset of the retained pipe's first byte
    uint64_t target() const { return target_; }  // output: what base is on its way to
    uint64_t acked() const { return acked_; }    // output: what the client has secured
    void set_base(uint64_t value);
    void set_target(uint64_t value);
    void set_acked(uint64_t value);

    const StreamRecord& record() const { return records_[selector_ & 1]; }
    void commit(const StreamRecord& record);

 private:
    friend class Ledger;
    SlotUse use_;
    uint8_t flags_;
    uint8_t selector_;
    [[maybe_unused]] uint8_t reserved_;
    // Of the first slot only: how many slots from the first on were ever used. What lies behind was never
    // touched, and costs no memory.
    uint32_t ever_used_;
    uint64_t base_;
    uint64_t target_;
    uint64_t acked_;
    StreamRecord records_[2];
};
static_assert(sizeof(LedgerSlot) == 64 && std::is_trivially_copyable_v<LedgerSlot>);

class Ledger {
 public:
    Ledger() = default;

    // `memory`: 8-aligned, borrowed; its size decides how many slots there are (limits::kLedgerSlots in the
    // product). Zeroed memory is an empty ledger.
    void open(std::span<std::byte> memory);

    // A zeroed slot; nothing when all are used.
    std::optional<uint32_t> allocate(SlotUse use, uint8_t flags);
    // After the descriptors of the stream were dropped. Freeing a free slot does nothing.
    void free(uint32_t index);
    // The slot `index`, or null when there is no such slot or it is free.
    LedgerSlot* find(uint32_t index);
    size_t size() const { return slots_.size(); }
    size_t used() const;

    // After a restart: frees every slot that is not in `named` (indices of streams whose descriptors the
    // keeper returned): an agent died between allocating and storing, or between dropping and freeing.
    void free_all_but(const std::vector<uint32_t>& named);

 private:
    std::span<LedgerSlot> used_slots() const;

    std::span<LedgerSlot> slots_;
    uint32_t next_ = 0;  // no slot below it is free
};

inline constexpr size_t kLedgerBytes = limits::kLedgerSlots * sizeof(LedgerSlot);

}  // namespace berth::runtime
