#include "agent/sys/log.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "agent/core/uninitialized.h"

namespace berth::sys {
namespace {

struct LogSink {
    int fd = STDERR_FILENO;
    LogLevel level = LogLevel::kInfo;
    const char* process_name = "berth";
    uint64_t dropped = 0;
    int overflow_fd = -1;
};
LogSink g_sink;

constexpr const char* kLevelNames[] = {"error", "warn", "info", "debug"};

}  // namespace

void set_log(int fd, LogLevel level, const char* process_name) {
    g_sink = {fd, level, process_name, 0, g_sink.overflow_fd};
}

LogLevel log_level() {
    return g_sink.level;
}

void set_log_overflow(int fd) {
    g_sink.overflow_fd = fd;
}

void log(LogLevel level, const char* event, const char* pattern, ...) {
    if (level > g_sink.level) return;
    BERTH_UNINITIALIZED char line[1024];
    int used = snprintf(line, sizeof line, "%s: %s: %s: ", g_sink.process_name,
                        kLevelNames[static_cast<uint8_t>(level)], event);
    if (used < 0) return;
    auto at = static_cast<size_t>(used);
    va_list arguments;
    va_start(arguments, pattern);
    int more = vsnprintf(line + at, sizeof line - at - 1, pattern, arguments);
    va_end(arguments);
    if (more > 0) at += static_cast<size_t>(more);
    if (at > sizeof line - 2) at = sizeof line - 2;
    for (size_t i = 0; i < at; ++i) {
        if (line[i] == '\n') line[i] = ' ';
    }
    line[at++] = '\n';
    ssize_t written = write(g_sink.fd, line, at);
    if (written >= 0 && static_cast<size_t>(written) == at) return;
    if (level <= LogLevel::kWarn && g_sink.overflow_fd >= 0) {
        // printk's levels: 3 is KERN_ERR, which is shown even with "quiet".
        char priority[] = {'<', level == LogLevel::kError ? '3' : '4', '>'};
        iovec parts[] = {{priority, sizeof priority}, {line, at}};
        if (writev(g_sink.overflow_fd, parts, 2) >= 0) return;
    }
    ++g_sink.dropped;
}

}  // namespace berth::sys
