#include "agent/client/ttrpc_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/wire/ttrpc_frame.h"

namespace berth::client {

namespace {

// How much longer than the agent we wait for its DEADLINE_EXCEEDED.
constexpr int64_t kAnswerGraceMs = 2'000;
constexpr size_t kReadBytes = 64 * 1024;

}  // namespace

core::Result<std::string> TtrpcClient::call(std::string_view service, std::string_view method,
                                            std::string request, const CallOptions& options) {
    int64_t deadline_ns =
        options.timeout_ms < 0 ? kNoDeadline : deadline_after_ms(options.timeout_ms + kAnswerGraceMs);
    BERTH_ASSIGN(uint32_t id, begin_unary(service, method, std::move(request), options));
    while (!has_answer(id)) {
        BERTH_TRY(pump(deadline_ns));
        if (!has_answer(id) && now_ns() >= deadline_ns) {
            forget(id);
            return core::make_error(core::Code::kDeadlineExceeded,
                                    std::string(method) + ": no answer in time");
        }
    }
    return take_answer(id);
}

core::Result<uint32_t> TtrpcClient::begin_unary(std::string_view service, std::string_view method,
                                                std::string request, const CallOptions& options) {
    return begin(service, method, std::move(request), options, false);
}

core::Result<uint32_t> TtrpcClient::begin_stream(std::string_view service, std::string_view method,
                                                 std::string request, const CallOptions& options) {
    return begin(service, method, std::move(request), options, true);
}

core::Result<uint32_t> TtrpcClient::begin(std::string_view service, std::string_view method,
                                          std::string request, const CallOptions& options, bool is_stream) {
    if (broken_) return *broken_;
    wire::TtrpcRequest message;
    message.service = service;
    message.method = method;
    message.payload = std::move(request);
    message.containerd_namespace = options.containerd_namespace;
    // 0 would mean "none" on the wire.
    if (options.timeout_ms >= 0) message.timeout_nano = options.timeout_ms * 1'000'000 + 1;
    uint32_t id = next_id_;
    uint8_t flags = is_stream ? wire::kFlagRemoteClosed : 0;
    BERTH_ASSIGN(std::string frame, wire::encode_request_frame(id, flags, message));
    next_id_ += 2;
    if (core::Status sent = send_frame(frame, options.descriptors); !sent.ok()) {
        // The agent may have said why before it closed.
        (void)pump(0);
        if (broken_) return *broken_;
        return break_connection(std::move(sent).error());
    }
    calls_[id].is_stream = is_stream;
    return id;
}

// Descriptors ride on the first byte: what a full socket does not take at once follows without them.
core::Status TtrpcClient::send_frame(std::string_view frame, std::span<const int> descriptors) {
    auto bytes = std::as_bytes(std::span<const char>(frame));
    if (descriptors.size() > limits::kMessageDescriptors) {
        return core::invalid(
            core::format("%zu descriptors, at most %zu", descriptors.size(), limits::kMessageDescriptors));
    }
    while (!descriptors.empty()) {
        alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int) * limits::kMessageDescriptors)] = {};
        iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
        msghdr message{};
        message.msg_iov = &piece;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
        std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
        ssize_t count = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
        if (count > 0) {
            bytes = bytes.subspan(static_cast<size_t>(count));
            break;
        }
        if (errno == EAGAIN) {
            BERTH_TRY(wait_ready(fd_, POLLOUT, kNoDeadline));
        } else if (errno != EINTR) {
            core::Error error = core::errno_error(errno, "sendmsg");
            if (errno == EPIPE || errno == ECONNRESET) error.code = core::Code::kUnavailable;
            return error;
        }
    }
    return write_all(fd_, bytes, kNoDeadline);
}

core::Status TtrpcClient::pump(int64_t deadline_ns) {
    if (broken_) return *broken_;
    bool progressed = false;
    for (;;) {
        if (room_ == nullptr) room_.reset(new std::byte[kReadBytes]);
        core::Result<size_t> count =
            read_some(fd_, std::span(room_.get(), kReadBytes), progressed ? 0 : deadline_ns);
        if (!count.ok()) {
            if (count.error().code == core::Code::kDeadlineExceeded) return core::ok();
            return break_connection(std::move(count).error());
        }
        if (*count == 0) {
            core::Error error = core::make_error(core::Code::kUnavailable, "the agent closed the connection");
            error.err = ECONNRESET;
            return break_connection(std::move(error));
        }
        received_.append(reinterpret_cast<const char*>(room_.get()), *count);
        BERTH_TRY(take_frames());
        progressed = true;
        // A flood must not keep the caller here.
        if (*count < kReadBytes) return core::ok();
        if (received_.size() < kReadBytes) return core::ok();
    }
}

