// Small helpers of the services: requests in, answers out.
#pragma once

#include <memory>
#include <optional>

#include "agent/core/ids.h"
#include "agent/core/text.h"
#include "agent/service/call.h"
#include "proto/containerd/common.pb.h"

namespace berth::service {

// The request message, or nothing after the call was failed with INVALID_ARGUMENT.
template <typename Message>
std::optional<Message> decode(Call& call) {
    Message message;
    if (!message.ParseFromString(call.payload)) {
        call.fail(core::invalid(core::format("%s: malformed request message", call.method.c_str())));
        return std::nullopt;
    }
    call.payload = std::string();
    return message;
}

// The value of `result`, or nothing after the call was failed with its error.
template <typename Value>
std::optional<Value> value_or_fail(Call& call, core::Result<Value> result) {
    if (!result.ok()) {
        call.fail(result.error());
        return std::nullopt;
    }
    return std::move(result).value();
}

inline void reply_empty(Call& call) {
    call.reply(std::string());
}

inline void set_timestamp(pb::Timestamp& timestamp, int64_t unix_ns) {
    timestamp.set_seconds(unix_ns / 1'000'000'000);
    timestamp.set_nanos(static_cast<int32_t>(unix_ns % 1'000'000'000));
}

}  // namespace berth::service
