// One agent, as a client sees it: a control connection that can be dialed again, and stream connections.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/client/address.h"
#include "agent/client/dial.h"
#include "agent/client/ttrpc_client.h"
#include "agent/core/result.h"
#include "proto/berth/guest.pb.h"

namespace berth::client {

inline constexpr std::string_view kTaskService = "containerd.task.v3.Task";
inline constexpr std::string_view kEventsService = "containerd.services.events.v1.Events";
inline constexpr std::string_view kGuestService = "berth.v1.Guest";
inline constexpr std::string_view kSpecType = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
inline constexpr std::string_view kCreateOptionsType = "berth.v1.CreateOptions";
inline constexpr std::string_view kExecOptionsType = "berth.v1.ExecOptions";
inline constexpr std::string_view kProcessType = "types.containerd.io/opencontainers/runtime-spec/1/Process";
inline constexpr std::string_view kResourcesType =
    "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

// What took how long, for people who measure: "connect", "handshake" or a method's name. Called after it has
// ended, well or not; `start_unix_ns` is this side's clock.
using TimingObserver = void (*)(std::string_view what, int64_t start_unix_ns, int64_t took_ns);

class Session {
 public:
    // `timeout_ms` bounds each dial and is sent with each call; negative: only the rules of dial.h, and calls
    // as long as they take.
    Session(Address address, Credentials credentials, int64_t timeout_ms);

    // Dials, when there is no connection. Every call below does it by itself.
    core::Status connect();
    // Drops the connection: calls in flight have failed, and the next use dials again.
    void disconnect() { rpc_.reset(); }

    // The connection, for calls in parallel; null before connect().
    TtrpcClient* rpc() { return rpc_.get(); }
    const Address& address() const { return address_; }
    int64_t timeout_ms() const { return timeout_ms_; }
    // What the handshake told, when there was one.
    const std::optional<auth::ServerIdentity>& identity() const { return identity_; }
    // Metadata of every call: containerd's namespace; empty: none.
    void set_namespace(std::string name) { namespace_ = std::move(name); }
    // Told of every dial and unary call of this session, not of its clones; null: nobody.
    void set_timing_observer(TimingObserver observer) { observer_ = observer; }
    CallOptions call_options() const;
    // A second session to the same agent, not yet connected.
    Session clone() const { return Session(address_, credentials_, timeout_ms_); }

    // One unary call. After a disconnect it is not repeated (it may have been carried out): the error is
    // returned and the next call dials again. `descriptors` are borrowed ("fd:N" in the request; local socket
    // only).
    template <typename Response, typename Request>
    core::Result<Response> call(std::string_view service, std::string_view method, const Request& request,
                                std::span<const int> descriptors = {}) {
        BERTH_TRY(connect());
        int64_t start_ns = now_ns();
        CallOptions options = call_options();
        options.descriptors = descriptors;
        core::Result<Response> response = client::call<Response>(*rpc_, service, method, request, options);
        observe(method, now_ns() - start_ns);
        if (!response.ok() && is_disconnect(response.error())) disconnect();
        return response;
    }

    // Asks for a ticket and dials with it. The connection speaks stream frames; the agent speaks first.
    core::Result<sys::UniqueFd> open_stream(const std::string& container_id, const std::string& exec_id,
                                            v1::Stream stream, std::optional<uint64_t> resume_offset);

 private:
    void observe(std::string_view what, int64_t took_ns) const;

    Address address_;
    Credentials credentials_;
    int64_t timeout_ms_;
    std::string namespace_;
    TimingObserver observer_ = nullptr;
    std::optional<auth::ServerIdentity> identity_;
    std::unique_ptr<TtrpcClient> rpc_;
};

}  // namespace berth::client
