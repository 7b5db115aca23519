// An authenticated control connection: a ttrpc session on the loop.
//
// Bounded in every direction: one frame coming in, limits::kOpenStreamsPerConnection calls, and
// limits::kQueuedBytesPerConnection of answers. A client that does not read its answers delays nobody: beyond
// the bound calls are answered RESOURCE_EXHAUSTED, and soon after it is dropped.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/service/call.h"
#include "agent/service/connection_descriptors.h"
#include "agent/service/connection_writer.h"
#include "agent/sys/fd.h"
#include "agent/wire/ttrpc_session.h"

namespace berth::service {

class TtrpcCall;

class ControlConnection {
 public:
    // Where a connection reports its end.
    class Owner {
     public:
        virtual ~Owner() = default;
        // Closed: no longer counts, but is not to be destroyed yet.
        virtual void on_connection_closing(ControlConnection& connection) = 0;
        // Nothing of it is pending: to be destroyed now or later. The last thing that a connection does.
        virtual void on_connection_closed(ControlConnection& connection) = 0;
    };
    struct Options {
        AccessClass access = AccessClass::kControl;
        bool is_local = false;  // descriptors may ride on a request's first byte
    };

    ControlConnection(loop::Loop& loop, sys::UniqueFd fd, const Options& options, CallHandler& handler,
                      Owner& owner);
    ~ControlConnection();
    ControlConnection(const ControlConnection&) = delete;
    ControlConnection& operator=(const ControlConnection&) = delete;

    // Begins to serve. `first` are bytes that were read already, at most one frame header on the local
    // socket, with the descriptors that came along.
    void start(std::span<const std::byte> first, std::vector<sys::UniqueFd> descriptors);

    // Ends it: parked calls end (in the next turn), what is queued is dropped, pending operations are
    // cancelled, and then the owner is told. May be called from within a handler of one of its own calls.
    void close();

    bool carries(const Call& call) const;
    bool is_closing() const { return state_ == State::kClosing; }
    size_t open_calls() const { return calls_.size(); }

 private:
    friend class TtrpcCall;
    enum class State : uint8_t { kOpen, kDraining, kClosing };

    void receive();
    void on_received(loop::Op& op, int32_t result);
    void take(std::span<const std::byte> bytes);
    void on_event(wire::SessionEvent& event);
    void begin_call(wire::SessionEvent& event);
    void answer_error(uint32_t stream_id, const core::Error& error);
    void drain();

    // Of TtrpcCall.
    bool has_room(size_t bytes) const;
    void push(std::string frame, const ConnectionWriter::Account& account = nullptr);
    void finish_call(TtrpcCall& call);

    static void on_write_progress(void* self, int32_t error);
    void arm_deadline();
    void on_timer();
    // Takes all calls off; whoever parked them is told in the next turn.
    void detach_calls();
    void on_end_task();
    void destroy_if_idle();

    loop::Loop& loop_;
    sys::UniqueFd fd_;
    Options options_;
    CallHandler& handler_;
    Owner& owner_;
    State state_ = State::kOpen;
    wire::TtrpcSession session_;
    ConnectionWriter writer_;
    std::map<uint32_t, std::shared_ptr<TtrpcCall>> calls_;
    std::vector<std::shared_ptr<TtrpcCall>> ended_;  // detached, whoever parked them not yet told
    std::vector<std::byte> input_;
    std::unique_ptr<DescriptorMessage> descriptor_message_;  // local only
    std::vector<sys::UniqueFd> descriptors_;                 // of the frame that is coming in
    loop::Op receive_;
    loop::Timer timer_;  // the nearest deadline of a call; draining: the end of patience
    loop::Task end_task_;
    int64_t next_deadline_ns_ = 0;  // what the timer waits for; 0: nothing
    size_t deadlines_ = 0;          // open calls that have one
    bool is_told_ = false;          // closing, and all parked calls were told
};

}  // namespace berth::service
