#include "agent/runtime/ledger.h"

#include <algorithm>
#include <atomic>

#include "agent/core/check.h"

namespace berth::runtime {
namespace {

// One store, not moved by the compiler against those before and after it.
template <typename Word>
void publish(Word& word, Word value) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::atomic_ref<Word>(word).store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

void LedgerSlot::set_flag(SlotFlags flag) {
    publish(flags_, static_cast<uint8_t>(flags_ | flag));
}
void LedgerSlot::set_base(uint64_t value) {
    publish(base_, value);
}
void LedgerSlot::set_target(uint64_t value) {
    publish(target_, value);
}
void LedgerSlot::set_acked(uint64_t value) {
    publish(acked_, value);
}

void LedgerSlot::commit(const StreamRecord& record) {
    uint8_t other = (selector_ & 1) ^ 1;
    records_[other] = record;
    publish(selector_, other);
}

void Ledger::open(std::span<std::byte> memory) {
    BERTH_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % alignof(LedgerSlot) == 0);
    slots_ = {reinterpret_cast<LedgerSlot*>(memory.data()), memory.size() / sizeof(LedgerSlot)};
    next_ = 0;
}

std::span<LedgerSlot> Ledger::used_slots() const {
    return slots_.empty() ? slots_ : slots_.first(std::min<size_t>(slots_[0].ever_used_, slots_.size()));
}

std::optional<uint32_t> Ledger::allocate(SlotUse use, uint8_t flags) {
    // Always the lowest free one, so that few pages are touched.
    for (; next_ < slots_.size(); ++next_) {
        LedgerSlot& slot = slots_[next_];
        if (next_ < slots_[0].ever_used_ && slot.use_ != SlotUse::kFree) continue;
        // Field by field: the first slot's ever_used_ must not be lost for an instant.
        slot.flags_ = flags;
        slot.selector_ = 0;
        slot.base_ = slot.target_ = slot.acked_ = 0;
        slot.records_[0] = slot.records_[1] = StreamRecord{};
        publish(slots_[0].ever_used_, std::max(slots_[0].ever_used_, next_ + 1));
        publish(slot.use_, use);
        return next_++;
    }
    return std::nullopt;
}

void Ledger::free(uint32_t index) {
    if (index >= used_slots().size()) return;
    publish(slots_[index].use_, SlotUse::kFree);
    next_ = std::min(next_, index);
}

LedgerSlot* Ledger::find(uint32_t index) {
    if (index >= used_slots().size() || slots_[index].use_ == SlotUse::kFree) return nullptr;
    return &slots_[index];
}

size_t Ledger::used() const {
    return static_cast<size_t>(
        std::count_if(used_slots().begin(), used_slots().end(),
                      [](const LedgerSlot& slot) { return slot.use_ != SlotUse::kFree; }));
}

void Ledger::free_all_but(const std::vector<uint32_t>& named) {
    std::vector<uint32_t> sorted(named);
    std::sort(sorted.begin(), sorted.end());
    for (uint32_t index = 0; index < used_slots().size(); ++index) {
        if (!std::binary_search(sorted.begin(), sorted.end(), index)) free(index);
    }
}

}  // namespace berth::runtime