core::Status TtrpcClient::take_frames() {
    size_t at = 0;
    while (received_.size() - at >= wire::kFrameHeaderBytes) {
        std::array<uint8_t, wire::kFrameHeaderBytes> bytes{};
        for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(received_[at + i]);
        wire::FrameHeader header = wire::decode_frame_header(bytes);
        if (header.length > limits::kTtrpcMessageBytes) {
            return break_connection(core::make_error(
                core::Code::kInternal, core::format("the peer sent a frame of %u bytes", header.length)));
        }
        if (received_.size() - at - wire::kFrameHeaderBytes < header.length) break;
        on_frame(header.stream_id, header.type, header.flags,
                 std::string_view(received_).substr(at + wire::kFrameHeaderBytes, header.length));
        at += wire::kFrameHeaderBytes + header.length;
    }
    received_.erase(0, at);
    return core::ok();
}

void TtrpcClient::on_frame(uint32_t id, uint8_t type, uint8_t flags, std::string_view payload) {
    auto found = calls_.find(id);
    if (found == calls_.end() || found->second.ended) return;
    Call& call = found->second;
    if (type == static_cast<uint8_t>(wire::FrameType::kResponse)) {
        call.ended = true;
        core::Result<wire::TtrpcResponse> response = wire::decode_response(payload);
        if (!response.ok()) {
            call.error = core::make_error(core::Code::kInternal, response.error().message);
        } else if (response->code != core::Code::kOk) {
            call.error = core::make_error(response->code, std::move(response->message));
        } else if (!call.is_stream || !response->payload.empty()) {
            call.messages.push_back(std::move(response->payload));
        }
        return;
    }
    if (type != static_cast<uint8_t>(wire::FrameType::kData)) return;
    if (!call.is_stream) {
        call.ended = true;
        call.error = core::make_error(core::Code::kInternal, "the peer answered a unary call with a stream");
        return;
    }
    if ((flags & wire::kFlagNoData) == 0) call.messages.emplace_back(payload);
    if ((flags & wire::kFlagRemoteClosed) != 0) call.ended = true;
}

core::Error TtrpcClient::break_connection(core::Error error) {
    for (auto& [id, call] : calls_) {
        if (call.ended) continue;
        call.ended = true;
        call.error = error;
    }
    broken_ = error;
    return error;
}

bool TtrpcClient::has_answer(uint32_t id) const {
    auto found = calls_.find(id);
    return found != calls_.end() && found->second.ended;
}

core::Result<std::string> TtrpcClient::take_answer(uint32_t id) {
    auto found = calls_.find(id);
    BERTH_CHECK(found != calls_.end() && found->second.ended && !found->second.is_stream);
    Call call = std::move(found->second);
    calls_.erase(found);
    if (call.error) return std::move(*call.error);
    return std::move(call.messages.front());
}

bool TtrpcClient::has_message(uint32_t id) const {
    auto found = calls_.find(id);
    return found != calls_.end() && (found->second.ended || !found->second.messages.empty());
}

core::Result<std::optional<std::string>> TtrpcClient::next_message(uint32_t id, int64_t deadline_ns) {
    for (;;) {
        auto found = calls_.find(id);
        BERTH_CHECK(found != calls_.end());
        Call& call = found->second;
        if (!call.messages.empty()) {
            std::optional<std::string> message = std::move(call.messages.front());
            call.messages.pop_front();
            return message;
        }
        if (call.ended) {
            std::optional<core::Error> error = std::move(call.error);
            calls_.erase(found);
            if (error) return std::move(*error);
            return std::optional<std::string>();
        }
        if (now_ns() >= deadline_ns) {
            return core::make_error(core::Code::kDeadlineExceeded, "no message in time");
        }
        // An error has ended this call too: the next turn reports it.
        (void)pump(deadline_ns);
    }
}

}  // namespace berth::client
