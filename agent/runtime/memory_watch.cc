#include "agent/runtime/memory_watch.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <string_view>

#include "agent/core/limits.h"
#include "agent/core/uninitialized.h"

namespace berth::runtime {
namespace {

// Both files are far smaller: a few counters of 20 digits each.
constexpr size_t kFileBytes = 4096;

bool read_counters(sys::FdRef fd, core::MemoryEvents& into) {
    BERTH_UNINITIALIZED char text[kFileBytes];
    ssize_t count = pread(fd.get(), text, sizeof text, 0);
    if (count < 0) return false;
    auto parsed = core::parse_memory_events(std::string_view(text, static_cast<size_t>(count)));
    if (!parsed.ok()) return false;
    into = std::move(*parsed);
    return true;
}

sys::UniqueFd open_file(sys::FdRef directory, const char* name) {
    return sys::UniqueFd(openat(directory.get(), name, O_RDONLY | O_CLOEXEC));
}

}  // namespace

core::Result<std::shared_ptr<MemoryWatch>> MemoryWatch::begin(loop::Loop& loop, sys::FdRef outer,
                                                              sys::FdRef inner, OnReading on_reading) {
    std::shared_ptr<MemoryWatch> watch(new MemoryWatch(loop));
    watch->events_ = open_file(outer, "memory.events");
    if (!watch->events_.valid()) return core::errno_error(errno, "cgroup.open memory.events");
    watch->local_outer_ = open_file(outer, "memory.events.local");
    if (inner.get() >= 0 && inner.get() != outer.get())
        watch->local_inner_ = open_file(inner, "memory.events.local");
    auto reading = watch->read();
    if (!reading) return core::make_error(core::Code::kInternal, "cgroup.read memory.events: not readable");
    watch->first_ = std::move(*reading);
    watch->reported_ = watch->first_.total;
    watch->on_reading_ = std::move(on_reading);
    watch->arm();
    return watch;
}

std::optional<MemoryReading> MemoryWatch::read() const {
    MemoryReading reading;
    if (!read_counters(events_, reading.total)) return std::nullopt;
    // What is counted locally is counted in the total, too: without an increase there is nothing more to
    // read.
    if (reading.total == last_.total) return last_;
    core::MemoryEvents inner;
    if (local_outer_.valid()) read_counters(local_outer_, reading.local);
    if (local_inner_.valid() && read_counters(local_inner_, inner))
        core::add_memory_events(reading.local, inner);
    last_ = reading;
    return reading;
}

void MemoryWatch::arm() {
    self_ = shared_from_this();
    loop_.poll_multishot(poll_, events_.get(), POLLPRI);
}

void MemoryWatch::on_event(loop::Op&, int32_t) {
    std::shared_ptr<MemoryWatch> keep = self_;
    core::MemoryEvents total;
    bool lives = on_reading_ && read_counters(events_, total);
    if (lives && calm_.armed() && core::only_pressure_rose(reported_, total)) {
        held_back_ = true;
    } else if (lives) {
        lives = report();
    }
    if (lives) {
        if (!poll_.pending() && on_reading_) arm();
        return;
    }
    // Retired, or ENODEV: the cgroup is gone.
    if (poll_.pending()) {
        loop_.cancel(poll_);
    } else {
        self_.reset();
    }
}

// False when the cgroup is gone.
bool MemoryWatch::report() {
    std::optional<MemoryReading> reading = read();
    if (!reading) return false;
    held_back_ = false;
    calm_.arm_after_ms(limits::kMemoryPressureEventsMs);
    reported_ = reading->total;
    on_reading_(*reading);
    return true;
}

void MemoryWatch::on_calm() {
    std::shared_ptr<MemoryWatch> keep = self_;
    if (held_back_ && on_reading_) report();
}

void MemoryWatch::retire() {
    on_reading_ = {};
    calm_.disarm();
    if (poll_.pending()) loop_.cancel(poll_);
}

}  // namespace berth::runtime
