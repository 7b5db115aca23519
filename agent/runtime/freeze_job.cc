#include "agent/runtime/freeze_job.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/sys/cgroup.h"

namespace berth::runtime {

FreezeJob::FreezeJob(loop::Loop& loop, FreezeGoal goal, core::Callback<void(core::Status)> done)
    : loop_(loop), goal_(goal), done_(std::move(done)) {}

std::shared_ptr<FreezeJob> FreezeJob::begin(loop::Loop& loop, sys::FdRef cgroup, FreezeGoal goal,
                                            core::Callback<void(core::Status)> done) {
    std::shared_ptr<FreezeJob> job(new FreezeJob(loop, goal, std::move(done)));
    job->self_ = job;
    job->directory_ = sys::UniqueFd(fcntl(cgroup.get(), F_DUPFD_CLOEXEC, 3));
    job->events_ = sys::UniqueFd(openat(cgroup.get(), "cgroup.events", O_RDONLY | O_CLOEXEC));
    auto written = sys::set_freezer(
        cgroup, goal == FreezeGoal::kFrozen ? sys::FreezerState::kFrozen : sys::FreezerState::kThawed);
    if (!written.ok()) {
        job->failed_ = std::move(written).error();
    } else {
        job->deadline_.arm_after_ms(limits::kFreezeDeadlineMs);
    }
    job->first_.post();
    return job;
}

void FreezeJob::check() {
    if (failed_.err != 0) return finish(std::move(failed_));
    if (!events_.valid())
        return finish(core::make_error(core::Code::kFailedPrecondition, "cgroup.events: the cgroup is gone"));
    // The kernel notifies when the line changes: read on the polled descriptor to arm it.
    char text[256];
    ssize_t count = pread(events_.get(), text, sizeof text, 0);
    std::string_view now(text, count > 0 ? static_cast<size_t>(count) : 0);
    bool frozen = now.find("frozen 1") != std::string_view::npos;
    bool populated = now.find("populated 1") != std::string_view::npos;
    // An empty cgroup has nobody to wait for.
    if (frozen == (goal_ == FreezeGoal::kFrozen) || !populated) return finish(core::ok());
    if (!poll_.pending()) loop_.poll_multishot(poll_, events_.get(), POLLPRI);
}

void FreezeJob::on_events(loop::Op&, int32_t) {
    std::shared_ptr<FreezeJob> keep = self_;
    if (done_) return check();
    if (!poll_.pending()) self_.reset();
}

void FreezeJob::on_deadline() {
    if (goal_ == FreezeGoal::kFrozen) {
        // A half-frozen container would be the worst of both.
        (void)sys::set_freezer(directory_, sys::FreezerState::kThawed);
    }
    finish(core::make_error(core::Code::kFailedPrecondition,
                            core::format("cgroup.freeze: the kernel did not report %s within %lld ms",
                                         goal_ == FreezeGoal::kFrozen ? "frozen 1" : "frozen 0",
                                         static_cast<long long>(limits::kFreezeDeadlineMs))));
}

void FreezeJob::abandon() {
    done_ = {};
    deadline_.disarm();
    if (poll_.pending()) {
        loop_.cancel(poll_);
    } else {
        self_.reset();
    }
}

void FreezeJob::finish(core::Status status) {
    std::shared_ptr<FreezeJob> keep = self_;
    auto done = done_.take();
    abandon();
    if (done) done(std::move(status));
}

}  // namespace berth::runtime
