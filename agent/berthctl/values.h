// What people write as values of flags and arguments, and how times are written for them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/core/result.h"

namespace berth::ctl {

// A signal by number or name, in either case ("9", "KILL", "sigkill"). INVALID_ARGUMENT names the text.
core::Result<uint32_t> parse_signal(std::string_view text);

// "5" or "5s" are seconds, "500ms" milliseconds; from 1 ms to a day. INVALID_ARGUMENT otherwise.
core::Result<int64_t> parse_timeout_ms(std::string_view text);

// An RFC 3339 time (UTC, nanoseconds) of nanoseconds since 1970, or of seconds and nanoseconds.
std::string rfc3339(int64_t unix_ns);
std::string rfc3339(int64_t seconds, int32_t nanos);

}  // namespace berth::ctl
