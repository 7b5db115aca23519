#include "agent/client/session.h"

#include <cstring>
#include <ctime>

namespace berth::client {

Session::Session(Address address, Credentials credentials, int64_t timeout_ms)
    : address_(std::move(address)), credentials_(std::move(credentials)), timeout_ms_(timeout_ms) {}

core::Status Session::connect() {
    if (rpc_ != nullptr) return core::ok();
    BERTH_ASSIGN(Connection connection, dial_control(address_, credentials_, deadline_after_ms(timeout_ms_)));
    observe("connect", connection.connect_ns);
    if (connection.identity) observe("handshake", connection.handshake_ns);
    identity_ = connection.identity;
    rpc_ = std::make_unique<TtrpcClient>(std::move(connection.fd));
    return core::ok();
}

void Session::observe(std::string_view what, int64_t took_ns) const {
    if (observer_ == nullptr) return;
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    observer_(what, int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec - took_ns, took_ns);
}

CallOptions Session::call_options() const {
    CallOptions options;
    options.timeout_ms = timeout_ms_;
    options.containerd_namespace = namespace_;
    return options;
}

core::Result<sys::UniqueFd> Session::open_stream(const std::string& container_id, const std::string& exec_id,
                                                 v1::Stream stream, std::optional<uint64_t> resume_offset) {
    v1::OpenStreamRequest request;
    request.set_container_id(container_id);
    request.set_exec_id(exec_id);
    request.set_stream(stream);
    if (resume_offset) request.set_resume_offset(*resume_offset);
    BERTH_ASSIGN(v1::OpenStreamResponse response,
                 call<v1::OpenStreamResponse>(kGuestService, "OpenStream", request));
    auth::Ticket ticket{};
    if (response.ticket().size() != ticket.size()) {
        return core::make_error(core::Code::kInternal, "OpenStream: the ticket is malformed");
    }
    std::memcpy(ticket.data(), response.ticket().data(), ticket.size());
    BERTH_ASSIGN(Connection connection,
                 dial_stream(address_, credentials_, ticket, deadline_after_ms(timeout_ms_)));
    return std::move(connection.fd);
}

}  // namespace berth::client
