// Hooks of a container, run one after the other: processes of the spawner's that the loop supervises.
//
// Each reads the container's state as stdin (a memfd: one that does not read it disturbs nobody), and writes
// to a pipe whose end is kept for the error. Its exit comes from the keeper, its timeout from a timer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/hooks.h"
#include "agent/core/keeper_protocol.h"
#include "agent/loop/loop.h"
#include "agent/runtime/launch.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class Container;
class Runtime;

class HookRun final : public LaunchObserver, public std::enable_shared_from_this<HookRun> {
 public:
    using Completion = core::Callback<void(core::Status)>;
    enum class OnFailure : uint8_t {
        kStop,  // the first failure ends the run, and is its result
        kWarn,  // logged; the others still run
    };

    // Runs the hooks of `kinds`, in that order, with `status` in their state. `done` runs exactly once,
    // later, unless cancel() comes before. The error of a hook that failed names its place in the spec, its
    // path, how it ended and what it said last.
    static std::shared_ptr<HookRun> begin(Runtime& runtime, std::shared_ptr<Container> container,
                                          std::vector<core::HookKind> kinds, std::string_view status,
                                          OnFailure on_failure, Completion done);
    ~HookRun() override;

    // Kills the hook that runs; nothing more is heard of the rest.
    void cancel();

    // From the keeper, of the process with key().
    void on_exit(const core::ProcessRecord& record);

 private:
    HookRun(Runtime& runtime, std::shared_ptr<Container> container, std::string_view status,
            OnFailure on_failure, Completion done);
    void on_spawned(int pid, sys::UniqueFd pidfd) override;
    void on_ready() override;
    void on_executed() override;
    void on_launch_failed(core::Error error) override;
    void on_pty(sys::UniqueFd) override {}
    void on_mounts(sys::UniqueFd) override {}
    void on_seccomp_listener(sys::UniqueFd listener) override;
    void on_hook(uint32_t) override {}

    struct Place {
        core::HookKind kind;
        size_t index;
    };
    const core::HookSpec& hook() const;
    void next();
    core::Status launch();
    core::Result<std::string> state_json() const;
    void on_output(loop::Op& op, int32_t result);
    void read_output();
    void on_timeout();
    void settle();
    void end_one(core::Status status);
    core::Status verdict() const;
    core::Error failure(core::Error error) const;
    void release();

    Runtime& runtime_;
    std::shared_ptr<Container> container_;
    std::string_view status_;
    OnFailure on_failure_;
    Completion done_;
    std::vector<Place> places_;
    size_t at_ = 0;
    std::shared_ptr<HookRun> self_;  // while anything of it is pending
    // Of the hook that runs.
    int hook_pid_ = 0;
    uint64_t key_ = 0;
    std::shared_ptr<Launch> launch_;
    sys::UniqueFd pidfd_;
    sys::UniqueFd output_fd_;
    std::string output_;
    bool executed_ = false;
    bool timed_out_ = false;
    bool cancelled_ = false;
    std::optional<core::Status> result_;  // waits for the poll to be over
    std::optional<core::ProcessRecord> exit_;
    loop::Op output_op_{loop::Op::to<&HookRun::on_output>(), this};
    loop::Timer timeout_;
    loop::Task first_;
};

}  // namespace berth::runtime
