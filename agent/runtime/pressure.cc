#include "agent/runtime/pressure.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>

#include "agent/core/cgroup_plan.h"
#include "agent/sys/cgroup.h"

namespace berth::runtime {

core::Result<std::shared_ptr<PressureWatch>> PressureWatch::begin(loop::Loop& loop, sys::FdRef cgroup,
                                                                  const char* file,
                                                                  const std::string& trigger,
                                                                  OnPressure on_pressure) {
    std::shared_ptr<PressureWatch> watch(new PressureWatch(loop));
    auto opened = sys::open_cgroup_file(cgroup, file, O_RDWR | O_NONBLOCK);
    if (!opened.ok()) {
        if (opened.error().code == core::Code::kNotFound) return core::missing_file("resource", file);
        return std::move(opened).error();
    }
    watch->file_ = std::move(*opened);
    std::string step = std::string("cgroup.write ") + file + "=" + trigger;
    if (write(watch->file_.get(), trigger.c_str(), trigger.size() + 1) < 0)
        return core::errno_error(errno, step);
    if (!watch->read(watch->first_)) return core::errno_error(EIO, std::string("cgroup.read ") + file);
    watch->on_pressure_ = std::move(on_pressure);
    watch->arm();
    return watch;
}

bool PressureWatch::read(core::Pressure& into) const {
    char text[512];
    ssize_t count = pread(file_.get(), text, sizeof text, 0);
    if (count < 0) return false;
    into = core::parse_pressure(std::string_view(text, static_cast<size_t>(count)));
    return true;
}

void PressureWatch::arm() {
    self_ = shared_from_this();
    loop_.poll_multishot(poll_, file_.get(), POLLPRI);
}

void PressureWatch::on_event(loop::Op&, int32_t result) {
    std::shared_ptr<PressureWatch> keep = self_;
    core::Pressure now;
    if (!retired_ && result > 0 && (result & POLLPRI) != 0 && read(now)) {
        on_pressure_(now);
        if (!poll_.pending() && !retired_) arm();
        return;
    }
    // Retired, or the cgroup is gone.
    if (poll_.pending()) {
        loop_.cancel(poll_);
    } else {
        self_.reset();
    }
}

void PressureWatch::retire() {
    retired_ = true;  // the callback may be what calls this: it lives as long as the object
    if (poll_.pending()) loop_.cancel(poll_);
}

}  // namespace berth::runtime
