#include "agent/runtime/event_log.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "agent/core/check.h"

namespace berth::runtime {

struct EventLog::Header {
    uint64_t magic;  // 0 in fresh memory
    uint64_t bytes;
    uint64_t max_entries;
    uint64_t evicted;  // entries 1..evicted are gone
    uint64_t last;     // entries ..last are published
    uint64_t reserved[3];
};

// Positions grow for ever; the byte is at position % capacity, and no entry wraps around.
struct EventLog::Slot {
    uint64_t position;
    uint64_t length;
};

namespace {

constexpr uint64_t kMagic = 0x31474f4c'54524542;  // "BERTLOG1"
constexpr uint64_t kAlign = 8;

// A process that is killed leaves its stores in program order, so the compiler is all that must be kept from
// reordering: release does.
void publish(uint64_t& word, uint64_t value) {
    std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

uint64_t round_up(uint64_t value) {
    return (value + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

EventLog::Header& EventLog::header() const {
    return *reinterpret_cast<Header*>(memory_.data());
}

EventLog::Slot& EventLog::slot(uint64_t sequence) const {
    return reinterpret_cast<Slot*>(memory_.data() + sizeof(Header))[sequence % max_entries_];
}

bool EventLog::open(std::span<std::byte> memory, size_t max_entries) {
    memory_ = memory;
    max_entries_ = max_entries;
    data_offset_ = sizeof(Header) + max_entries * sizeof(Slot);
    BERTH_CHECK(max_entries > 1 && memory.size() >= data_offset_ + limits::kEventBytes);
    BERTH_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % alignof(Header) == 0);
    capacity_ = (memory.size() - data_offset_) / kAlign * kAlign;
    if (header().magic == 0) {
        format();
        return true;
    }
    if (is_sound()) return true;
    publish(header().magic, 0);
    format();
    return false;
}

// Killed in here, the magic is still 0 and the next open formats again.
void EventLog::format() {
    header().evicted = 0;
    header().last = 0;
    header().bytes = memory_.size();
    header().max_entries = max_entries_;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    publish(header().magic, kMagic);
}

bool EventLog::is_sound() const {
    const Header& h = header();
    if (h.magic != kMagic || h.bytes != memory_.size() || h.max_entries != max_entries_) return false;
    if (h.evicted > h.last || h.last - h.evicted > max_entries_) return false;
    if (h.last > 0 && slot(h.last).position % kAlign != 0) return false;
    uint64_t begin = 0;
    uint64_t end = 0;
    for (uint64_t sequence = h.evicted + 1; sequence <= h.last; ++sequence) {
        const Slot& s = slot(sequence);
        if (s.length == 0 || s.length > limits::kEventBytes || s.position % kAlign != 0) return false;
        if (s.position % capacity_ + s.length > capacity_) return false;
        if (sequence == h.evicted + 1) begin = s.position;
        if (sequence > h.evicted + 1 && s.position < end) return false;
        end = s.position + s.length;
        if (end - begin > capacity_) return false;
    }
    return true;
}

uint64_t EventLog::first_sequence() const {
    return header().evicted + 1;
}

uint64_t EventLog::last_sequence() const {
    return header().last;
}

uint64_t EventLog::place_for(size_t length) const {
    uint64_t last = header().last;
    if (last == 0) return 0;
    // The slot of the last entry outlives its eviction: it is used again only max_entries later.
    uint64_t end = round_up(slot(last).position + slot(last).length);
    uint64_t left = capacity_ - end % capacity_;
    return left < length ? end + left : end;
}

uint64_t EventLog::append(std::span<const std::byte> bytes) {
    BERTH_CHECK(!bytes.empty() && bytes.size() <= limits::kEventBytes && capacity_ > 0);
    Header& h = header();
    uint64_t sequence = h.last + 1;
    uint64_t position = place_for(bytes.size());
    uint64_t evicted = h.evicted;
    while (evicted < h.last && (h.last - evicted >= max_entries_ ||
                                position + bytes.size() - slot(evicted + 1).position > capacity_)) {
        ++evicted;
    }
    publish(h.evicted, evicted);
    std::memcpy(memory_.data() + data_offset_ + position % capacity_, bytes.data(), bytes.size());
    slot(sequence) = Slot{position, bytes.size()};
    std::atomic_signal_fence(std::memory_order_seq_cst);
    publish(h.last, sequence);
    return sequence;
}

std::optional<std::string> EventLog::read(uint64_t sequence) const {
    const Header& h = header();
    if (sequence <= h.evicted || sequence > h.last) return std::nullopt;
    const Slot& s = slot(sequence);
    const std::byte* data = memory_.data() + data_offset_ + s.position % capacity_;
    return std::string(reinterpret_cast<const char*>(data), s.length);
}

std::array<std::span<std::byte>, 2> EventLog::unused() const {
    const Header& h = header();
    std::span<std::byte> data = memory_.subspan(data_offset_, capacity_);
    if (h.evicted == h.last) return {data, {}};
    uint64_t begin = slot(h.evicted + 1).position;
    uint64_t length = slot(h.last).position + slot(h.last).length - begin;
    if (length >= capacity_) return {};
    uint64_t first = begin % capacity_;
    uint64_t end = (first + length) % capacity_;
    if (first < end) return {data.first(first), data.subspan(end)};
    return {data.subspan(end, first - end), {}};
}

}  // namespace berth::runtime
