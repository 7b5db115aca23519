// The agent's end of the keeper's socket: what the keeper kept for us, what it tells us, what we ask it to
// keep.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/runtime/fd_store.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

// All that a new agent is told before it serves: read once, with blocking receives, before the loop runs.
struct Welcome {
    core::AgentConfig config;
    core::ClassKeys keys;
    std::map<std::string, sys::UniqueFd>
        stored;  // by name; what nobody claims is dropped at the end of adoption
    struct Registered {
        core::ProcessRecord process;
        sys::UniqueFd pidfd;
    };
    std::vector<Registered> registered;
    std::vector<core::ProcessRecord> exited;
    sys::UniqueFd spawner;
};

class KeeperLink final : public FdStore {
 public:
    // Takes over the keeper's socket. Exactly one keeper, for the life of the agent.
    explicit KeeperLink(sys::UniqueFd socket) : socket_(std::move(socket)) {}

    core::Result<Welcome> receive_welcome();

    // Goes live: messages are delivered from the loop from here on.
    struct Events {
        core::Callback<void(const core::ProcessRecord&)> on_exit;
        core::Callback<void(sys::UniqueFd)> on_spawner;
        core::Callback<void()> on_keeper_gone;
    };
    void attach(loop::Loop& loop, Events events);

    // FdStore. Kept by the keeper from the moment that the call returns: what is in the socket survives us.
    void store(std::string_view name, sys::FdRef fd) override;
    void drop(std::string_view name) override;
    // Several in one message, as PREFIX0, PREFIX1, ...; `prefix` ends in '/', so that drop(prefix) drops
    // them.
    void store_all(std::string_view prefix, std::span<const int> fds);

    // drop(), and `sent` once the keeper has it for certain, whatever becomes of us: at once, unless its
    // buffer is full.
    void drop_then(std::string_view name, core::Callback<void()> sent);

    // Tells the keeper with others, a second later or when there are enough: until then it would tell a new
    // agent of an exit that this one knows already, which does no harm.
    void acknowledge_exit(uint64_t process_key);
    void forget(uint64_t process_key);
    void shutdown(core::ShutdownMode mode);
    void ready();

 private:
    struct Outgoing {
        core::KeeperMessage message;
        std::vector<sys::UniqueFd> fds;
        core::Callback<void()> sent;  // may be empty
    };
    void send(core::KeeperMessageType type, uint32_t value, uint64_t key, std::string_view name,
              std::span<const int> fds, core::Callback<void()> sent = {});
    bool try_send(const core::KeeperMessage& message, std::span<const int> fds);
    void on_readable(loop::Op& op, int32_t result);
    void on_writable(loop::Op& op, int32_t result);
    void arm();
    void send_acknowledgements();

    sys::UniqueFd socket_;
    loop::Loop* loop_ = nullptr;
    Events events_;
    std::deque<Outgoing> outgoing_;              // only while the keeper's buffer is full
    std::vector<uint64_t> acknowledged_;         // not sent yet
    std::optional<loop::Timer> acknowledge_at_;  // there from attach() on
    loop::Op readable_{loop::Op::to<&KeeperLink::on_readable>(), this};
    loop::Op writable_{loop::Op::to<&KeeperLink::on_writable>(), this};
};

}  // namespace berth::runtime
