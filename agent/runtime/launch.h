// One process on its way from a plan to exec: clone by the spawner, set-up, the gate of Start, the program.
//
// (A plan without kReady leads to kExecuting at once.)
//   begin() -> kCloning --reply--> kSettingUp --kReady--> kReady --go()--> kExecuting --end of file-->
//   executed
//                 |                     |                    |                 |
//                 +---------------------+------ failed ------+-----------------+
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/launch_plan.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/runtime/spawner_link.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class LaunchObserver {
 public:
    virtual ~LaunchObserver() = default;
    // The process exists and is registered with the keeper; nothing of it has run yet.
    virtual void on_spawned(int pid, sys::UniqueFd pidfd) = 0;
    virtual void on_ready() = 0;                           // set up, waits for go()
    virtual void on_executed() = 0;                        // execve done (or the process was killed on
                                                           // its way: its exit tells)
    virtual void on_launch_failed(core::Error error) = 0;  // ended by itself with kExitSetupFailed, or was
                                                           // never there
    virtual void on_pty(sys::UniqueFd master) = 0;         // before on_ready
    virtual void on_seccomp_listener(sys::UniqueFd listener) = 0;  // the process goes on meanwhile
    virtual void on_mounts(sys::UniqueFd mount_namespace) = 0;     // before on_ready
    virtual void on_hook(uint32_t point) = 0;                      // waits for go(), for as long as it takes
};

// What the slots of a plan are filled from. Descriptors are borrowed until begin() returns.
struct LaunchSources {
    int cgroup = -1;
    int stdio[3] = {-1, -1, -1};
    int init_pidfd = -1;
    int mounts = -1;  // Container::mounts
    std::span<const sys::UniqueFd> passed;
};

class Launch : public std::enable_shared_from_this<Launch> {
 public:
    enum class State : uint8_t { kIdle, kCloning, kSettingUp, kReady, kExecuting, kDone };

    static std::shared_ptr<Launch> create(loop::Loop& loop, SpawnerLink& spawner, LaunchObserver& observer) {
        return std::shared_ptr<Launch>(new Launch(loop, spawner, observer));
    }

    // Opens what the plan asks for, and sends it off. On an error nothing was started. The gate (our end of
    // the sync socket) and a container's plan are there afterwards for the keeper's store.
    core::Status begin(uint64_t process_key, core::LaunchPlan plan, const LaunchSources& sources);

    // After a restart of the agent: a process that waits for go() behind `gate`. `plan` names its steps.
    void adopt_ready(sys::UniqueFd gate, sys::UniqueFd plan);
    // The same of one that an agent may have let go which did not live to see it exec: the end of the gate
    // means that it became its program, with or without another go().
    void adopt_let_go(sys::UniqueFd gate);

    // Lets a ready (or hooked) process go on. An error: it is gone.
    core::Status go();

    sys::FdRef gate() const { return gate_; }
    sys::FdRef plan_fd() const { return plan_fd_; }
    State state() const { return state_; }

    // The observer hears nothing more; the gate closes, which ends a process that still waits behind it. The
    // object lives until the ring and the spawner have let go of it.
    void retire();

 private:
    Launch(loop::Loop& loop, SpawnerLink& spawner, LaunchObserver& observer)
        : loop_(loop), spawner_(spawner), observer_(&observer) {}
    core::Result<std::vector<int>> open_slots(const core::LaunchPlan& plan, const LaunchSources& sources,
                                              std::vector<sys::UniqueFd>& opened, int child_sync);
    void on_reply(core::Result<Spawned> reply);
    void on_gate(loop::Op& op, int32_t result);
    void handle(const core::ChildMessage& message, std::vector<sys::UniqueFd> fds);
    void on_gate_end();
    void fail(core::Error error);
    void watch_gate();
    void on_deadline();
    core::Error step_error(const core::ChildMessage& message) const;

    loop::Loop& loop_;
    SpawnerLink& spawner_;
    LaunchObserver* observer_;  // null: retired
    State state_ = State::kIdle;
    bool hooked_ = false;           // at a hook point
    bool waits_ = true;             // its plan has a kReady: else nothing holds it once it is cloned
    std::shared_ptr<Launch> self_;  // while the gate's poll is pending
    sys::UniqueFd gate_;
    sys::UniqueFd plan_fd_;
    std::vector<std::byte> plan_;  // where there is no descriptor of it: what names a failed step
    bool was_let_go_ = false;      // by an agent before us
    loop::Timer deadline_{loop_, loop::Timer::to<&Launch::on_deadline, Launch>(), this};  // of the set-up
    loop::Op gate_op_{loop::Op::to<&Launch::on_gate>(), this};
};

}  // namespace berth::runtime
