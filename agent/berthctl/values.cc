#include "agent/berthctl/values.h"

#include <csignal>
#include <cstring>
#include <ctime>
#include <optional>

#include "agent/core/text.h"

namespace berth::ctl {

namespace {

constexpr int64_t kLongestTimeoutMs = 86'400'000;

char upper(char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

// "RTMIN", "RTMIN+3", "RTMAX-1": images name them as their stop signal. libc keeps the first two of the
// kernel's.
std::optional<uint32_t> parse_realtime_signal(std::string_view name) {
    int first = SIGRTMIN, last = SIGRTMAX;
    bool from_first = name.starts_with("RTMIN");
    if (!from_first && !name.starts_with("RTMAX")) return std::nullopt;
    name.remove_prefix(5);
    uint32_t distance = 0;
    if (!name.empty()) {
        auto number = core::parse_number<uint32_t>(name.substr(1));
        if (name.front() != (from_first ? '+' : '-') || !number) return std::nullopt;
        distance = *number;
    }
    if (distance > static_cast<uint32_t>(last - first)) return std::nullopt;
    return from_first ? static_cast<uint32_t>(first) + distance : static_cast<uint32_t>(last) - distance;
}

}  // namespace

core::Result<uint32_t> parse_signal(std::string_view text) {
    if (auto number = core::parse_number<uint32_t>(text)) return *number;
    std::string name(text);
    for (char& c : name) c = upper(c);
    if (name.starts_with("SIG")) name.erase(0, 3);
    for (int signal = 1; signal < SIGRTMIN; signal++) {
        const char* known = ::sigabbrev_np(signal);
        if (known != nullptr && name == known) return static_cast<uint32_t>(signal);
    }
    if (auto realtime = parse_realtime_signal(name)) return *realtime;
    return core::invalid("no signal " + core::quoted(text) + " (a number, or a name such as TERM)");
}

core::Result<int64_t> parse_timeout_ms(std::string_view text) {
    bool is_ms = text.ends_with("ms");
    std::string_view digits = text;
    if (is_ms) {
        digits.remove_suffix(2);
    } else if (text.ends_with("s")) {
        digits.remove_suffix(1);
    }
    auto number = core::parse_number<uint32_t>(digits);
    int64_t milliseconds = static_cast<int64_t>(number.value_or(0)) * (is_ms ? 1 : 1000);
    if (milliseconds < 1 || milliseconds > kLongestTimeoutMs) {
        return core::invalid("--timeout must be seconds (5, 5s) or milliseconds (500ms), at most a day");
    }
    return milliseconds;
}

std::string rfc3339(int64_t seconds, int32_t nanos) {
    time_t time = seconds;
    tm parts{};
    ::gmtime_r(&time, &parts);
    char text[32];
    size_t size = ::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
    return std::string(text, size) + core::format(".%09dZ", nanos);
}

std::string rfc3339(int64_t unix_ns) {
    return rfc3339(unix_ns / 1'000'000'000, static_cast<int32_t>(unix_ns % 1'000'000'000));
}

}  // namespace berth::ctl
