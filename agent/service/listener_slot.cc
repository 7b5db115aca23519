#include "agent/service/listener_slot.h"

#include <sys/random.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include <cerrno>
#include <ctime>

#include "agent/core/limits.h"
#include "agent/sys/log.h"
#include "agent/wire/ttrpc_frame.h"

namespace berth::service {

namespace {

uint64_t cycle_counter() {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t value = 0;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return 0;
#endif
}

uint64_t clock_ns(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

HandshakeSlot::HandshakeSlot(loop::Loop& loop, Owner& owner)
    : loop_(loop),
      owner_(owner),
      io_(loop::Op::to<&HandshakeSlot::on_io>(), this),
      deadline_(loop, loop::Timer::to<&HandshakeSlot::on_deadline, HandshakeSlot>(), this) {}

void HandshakeSlot::start(sys::UniqueFd fd, const Peer& peer) {
    BERTH_CHECK(is_free() && !io_.pending());
    fd_ = std::move(fd);
    peer_ = peer;
    handshake_ = auth::ServerHandshake();
    is_promoting_ = false;
    step_ = Step::kHello;
    deadline_.arm_after_ms(limits::kHandshakeDeadlineMs);
    std::span<std::byte> hello = std::as_writable_bytes(std::span(hello_));
    // On the local socket no more than a frame's header, so that descriptors belong to that frame.
    receive(peer.is_local ? hello.first(wire::kFrameHeaderBytes) : hello);
}

void HandshakeSlot::replace(sys::UniqueFd fd, const Peer& peer) {
    if (is_free()) return start(std::move(fd), peer);
    next_fd_ = std::move(fd);
    next_peer_ = peer;
    if (step_ != Step::kClosing) refuse("dropped for a newcomer");
}

void HandshakeSlot::close() {
    next_fd_.reset();
    if (!is_free() && step_ != Step::kClosing) refuse("closed");
}

// ---- input and output ----

void HandshakeSlot::receive(std::span<std::byte> into) {
    incoming_ = into;
    is_message_ = peer_.is_local && step_ == Step::kHello;
    if (is_message_) return loop_.recvmsg(io_, fd_.get(), message_.prepare(into.data(), into.size()), 0);
    loop_.recv(io_, fd_.get(), into);
}

void HandshakeSlot::send(std::span<const std::byte> data) {
    outgoing_ = data;
    loop_.send(io_, fd_.get(), data);
}

void HandshakeSlot::on_io(loop::Op&, int32_t result) {
    bool are_complete = true;
    if (is_message_ && result >= 0) are_complete = message_.take(descriptors_);
    is_message_ = false;
    if (step_ == Step::kClosing) return free();
    bool is_sending = step_ == Step::kChallenge || step_ == Step::kServerProof;
    if (result == -ECANCELED && is_promoting_) return enter_control(AccessClass::kControl, 0);
    if (result == -EINTR) return is_sending ? send(outgoing_) : receive(incoming_);
    if (result <= 0) return refuse("ended by the peer");
    if (!are_complete) return refuse("descriptors were cut off");
    size_t count = static_cast<size_t>(result);
    if (step_ == Step::kHello) return on_hello_bytes(result);
    if (is_sending) {
        if (count < outgoing_.size()) return send(outgoing_.subspan(count));
        if (step_ == Step::kServerProof) return enter();
        step_ = Step::kProof;
        return receive(std::as_writable_bytes(std::span(proof_)));
    }
    if (count < incoming_.size()) return receive(incoming_.subspan(count));
    on_proof();
}

// A client of a transport without handshake may connect long before its first call; one that opens a stream
// speaks at once.
void HandshakeSlot::on_deadline() {
    bool is_silent = step_ == Step::kHello && incoming_.size() > 0 &&
                     incoming_.data() == std::as_writable_bytes(std::span(hello_)).data();
    if (!peer_.is_bare || !is_silent) return refuse("too slow");
    is_promoting_ = true;
    loop_.cancel(io_);
}

void HandshakeSlot::refuse(const char* why) {
    sys::log(sys::LogLevel::kDebug, "handshake.refused", "peer %u:%u: %s", peer_.cid, peer_.port, why);
    step_ = Step::kClosing;
    deadline_.disarm();
    if (io_.pending()) return loop_.cancel(io_);
    free();
}

void HandshakeSlot::free() {
    fd_.reset();
    descriptors_.clear();
    step_ = Step::kFree;
    auth::wipe(proof_.data(), proof_.size());
    if (next_fd_.valid()) start(std::move(next_fd_), next_peer_);
}

sys::UniqueFd HandshakeSlot::release() {
    BERTH_CHECK(!io_.pending());
    deadline_.disarm();
    return std::move(fd_);
}

// ---- the handshake ----

void HandshakeSlot::on_hello_bytes(int32_t result) {
    if (is_promoting_) {
        // It spoke in the last moment.
        is_promoting_ = false;
        deadline_.arm_after_ms(limits::kHandshakeDeadlineMs);
    }
    std::span<std::byte> hello = std::as_writable_bytes(std::span(hello_));
    size_t received = static_cast<size_t>(incoming_.data() - hello.data()) + static_cast<size_t>(result);
    if (hello_[0] == 0 && peer_.is_bare) return enter_control(AccessClass::kControl, received);
    if (hello_[0] != auth::kHelloFirstByte) return refuse("the first byte is none of a hello");
    if (!descriptors_.empty()) return refuse("descriptors with a hello");
    if (received < hello.size()) return receive(hello.subspan(received));
    on_hello();
}

void HandshakeSlot::on_hello() {
    auth::HandshakeFailure failure = handshake_.on_hello(hello_);
    if (failure != auth::HandshakeFailure::kNone) return refuse(auth::handshake_failure_name(failure));
    bool is_stream = handshake_.hello().channel_class == auth::ChannelClass::kStream;
    if (peer_.is_bare && is_stream) return open_bare_stream();
    if (peer_.is_local) return refuse("the local socket has no handshake");
    if (owner_.config().has_secret == 0) return refuse("there is no secret");
    send_challenge();
}

void HandshakeSlot::open_bare_stream() {
    if (!owner_.has_room(auth::ChannelClass::kStream)) return refuse("too many streams");
    core::Result<TicketGrant> grant = owner_.gate().check_ticket(handshake_.hello().ticket);
    if (!grant.ok()) return refuse("ticket");
    grant_ = *grant;
    enter();
}

void HandshakeSlot::send_challenge() {
    auth::NonceInputs inputs{.random = {},
                             .cycle_counter = cycle_counter(),
                             .monotonic_ns = clock_ns(CLOCK_MONOTONIC),
                             .realtime_ns = clock_ns(CLOCK_REALTIME),
                             .counter = owner_.next_handshake()};
    // Never waits: the keeper let the pool fill before it started us.
    if (getrandom(inputs.random.data(), inputs.random.size(), GRND_NONBLOCK) !=
        static_cast<ssize_t>(inputs.random.size())) {
        return refuse("no random bytes");
    }
    auth::Key key = auth::class_key(owner_.keys(), handshake_.hello().channel_class);
    auth::ChallengeFields fields{.generation = owner_.config().generation,
                                 .server_nonce = auth::make_server_nonce(key, inputs),
                                 .instance_id = std::to_array(owner_.config().instance_id),
                                 .peer_cid = peer_.cid,
                                 .peer_port = peer_.port};
    auth::wipe(key.data(), key.size());
    step_ = Step::kChallenge;
    send(std::as_bytes(std::span(handshake_.challenge(fields))));
}

void HandshakeSlot::on_proof() {
    auth::ChannelClass channel_class = handshake_.hello().channel_class;
    auth::Key key = auth::class_key(owner_.keys(), channel_class);
    auth::Proof server_proof{};
    auth::HandshakeFailure failure = handshake_.on_proof(proof_, key, server_proof);
    auth::wipe(key.data(), key.size());
    if (failure != auth::HandshakeFailure::kNone) return refuse(auth::handshake_failure_name(failure));
    // Before the ticket: a client that is turned away for the number of streams may try it again.
    if (!owner_.has_room(channel_class)) return refuse("too many connections");
    if (channel_class == auth::ChannelClass::kStream) {
        core::Result<TicketGrant> grant = owner_.gate().check_ticket(handshake_.hello().ticket);
        if (!grant.ok()) return refuse("ticket");
        grant_ = *grant;
    }
    proof_ = server_proof;
    step_ = Step::kServerProof;
    send(std::as_bytes(std::span(proof_)));
}

// Nothing was read past the handshake: every receive asked for exactly what it consists of.
void HandshakeSlot::enter() {
    auth::ChannelClass channel_class = handshake_.hello().channel_class;
    if (channel_class != auth::ChannelClass::kStream) {
        bool is_read_only = channel_class == auth::ChannelClass::kReadOnly;
        return enter_control(is_read_only ? AccessClass::kReadOnly : AccessClass::kControl, 0);
    }
    TicketGrant grant = grant_;
    sys::UniqueFd fd = release();
    free();
    owner_.on_stream(grant, std::move(fd));
}

void HandshakeSlot::enter_control(AccessClass access, size_t first_bytes) {
    // After a handshake the place is reserved since message 3.
    bool has_place = is_entering() || owner_.has_room(auth::ChannelClass::kControl);
    if (!has_place) return refuse("too many connections");
    auth::Hello first = hello_;
    Peer peer = peer_;
    std::vector<sys::UniqueFd> descriptors = std::move(descriptors_);
    descriptors_.clear();
    sys::UniqueFd fd = release();
    free();
    owner_.on_control(std::move(fd), access, peer, std::as_bytes(std::span(first)).first(first_bytes),
                      std::move(descriptors));
}

}  // namespace berth::service
