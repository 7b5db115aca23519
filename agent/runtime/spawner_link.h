// The agent's end of the spawner's socket: one request a process, answered in order of the spawner's work.
#pragma once

#include <map>
#include <span>
#include <string>

#include "agent/core/callback.h"
#include "agent/core/limits.h"
#include "agent/core/result.h"
#include "agent/core/spawner_protocol.h"
#include "agent/loop/loop.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

struct Spawned {
    int pid = 0;
    sys::UniqueFd pidfd;
};

class SpawnerLink {
 public:
    using Completion = core::Callback<void(core::Result<Spawned>)>;

    explicit SpawnerLink(loop::Loop& loop) : loop_(loop) {}

    // A new spawner's socket. Requests that the old one left unanswered fail with UNAVAILABLE: their
    // children, if there are any, saw end of file instead of the go byte and ended.
    void replace(sys::UniqueFd socket);

    // Sends the plan, a sealed memfd, and its descriptors (borrowed for the call). `completion` runs later
    // from the loop, exactly once.
    void spawn(uint64_t process_key, sys::FdRef plan, std::span<const int> fds, Completion completion);
    // Whether a plan of that size may go in the request itself now.
    bool takes_inline(size_t plan_bytes) const {
        return plan_bytes <= limits::kInlinePlanBytes && pending_.size() < limits::kInlinePlansPending;
    }
    void spawn_inline(uint64_t process_key, std::span<const std::byte> plan, std::span<const int> fds,
                      Completion completion);

 private:
    void on_readable(loop::Op& op, int32_t result);
    void send(core::SpawnRequest request, std::span<const std::byte> plan, std::span<const int> fds,
              Completion completion);
    void fail_all(const core::Error& error);
    void fail_later();

    loop::Loop& loop_;
    sys::UniqueFd socket_;
    sys::UniqueFd next_socket_;  // arrived while the poll of the old one was being cancelled
    uint64_t last_request_ = 0;
    std::map<uint64_t, Completion> pending_;
    std::vector<std::pair<Completion, core::Error>> failed_;
    loop::Op readable_{loop::Op::to<&SpawnerLink::on_readable>(), this};
    loop::Task fail_task_{loop_, loop::Task::to<&SpawnerLink::fail_later, SpawnerLink>(), this};
};

}  // namespace berth::runtime
