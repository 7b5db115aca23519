// A connection that is not authenticated yet: a place of fixed size, of which there are
// limits::kUnauthenticatedConnections. It allocates nothing for its peer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "agent/auth/handshake.h"
#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/service/call.h"
#include "agent/service/connection_descriptors.h"
#include "agent/service/stream_gate.h"
#include "agent/sys/fd.h"

namespace berth::service {

// Who is at the other end, as far as the transport says.
struct Peer {
    uint32_t cid = auth::kNoAddress;
    uint32_t port = auth::kNoAddress;
    bool is_local = false;  // the local socket: no handshake, descriptors may come along
    bool is_bare = false;   // a first byte 0 is ttrpc at once: the local socket, and berth.auth=host-cid
};

class HandshakeSlot {
 public:
    class Owner {
     public:
        virtual ~Owner() = default;
        virtual const core::AgentConfig& config() const = 0;
        virtual const core::ClassKeys& keys() const = 0;
        // A number that no other handshake of this agent gets.
        virtual uint64_t next_handshake() = 0;
        // Whether one more authenticated connection of this class is allowed.
        virtual bool has_room(auth::ChannelClass channel_class) const = 0;
        virtual StreamGate& gate() = 0;
        // The handshake is done; the slot is free when these return.
        virtual void on_control(sys::UniqueFd fd, AccessClass access, const Peer& peer,
                                std::span<const std::byte> first, std::vector<sys::UniqueFd> descriptors) = 0;
        virtual void on_stream(TicketGrant grant, sys::UniqueFd fd) = 0;
    };

    HandshakeSlot(loop::Loop& loop, Owner& owner);

    bool is_free() const { return step_ == Step::kFree; }
    // Message 4 is on its way: as good as authenticated, for the limits.
    bool is_entering() const { return step_ == Step::kServerProof; }
    bool is_stream() const { return handshake_.hello().channel_class == auth::ChannelClass::kStream; }

    // Takes a free slot.
    void start(sys::UniqueFd fd, const Peer& peer);
    // Drops whoever is here, for a newcomer: at once, or as soon as the kernel has let go of the old one. A
    // newcomer that waits is dropped for the next.
    void replace(sys::UniqueFd fd, const Peer& peer);
    // Drops whoever is here.
    void close();

 private:
    enum class Step : uint8_t { kFree, kHello, kChallenge, kProof, kServerProof, kClosing };

    void receive(std::span<std::byte> into);
    void send(std::span<const std::byte> data);
    void on_io(loop::Op& op, int32_t result);
    void on_deadline();
    void on_hello_bytes(int32_t result);
    void on_hello();
    void open_bare_stream();
    void send_challenge();
    void on_proof();
    void enter();
    void enter_control(AccessClass access, size_t first_bytes);
    sys::UniqueFd release();
    void refuse(const char* why);
    void free();

    loop::Loop& loop_;
    Owner& owner_;
    Step step_ = Step::kFree;
    bool is_promoting_ = false;  // silent on a bare transport: a ttrpc client that has not called yet
    sys::UniqueFd fd_;
    Peer peer_;
    sys::UniqueFd next_fd_;  // a newcomer that waits for this slot
    Peer next_peer_;
    auth::ServerHandshake handshake_;
    auth::Hello hello_{};
    auth::Proof proof_{};  // the client's, then the server's
    TicketGrant grant_;
    std::span<std::byte> incoming_;        // what is still to be received
    std::span<const std::byte> outgoing_;  // what is still to be sent
    std::vector<sys::UniqueFd> descriptors_;
    DescriptorMessage message_;
    bool is_message_ = false;  // the pending receive carries descriptors
    loop::Op io_;
    loop::Timer deadline_;
};

}  // namespace berth::service
