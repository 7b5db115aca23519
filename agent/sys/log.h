// Logging: one line, one write, no allocation, dropped and counted when the sink is full.
#pragma once

#include <cstdint>

namespace berth::sys {

enum class LogLevel : uint8_t { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

// Where lines go (the console, or stderr of a helper) and the most verbose level that is written. `fd` is not
// owned.
void set_log(int fd, LogLevel level, const char* process_name);
LogLevel log_level();

// Where warnings and errors go that the sink would not take: the kernel's log (/dev/kmsg), of a console that
// nobody reads. Not owned; -1: nowhere.
void set_log_overflow(int fd);

// `event` is a fixed dotted name ("container.exit"); the rest is printf. Lines are cut at 1 KiB.
[[gnu::format(printf, 3, 4)]] void log(LogLevel level, const char* event, const char* pattern, ...);

}  // namespace berth::sys
