// One call of a client, as a handler sees it: independent of the transport (ttrpc today).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::service {

enum class AccessClass : uint8_t { kControl = 1, kReadOnly = 3 };

// Shared by the connection and by whoever parked the call. The connection may end at any time: then `alive()`
// turns false, `on_end` runs once, and replies go nowhere. All of it on the loop's thread.
class Call : public std::enable_shared_from_this<Call> {
 public:
    virtual ~Call() = default;

    std::string service;               // "containerd.task.v3.Task"
    std::string method;                // "Create"
    std::string payload;               // the request message, still encoded
    std::string containerd_namespace;  // metadata containerd-namespace-ttrpc; empty when absent
    AccessClass access = AccessClass::kControl;
    bool is_local = false;                   // came over the local socket
    bool is_stream = false;                  // the client reads a stream of messages (a hint, from its flags)
    int64_t deadline_ns = 0;                 // CLOCK_MONOTONIC; 0: none
    std::vector<sys::UniqueFd> descriptors;  // that came with the request (local socket only)

    // Unary: exactly one of reply and fail, once. A second answer is ignored.
    virtual void reply(std::string message) = 0;
    virtual void fail(const core::Error& error) = 0;

    // Server streams: any number of send, then finish or fail. `send` returns false when the subscriber's
    // queue is full and nothing was queued: the stream must then be ended with a marker of its own kind and
    // finish(). For that marker there is room: after a false, one message of at most
    // limits::kStreamMarkerBytes is taken.
    virtual bool send(std::string message) = 0;
    virtual void finish() = 0;
    virtual size_t queued_bytes() const = 0;

    // True until answered, timed out or disconnected.
    virtual bool alive() const = 0;

    // Runs once when the call ends without an answer: connection closed or deadline passed (the
    // DEADLINE_EXCEEDED answer has been sent by then). Used to take back what Create and exec Start had
    // begun, and to unpark Wait and Subscribe.
    void on_end(core::Callback<void(core::Code why)> handler) { end_handler_ = std::move(handler); }

 protected:
    // For the transport: the call ended without an answer. Runs the handler, once; answered calls drop it
    // instead.
    void ended_without_answer(core::Code why) {
        if (end_handler_) end_handler_.take()(why);
    }
    void drop_end_handler() { end_handler_ = {}; }

 private:
    core::Callback<void(core::Code why)> end_handler_;
};

// Where decoded calls go. Implemented by the service layer's dispatch; the connection knows nothing else of
// services.
class CallHandler {
 public:
    virtual ~CallHandler() = default;
    // Answers now, or keeps the call and answers later.
    virtual void handle(std::shared_ptr<Call> call) = 0;
};

}  // namespace berth::service
