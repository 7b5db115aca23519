// ttrpc 1.2, the client's side, over one connection: any number of calls at a time from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/client/io.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::client {

struct CallOptions {
    // Sent along, so that the agent gives up in time and undoes what it had begun; the answer is then
    // DEADLINE_EXCEEDED. Negative: none.
    int64_t timeout_ms = -1;
    // Metadata "containerd-namespace-ttrpc"; empty: not sent.
    std::string containerd_namespace;
    // Sent along with the request ("fd:N"); borrowed. Over the local socket only.
    std::span<const int> descriptors{};
};

class TtrpcClient {
 public:
    // `fd` is a connected, non-blocking socket on which nothing but ttrpc is spoken from here on.
    explicit TtrpcClient(sys::UniqueFd fd) : fd_(std::move(fd)) {}

    // For poll(): readable means that pump() has something to do.
    sys::FdRef fd() const { return fd_; }

    // One call, request and answer as encoded messages. The error of the agent as it came (code and one line
    // of text); UNAVAILABLE when the connection ended before the answer (is_disconnect()).
    core::Result<std::string> call(std::string_view service, std::string_view method, std::string request,
                                   const CallOptions& options);

    // Begins a call and returns its id. The answer (unary) or the messages (server stream) are collected by
    // pump() until they are taken.
    core::Result<uint32_t> begin_unary(std::string_view service, std::string_view method, std::string request,
                                       const CallOptions& options);
    core::Result<uint32_t> begin_stream(std::string_view service, std::string_view method,
                                        std::string request, const CallOptions& options);

    // Reads what has arrived; when nothing has, waits for it until `deadline_ns` (0: does not wait) and
    // returns ok at the deadline too. An error means that the connection is unusable: every open call has
    // ended with that error.
    core::Status pump(int64_t deadline_ns);

    // True when the unary call has its answer, or failed.
    bool has_answer(uint32_t id) const;
    // The answer of a call that has one; the id is then forgotten.
    core::Result<std::string> take_answer(uint32_t id);

    // The next message of a server stream, waiting until `deadline_ns` for it (DEADLINE_EXCEEDED, the stream
    // goes on). nullopt: the stream ended well. After that, or another error, the id is forgotten.
    core::Result<std::optional<std::string>> next_message(uint32_t id, int64_t deadline_ns);
    // True when next_message would not wait.
    bool has_message(uint32_t id) const;

    // Drops a call: what comes for it later is thrown away. (ttrpc has no way to tell the server.)
    void forget(uint32_t id) { calls_.erase(id); }

 private:
    struct Call {
        bool is_stream = false;
        bool ended = false;
        std::optional<core::Error> error;  // when ended
        std::deque<std::string> messages;  // of a unary call: the answer
    };

    core::Result<uint32_t> begin(std::string_view service, std::string_view method, std::string request,
                                 const CallOptions& options, bool is_stream);
    core::Status send_frame(std::string_view frame, std::span<const int> descriptors);
    core::Status take_frames();
    void on_frame(uint32_t id, uint8_t type, uint8_t flags, std::string_view payload);
    core::Error break_connection(core::Error error);

    sys::UniqueFd fd_;
    uint32_t next_id_ = 1;
    std::string received_;
    std::unique_ptr<std::byte[]> room_;  // what a read fills: allocated once, never zeroed
    std::map<uint32_t, Call> calls_;
    std::optional<core::Error> broken_;
};

// The same with messages instead of bytes (any generated message of the lite runtime).
template <typename Response, typename Request>
core::Result<Response> call(TtrpcClient& client, std::string_view service, std::string_view method,
                            const Request& request, const CallOptions& options) {
    std::string encoded;
    if (!request.SerializeToString(&encoded)) return core::invalid("request is not encodable");
    BERTH_ASSIGN(std::string answer, client.call(service, method, std::move(encoded), options));
    Response response;
    if (!response.ParseFromString(answer)) {
        return core::make_error(core::Code::kInternal, std::string(method) + ": undecodable answer");
    }
    return response;
}

}  // namespace berth::client
