// The agent's server: accepts on the listeners that the keeper handed over, authenticates, and turns
// connections into control connections and streams.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/core/keeper_protocol.h"
#include "agent/loop/loop.h"
#include "agent/service/call.h"
#include "agent/service/connection.h"
#include "agent/service/listener_slot.h"
#include "agent/service/stream_gate.h"
#include "agent/sys/fd.h"

namespace berth::service {

enum class ListenerKind : uint8_t {
    kVsock,  // the peer must be CID 2 (or 1 with allow_local_cid); handshake, unless auth_host_cid
    kUnix,   // the handshake as on vsock
    kLocal,  // the peer must be uid 0 of our user namespace; no handshake, descriptors may come along
};

class Server final : private HandshakeSlot::Owner, private ControlConnection::Owner {
 public:
    // All arguments outlive the server. `config` and `keys` are read anew for each connection: a change of
    // generation, instance id or keys in place holds from the next hello on.
    Server(loop::Loop& loop, const core::AgentConfig& config, const core::ClassKeys& keys,
           CallHandler& handler, StreamGate& gate);
    // Nothing may be pending: after close_all() and enough turns of the loop for idle(). A process that ends
    // just exits.
    ~Server();

    // Accepts from here on. `fd` is a listening socket of that kind.
    void add_listener(ListenerKind kind, sys::UniqueFd fd);

    // Ends every connection that is not the one `keep` came over (null: all), those in the middle of their
    // handshake too. Streams are the gate's to end.
    void close_all_but(const Call* keep);
    // Stops accepting (the keeper's copies of the listeners keep queueing), and ends every connection.
    void close_all();
    // True when nothing is pending and the server may be destroyed.
    bool idle() const;

    size_t control_connections() const { return control_connections_; }
    size_t unauthenticated() const;

 private:
    struct Listener {
        Listener(Server& owner, ListenerKind listener_kind, sys::UniqueFd socket);
        void on_accept(loop::Op& op, int32_t result);
        void accept();
        Server& server;
        ListenerKind kind;
        sys::UniqueFd fd;
        loop::Op accept_op;
        loop::Timer retry;
    };

    void take(ListenerKind kind, sys::UniqueFd fd);
    bool check_peer(ListenerKind kind, int fd, Peer& peer);
    void give_slot(sys::UniqueFd fd, const Peer& peer);

    const core::AgentConfig& config() const override { return config_; }
    const core::ClassKeys& keys() const override { return keys_; }
    uint64_t next_handshake() override { return ++handshakes_; }
    bool has_room(auth::ChannelClass channel_class) const override;
    StreamGate& gate() override { return gate_; }
    void on_control(sys::UniqueFd fd, AccessClass access, const Peer& peer, std::span<const std::byte> first,
                    std::vector<sys::UniqueFd> descriptors) override;
    void on_stream(TicketGrant grant, sys::UniqueFd fd) override;
    void on_connection_closing(ControlConnection& connection) override;
    void on_connection_closed(ControlConnection& connection) override;

    loop::Loop& loop_;
    const core::AgentConfig& config_;
    const core::ClassKeys& keys_;
    CallHandler& handler_;
    StreamGate& gate_;
    std::vector<std::unique_ptr<Listener>> listeners_;
    std::vector<std::unique_ptr<HandshakeSlot>> slots_;  // made as needed, kept
    std::vector<std::unique_ptr<ControlConnection>> connections_;
    size_t control_connections_ = 0;  // of them, not closing
    uint64_t handshakes_ = 0;
    bool is_closed_ = false;
    bool has_told_no_secret_ = false;
};

}  // namespace berth::service
