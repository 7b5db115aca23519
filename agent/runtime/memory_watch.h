// memory.events of one container, watched by one multishot poll; counters are the truth, not wake-ups.
//
// The kernel limits notifications to about one per 10 ms a file and sends POLLERR with every one of them
// (Documentation/admin-guide/cgroup-v2.rst; kernfs_notify). A file that was never read fires at once. Only
// ENODEV on read means that the cgroup is gone.
#pragma once

#include <memory>
#include <optional>

#include "agent/core/callback.h"
#include "agent/core/memory_events.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

using MemoryReading = core::MemoryEventsReading;

class MemoryWatch : public std::enable_shared_from_this<MemoryWatch> {
 public:
    using OnReading = core::Callback<void(const MemoryReading&)>;

    // Opens the files below the cgroup's directories (`inner` invalid or the same: one level), reads them
    // once, and arms the poll: from here on no increase goes unnoticed. `on_reading` gets every reading after
    // the first, grown or not; while nothing but low, high and max rises, one in
    // limits::kMemoryPressureEventsMs.
    static core::Result<std::shared_ptr<MemoryWatch>> begin(loop::Loop& loop, sys::FdRef outer,
                                                            sys::FdRef inner, OnReading on_reading);

    const MemoryReading& first() const { return first_; }

    // Reads now. Nothing when the cgroup is gone.
    std::optional<MemoryReading> read() const;

    // Ends the watch; the object lives until the ring has let go of it.
    void retire();

 private:
    explicit MemoryWatch(loop::Loop& loop) : loop_(loop) {}
    void arm();
    void on_event(loop::Op& op, int32_t result);
    bool report();
    void on_calm();

    loop::Loop& loop_;
    sys::UniqueFd events_;
    sys::UniqueFd local_outer_;
    sys::UniqueFd local_inner_;
    MemoryReading first_;
    mutable MemoryReading last_;  // zeros at first, as a new cgroup's counters
    OnReading on_reading_;
    core::MemoryEvents reported_;  // the last total that on_reading_ got
    bool held_back_ = false;       // something rose since
    loop::Timer calm_{loop_, loop::Timer::to<&MemoryWatch::on_calm, MemoryWatch>(), this};
    std::shared_ptr<MemoryWatch> self_;  // while the poll is pending
    loop::Op poll_{loop::Op::to<&MemoryWatch::on_event>(), this};
};

}  // namespace berth::runtime
