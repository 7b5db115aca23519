// The keeper's end of one agent's socket. Nothing is ever queued as bytes: what the agent still has to be
// told follows from the fd store, the exit table and a cursor, so an agent that does not read costs the
// keeper nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/core/keeper_protocol.h"
#include "agent/keeper/exit_table.h"
#include "agent/keeper/fd_store.h"
#include "agent/sys/fd.h"

namespace berth::keeper {

enum class FlushResult : uint8_t {
    kDone,     // nothing left to tell
    kBlocked,  // the socket is full: poll for writing
    kRetry,    // the kernel is short of something else (descriptors in flight): try again in a while
    kGone,     // the agent is
};

class AgentChannel {
 public:
    // A new agent: everything counts as untold. The store and the table must outlive the channel.
    AgentChannel(sys::UniqueFd socket, const core::AgentConfig& config, FdStore& store, ExitTable& exits);

    int socket() const { return socket_.get(); }

    // A (new) spawner's socket for the agent; takes the place of one that was not sent yet.
    void offer_spawner(sys::UniqueFd socket);

    // Sends what fits, without blocking. `keys` go into the welcome; they are read here only, and no copy is
    // left.
    FlushResult flush(const core::ClassKeys& keys);

 private:
    enum class Stage : uint8_t { kGreeting, kDescriptors, kProcesses, kEnd, kLive };

    FlushResult send_greeting(const core::ClassKeys& keys);
    FlushResult send_descriptors();
    FlushResult send_processes();
    FlushResult send_live();
    FlushResult send(const core::KeeperMessage& message, int fd);

    sys::UniqueFd socket_;
    core::AgentConfig config_;
    FdStore& store_;
    ExitTable& exits_;
    sys::UniqueFd spawner_;  // not sent yet
    Stage stage_ = Stage::kGreeting;
    std::string last_name_;             // of kDescriptors
    std::optional<uint64_t> last_key_;  // of kProcesses
};

}  // namespace berth::keeper
