// Errors as they go over the wire: google.rpc.Status has the codes of core::Code; its text must be UTF-8 and
// short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/core/result.h"

namespace berth::wire {

// True when `text` is well-formed UTF-8 (no overlong forms, surrogates or numbers above U+10FFFF), as proto3
// demands of strings: a client's decoder refuses a whole message that holds anything else.
bool is_utf8(std::string_view text);

// One line for a person that every client can decode: at most `kStatusMessageBytes`, control characters and
// bytes that are not UTF-8 replaced by '?'.
inline constexpr size_t kStatusMessageBytes = 2048;
std::string status_message(std::string_view text);

// The code as the wire has it, and back: unknown numbers become kUnknown.
int32_t code_to_wire(core::Code code);
core::Code code_from_wire(int64_t code);

}  // namespace berth::wire
