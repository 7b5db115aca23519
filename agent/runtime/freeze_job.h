// Pause and Resume: cgroup.freeze, and the wait for the kernel to say so in cgroup.events, bounded and
// blocking nobody.
#pragma once

#include <memory>

#include "agent/core/callback.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

enum class FreezeGoal : uint8_t { kFrozen, kThawed };

class FreezeJob : public std::enable_shared_from_this<FreezeJob> {
 public:
    // `cgroup` is borrowed for the call. `done` runs later from the loop: ok when the state is reached;
    // FAILED_PRECONDITION after limits::kFreezeDeadlineMs, and a freeze that timed out is thawed again.
    static std::shared_ptr<FreezeJob> begin(loop::Loop& loop, sys::FdRef cgroup, FreezeGoal goal,
                                            core::Callback<void(core::Status)> done);

    bool freezing() const { return goal_ == FreezeGoal::kFrozen; }
    // The container goes: nothing is answered any more.
    void abandon();

 private:
    FreezeJob(loop::Loop& loop, FreezeGoal goal, core::Callback<void(core::Status)> done);
    void check();
    void on_events(loop::Op& op, int32_t result);
    void on_deadline();
    void finish(core::Status status);

    loop::Loop& loop_;
    FreezeGoal goal_;
    core::Callback<void(core::Status)> done_;
    sys::UniqueFd directory_;
    sys::UniqueFd events_;
    core::Error failed_;
    std::shared_ptr<FreezeJob> self_;
    loop::Op poll_{loop::Op::to<&FreezeJob::on_events>(), this};
    loop::Timer deadline_{loop_, loop::Timer::to<&FreezeJob::on_deadline, FreezeJob>(), this};
    loop::Task first_{loop_, loop::Task::to<&FreezeJob::check, FreezeJob>(), this};
};

}  // namespace berth::runtime
