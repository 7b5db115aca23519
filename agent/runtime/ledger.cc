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

std::optional<uint32_t> Ledger::allocate(SlotUse use, uint8_t flags) {
    for (size_t step = 0; step < slots_.size(); ++step) {
        size_t index = (next_ + step) % slots_.size();
        LedgerSlot& slot = slots_[index];
        if (slot.use_ != SlotUse::kFree) continue;
        slot = LedgerSlot{};
        slot.flags_ = flags;
        publish(slot.use_, use);
        next_ = static_cast<uint32_t>((index + 1) % slots_.size());
        return static_cast<uint32_t>(index);
    }
    return std::nullopt;
}

void Ledger::free(uint32_t index) {
    if (index < slots_.size()) publish(slots_[index].use_, SlotUse::kFree);
}

LedgerSlot* Ledger::find(uint32_t index) {
    if (index >= slots_.size() || slots_[index].use_ == SlotUse::kFree) return nullptr;
    return &slots_[index];
}

size_t Ledger::used() const {
    return static_cast<size_t>(std::count_if(
        slots_.begin(), slots_.end(), [](const LedgerSlot& slot) { return slot.use_ != SlotUse::kFree; }));
}

void Ledger::free_all_but(const std::vector<uint32_t>& named) {
    std::vector<uint32_t> sorted(named);
    std::sort(sorted.begin(), sorted.end());
    for (uint32_t index = 0; index < slots_.size(); ++index) {
        if (!std::binary_search(sorted.begin(), sorted.end(), index)) free(index);
    }
}

}  // namespace berth::runtime
