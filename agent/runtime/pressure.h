// One PSI trigger on a *.pressure file of a cgroup (Documentation/accounting/psi.rst): the kernel wakes the
// poll when tasks were held up for longer than asked for, at most once a window.
#pragma once

#include <memory>
#include <string>

#include "agent/core/callback.h"
#include "agent/core/cgroup_stats.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class PressureWatch : public std::enable_shared_from_this<PressureWatch> {
 public:
    // Each time the threshold was passed, the file's content.
    using OnPressure = core::Callback<void(const core::Pressure&)>;

    // `trigger` as the kernel reads it: "some 150000 1000000". FAILED_PRECONDITION: no such file;
    // INVALID_ARGUMENT with the kernel's reason: a threshold or window that it does not take.
    static core::Result<std::shared_ptr<PressureWatch>> begin(loop::Loop& loop, sys::FdRef cgroup,
                                                              const char* file, const std::string& trigger,
                                                              OnPressure on_pressure);

    const core::Pressure& first() const { return first_; }

    // Ends the watch; the object lives until the ring has let go of it.
    void retire();

 private:
    explicit PressureWatch(loop::Loop& loop) : loop_(loop) {}
    bool read(core::Pressure& into) const;
    void arm();
    void on_event(loop::Op& op, int32_t result);

    loop::Loop& loop_;
    sys::UniqueFd file_;
    core::Pressure first_;
    OnPressure on_pressure_;
    bool retired_ = false;
    std::shared_ptr<PressureWatch> self_;  // while the poll is pending
    loop::Op poll_{loop::Op::to<&PressureWatch::on_event>(), this};
};

}  // namespace berth::runtime
