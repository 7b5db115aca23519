// Empties and removes a container's cgroup without waiting anywhere: cgroup.kill, `populated 0`, rmdir from
// the leaves up.
#pragma once

#include <memory>
#include <string>

#include "agent/core/callback.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/runtime/cgroup_dirs.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class CgroupTeardown : public std::enable_shared_from_this<CgroupTeardown> {
 public:
    // `place` is the cgroup's (its base outlives this); `directory` its open descriptor
    // (taken), or invalid when it could not be opened. A cgroup that is gone already is a success, and so are
    // its ancestors that are in use. `done` runs later from the loop, within limits::kTeardownDeadlineMs:
    // FAILED_PRECONDITION then names the processes that would not go (a task in uninterruptible sleep cannot
    // be killed).
    static std::shared_ptr<CgroupTeardown> begin(loop::Loop& loop, CgroupPlace place, sys::UniqueFd directory,
                                                 core::Callback<void(core::Status)> done);

 private:
    CgroupTeardown(loop::Loop& loop, CgroupPlace place, sys::UniqueFd directory,
                   core::Callback<void(core::Status)> done);
    void step();
    void begin_killing();
    void remove_ancestors();
    void on_events(loop::Op& op, int32_t result);
    void on_deadline();
    bool try_remove();
    core::Error stuck_error();
    void finish(core::Status status);

    loop::Loop& loop_;
    CgroupPlace place_;
    sys::UniqueFd directory_;
    sys::UniqueFd events_;
    bool killing_ = false;
    core::Callback<void(core::Status)> done_;
    int64_t retry_ms_ = 1;
    std::shared_ptr<CgroupTeardown> self_;
    loop::Op poll_{loop::Op::to<&CgroupTeardown::on_events>(), this};
    loop::Timer deadline_{loop_, loop::Timer::to<&CgroupTeardown::on_deadline, CgroupTeardown>(), this};
    loop::Timer retry_{loop_, loop::Timer::to<&CgroupTeardown::step, CgroupTeardown>(), this};
    loop::Task first_{loop_, loop::Task::to<&CgroupTeardown::step, CgroupTeardown>(), this};
};

}  // namespace berth::runtime
