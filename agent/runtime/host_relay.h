// One stdio stream over a connection that the agent makes to a port of the host ("vsock://PORT"): the
// process's bytes and nothing else, no frames.
//
// A pipe lies between the process and the socket: a process that opens /dev/stdout again needs one, and a
// socket of this kind is nothing to give to a container. Bytes go from one to the other by splice, never
// through our memory, and both are stored: an agent that dies loses none. What the socket has taken is the
// host's business; a stream that must survive the connection is "stream://".
#pragma once

#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/core/callback.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/runtime/fd_store.h"
#include "agent/runtime/stream.h"

namespace berth::runtime {

class HostRelayKeeper {
 public:
    virtual ~HostRelayKeeper() = default;
    // Nothing goes on any more, or nothing is pending any more: to be looked at, not inside this call.
    virtual void on_relay_changed() = 0;
};

class HostRelay {
 public:
    enum class State : uint8_t {
        kConnecting,
        kFailed,  // error() says why
        kOpen,
        kOver,  // both ends are closed
    };

    // `prefix`: of its names in the store ("c/ID/vsock/EXEC/out/"). loop, store, keeper: borrowed.
    HostRelay(loop::Loop& loop, FdStore& store, HostRelayKeeper& keeper, StreamId id, std::string prefix);

    // Our end of the process's pipe: what is read of stdout and stderr, what is written of stdin.
    void set_pipe(sys::UniqueFd pipe);
    // Begins to connect to `port` of the host; on_settled tells when it is decided. Errors: see error().
    void dial(uint32_t port);
    // Takes a socket that is connected.
    void open(sys::UniqueFd socket);

    // A descriptor that the store returned ("pipe", "sock"). False: unknown.
    bool adopt(std::string_view part, sys::UniqueFd fd);
    // After the last adopt(): goes on. False: it had not been connected, and is of no use.
    bool resume();

    State state() const { return state_; }
    const core::Error& error() const { return error_; }
    const StreamId& id() const { return id_; }
    // Runs once, when it is connected or has failed.
    core::Callback<void()> on_settled;

    // CloseIO: what the host had sent until now is still delivered, then the process reads the end of file.
    void close_soon();
    // Moves its names to another prefix of the store: the process is deleted, what it wrote is still on its
    // way.
    void rename(std::string prefix);
    // Bytes that the process wrote and the socket has not taken.
    size_t undelivered() const;

    // Ends it; what is stored is dropped.
    void release();
    // Ends our part of it; what is stored stays for the next agent.
    void quiesce();
    // After either: it may be destroyed.
    bool is_idle() const { return !op_.pending(); }

    // Where the host is; tests put something else here.
    static core::Result<sys::UniqueFd> (*connect_to_host)(uint32_t port);

 private:
    void on_ready(loop::Op& op, int32_t result);
    void on_connected();
    void fail(core::Error error);
    void settle();
    void pump();
    void wait_for(const sys::UniqueFd& fd, uint32_t events);
    void finish();
    bool is_input() const { return id_.kind == StreamKind::kStdin; }
    bool socket_is_empty() const;

    loop::Loop& loop_;
    FdStore& store_;
    HostRelayKeeper& keeper_;
    StreamId id_;
    std::string prefix_;
    State state_ = State::kConnecting;
    core::Error error_;
    uint32_t port_ = 0;
    bool stopped_ = false;
    bool close_soon_ = false;
    sys::UniqueFd pipe_;
    sys::UniqueFd socket_;
    loop::Op op_{loop::Op::to<&HostRelay::on_ready>(), this};
};

}  // namespace berth::runtime
