// The part of vsnprintf that this project and its libraries use: no floating point, no wide characters, no
// locale. The static agent is linked to it in place of libc's (agent/lean_link.cc), which brings 300 KB of
// tables and conversions along.
#pragma once

#include <cstdarg>
#include <cstddef>

namespace berth::core {

// As vsnprintf: writes at most `size` bytes with the closing zero (`out` may be null when `size` is 0),
// returns the length that the whole text has. Knows the flags `-` and `0`, a width and a precision (numbers
// or `*`), the lengths hh h l ll z j t and the conversions d i u x X c s p %. From any other conversion on,
// the pattern is copied as it is: its argument's size is not known.
int print_text(char* out, size_t size, const char* pattern, va_list arguments);

}  // namespace berth::core
