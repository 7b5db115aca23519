#include "agent/runtime/event_hub.h"

#include <sys/mman.h>

#include <algorithm>
#include <ctime>

namespace berth::runtime {

int64_t unix_time_ns() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool EventHub::open(std::span<std::byte> memory) {
    bool intact = log_.open(memory);
    give_pages_back();
    return intact;
}

// The pages of a memfd stay until someone punches them out (madvise(2), MADV_REMOVE). Memory of another kind
// cannot be given back so, and the log is as right without.
void EventHub::give_pages_back() {
    constexpr uintptr_t kPage = 4096;
    for (std::span<std::byte> bytes : log_.unused()) {
        uintptr_t begin = (reinterpret_cast<uintptr_t>(bytes.data()) + kPage - 1) / kPage * kPage;
        uintptr_t end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size()) / kPage * kPage;
        if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_REMOVE);
    }
    bytes_since_given_back_ = 0;
}

uint64_t EventHub::emit(v1::Event event, const Container* container) {
    uint64_t sequence = log_.last_sequence() + 1;
    event.set_sequence(sequence);
    if (event.time_unix_ns() == 0) event.set_time_unix_ns(unix_time_ns());
    std::string encoded = event.SerializeAsString();
    if (encoded.size() > limits::kEventBytes && event.has_memory()) {
        // Only counters of kernels that we do not know can be so many: the known ones come first.
        event.mutable_memory()->mutable_total()->clear_other();
        event.mutable_memory()->mutable_local()->clear_other();
        encoded = event.SerializeAsString();
    }
    BERTH_CHECK(encoded.size() <= limits::kEventBytes);
    log_.append(std::as_bytes(std::span(encoded)));
    bytes_since_given_back_ += encoded.size();
    if (bytes_since_given_back_ >= limits::kEventLogGiveBackBytes) give_pages_back();
    std::vector<EventListener*> now = listeners_;
    for (EventListener* listener : now) {
        if (std::find(listeners_.begin(), listeners_.end(), listener) == listeners_.end()) continue;
        listener->on_event(event, encoded, container);
    }
    return sequence;
}

void EventHub::remove(EventListener& listener) {
    std::erase(listeners_, &listener);
}

}  // namespace berth::runtime
