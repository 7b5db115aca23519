#include "agent/service/connection.h"

#include <algorithm>
#include <cerrno>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/service/connection_call.h"
#include "agent/sys/log.h"

namespace berth::service {

ControlConnection::ControlConnection(loop::Loop& loop, sys::UniqueFd fd, const Options& options,
                                     CallHandler& handler, Owner& owner)
    : loop_(loop),
      fd_(std::move(fd)),
      options_(options),
      handler_(handler),
      owner_(owner),
      writer_(loop, fd_.get(), &ControlConnection::on_write_progress, this),
      receive_(loop::Op::to<&ControlConnection::on_received>(), this),
      timer_(loop, loop::Timer::to<&ControlConnection::on_timer, ControlConnection>(), this),
      end_task_(loop, loop::Task::to<&ControlConnection::on_end_task, ControlConnection>(), this) {
    if (options_.is_local) descriptor_message_ = std::make_unique<DescriptorMessage>();
}

ControlConnection::~ControlConnection() = default;

void ControlConnection::start(std::span<const std::byte> first, std::vector<sys::UniqueFd> descriptors) {
    descriptors_ = std::move(descriptors);
    take(first);
    receive();
}

// ---- incoming ----

void ControlConnection::receive() {
    if (state_ != State::kOpen) return;
    size_t wanted = session_.bytes_wanted();
    size_t size = wanted > limits::kConnectionInputBytes ? limits::kConnectionLargeInputBytes
                                                         : limits::kConnectionInputBytes;
    if (input_.size() != size) input_ = std::vector<std::byte>(size);
    if (!options_.is_local) return loop_.recv(receive_, fd_.get(), input_);
    // Never past the present header or payload: so descriptors belong to the frame that a chunk begins.
    loop_.recvmsg(receive_, fd_.get(), descriptor_message_->prepare(input_.data(), std::min(wanted, size)),
                  0);
}

void ControlConnection::on_received(loop::Op&, int32_t result) {
    std::vector<sys::UniqueFd> descriptors;
    bool are_complete = true;
    if (options_.is_local && result >= 0) are_complete = descriptor_message_->take(descriptors);
    if (state_ == State::kClosing) return destroy_if_idle();
    if (state_ == State::kDraining) return;
    if (result == -EINTR) return receive();
    if (result <= 0) return close();
    bool is_misplaced = !descriptors.empty() && !session_.at_frame_start();
    if (!are_complete || is_misplaced) {
        sys::log(sys::LogLevel::kWarn, "connection.descriptors", "%s: closed",
                 are_complete ? "descriptors inside a frame" : "descriptors were cut off");
        return close();
    }
    if (!descriptors.empty()) descriptors_ = std::move(descriptors);
    take(std::span<const std::byte>(input_).first(static_cast<size_t>(result)));
    receive();
}

void ControlConnection::take(std::span<const std::byte> bytes) {
    while (!bytes.empty() && state_ == State::kOpen) {
        wire::SessionEvent event;
        bytes = bytes.subspan(session_.feed(bytes, event));
        on_event(event);
        if (session_.at_frame_start()) descriptors_.clear();
    }
}

void ControlConnection::on_event(wire::SessionEvent& event) {
    using Kind = wire::SessionEvent::Kind;
    switch (event.kind) {
        case Kind::kNone: return;
        case Kind::kRequest: return begin_call(event);
        case Kind::kRefused: return answer_error(event.stream_id, event.error);
        case Kind::kBroken: {
            std::map<uint32_t, std::shared_ptr<TtrpcCall>>::iterator found = calls_.find(event.stream_id);
            BERTH_CHECK(found != calls_.end());
            std::shared_ptr<TtrpcCall> call = found->second;
            return call->break_off(event.error, core::Code::kCancelled);
        }
        case Kind::kFatal: answer_error(event.stream_id, event.error); return drain();
    }
}

void ControlConnection::begin_call(wire::SessionEvent& event) {
    std::shared_ptr<TtrpcCall> call = std::make_shared<TtrpcCall>(*this, event.stream_id);
    call->service = std::move(event.request.service);
    call->method = std::move(event.request.method);
    call->payload = std::move(event.request.payload);
    call->containerd_namespace = std::move(event.request.containerd_namespace);
    call->access = options_.access;
    call->is_local = options_.is_local;
    call->is_stream = event.is_stream;
    call->descriptors = std::move(descriptors_);
    descriptors_.clear();
    calls_.emplace(event.stream_id, call);
    if (event.request.timeout_nano > 0) {
        call->deadline_ns = loop_.now_ns() + event.request.timeout_nano;
        deadlines_++;
        if (next_deadline_ns_ == 0 || call->deadline_ns < next_deadline_ns_) arm_deadline();
    }
    if (writer_.queued_bytes() >= limits::kQueuedBytesPerConnection) {
        return call->fail(core::make_error(core::Code::kResourceExhausted,
                                           "ttrpc: earlier answers on this connection wait to be read"));
    }
    handler_.handle(std::move(call));
}

// ---- outgoing ----

void ControlConnection::answer_error(uint32_t stream_id, const core::Error& error) {
    push(wire::encode_error_frame(stream_id, error));
}

bool ControlConnection::has_room(size_t bytes) const {
    return writer_.queued_bytes() + bytes <= limits::kQueuedBytesPerConnection;
}

void ControlConnection::push(std::string frame, const ConnectionWriter::Account& account) {
    if (state_ != State::kOpen) return;
    writer_.push(std::move(frame), account);
    if (writer_.queued_bytes() <= limits::kQueuedBytesPerConnection + limits::kQueueSlackBytes) return;
    sys::log(sys::LogLevel::kWarn, "connection.stuck", "%zu bytes of answers were not read: closed",
             writer_.queued_bytes());
    close();
}

void ControlConnection::finish_call(TtrpcCall& call) {
    session_.finish(call.stream_id());
    calls_.erase(call.stream_id());
    if (call.deadline_ns == 0 || --deadlines_ > 0) return;
    next_deadline_ns_ = 0;
    if (state_ == State::kOpen) timer_.disarm();
}

void ControlConnection::on_write_progress(void* self, int32_t error) {
    ControlConnection& connection = *static_cast<ControlConnection*>(self);
    if (connection.state_ == State::kClosing) return connection.destroy_if_idle();
    if (error < 0 || connection.state_ == State::kDraining) connection.close();
}

// ---- deadlines ----

// One timer, set to the nearest deadline of all.
void ControlConnection::arm_deadline() {
    int64_t nearest_ns = 0;
    for (const std::pair<const uint32_t, std::shared_ptr<TtrpcCall>>& entry : calls_) {
        int64_t deadline_ns = entry.second->deadline_ns;
        if (deadline_ns != 0 && (nearest_ns == 0 || deadline_ns < nearest_ns)) nearest_ns = deadline_ns;
    }
    if (nearest_ns == next_deadline_ns_) return;
    next_deadline_ns_ = nearest_ns;
    if (nearest_ns == 0) return timer_.disarm();
    timer_.arm_at_ns(nearest_ns);
}

void ControlConnection::on_timer() {
    if (state_ != State::kOpen) return close();
    next_deadline_ns_ = 0;
    std::vector<std::shared_ptr<TtrpcCall>> expired;
    for (const std::pair<const uint32_t, std::shared_ptr<TtrpcCall>>& entry : calls_) {
        int64_t deadline_ns = entry.second->deadline_ns;
        if (deadline_ns != 0 && deadline_ns <= loop_.now_ns()) expired.push_back(entry.second);
    }
    for (const std::shared_ptr<TtrpcCall>& call : expired) {
        call->break_off(
            core::make_error(core::Code::kDeadlineExceeded, call->method + ": the call's deadline passed"),
            core::Code::kDeadlineExceeded);
    }
    if (state_ == State::kOpen) arm_deadline();
}

// ---- the end ----

bool ControlConnection::carries(const Call& call) const {
    return std::any_of(calls_.begin(), calls_.end(),
                       [&](const std::pair<const uint32_t, std::shared_ptr<TtrpcCall>>& entry) {
                           return entry.second.get() == &call;
                       });
}

void ControlConnection::detach_calls() {
    for (std::pair<const uint32_t, std::shared_ptr<TtrpcCall>>& entry : calls_) {
        entry.second->detach();
        ended_.push_back(std::move(entry.second));
    }
    calls_.clear();
    deadlines_ = 0;
    end_task_.post();
}

// A last error goes out; nothing more is read and nothing else is answered.
void ControlConnection::drain() {
    if (state_ != State::kOpen) return;
    state_ = State::kDraining;
    loop_.cancel(receive_);
    timer_.arm_after_ms(limits::kConnectionDrainMs);
    detach_calls();
}

void ControlConnection::close() {
    if (state_ == State::kClosing) return;
    state_ = State::kClosing;
    timer_.disarm();
    loop_.cancel(receive_);
    writer_.stop();
    detach_calls();
    owner_.on_connection_closing(*this);
}

void ControlConnection::on_end_task() {
    std::vector<std::shared_ptr<TtrpcCall>> ended = std::move(ended_);
    ended_.clear();
    for (const std::shared_ptr<TtrpcCall>& call : ended) call->end(core::Code::kCancelled);
    // Told may be closing by now, when it was draining before: then close() has posted again.
    is_told_ = state_ == State::kClosing && ended_.empty();
    destroy_if_idle();
}

void ControlConnection::destroy_if_idle() {
    if (!is_told_ || receive_.pending() || writer_.pending()) return;
    owner_.on_connection_closed(*this);
}

}  // namespace berth::service
