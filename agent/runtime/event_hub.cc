#include "agent/runtime/event_hub.h"

#include <algorithm>
#include <ctime>

namespace berth::runtime {

int64_t unix_time_ns() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
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
