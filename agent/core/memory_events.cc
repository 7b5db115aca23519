#include "agent/core/memory_events.h"

#include <algorithm>

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

struct Known {
    std::string_view key;
    uint64_t MemoryEvents::*counter;
};

constexpr Known kKnown[] = {
    {"low", &MemoryEvents::low},
    {"high", &MemoryEvents::high},
    {"max", &MemoryEvents::max},
    {"oom", &MemoryEvents::oom},
    {"oom_kill", &MemoryEvents::oom_kill},
    {"oom_group_kill", &MemoryEvents::oom_group_kill},
    {"sock_throttled", &MemoryEvents::sock_throttled},
};

Error bad_line(std::string_view line, std::string_view why) {
    return make_error(Code::kInternal, "memory.events line " + quoted(line) + ": " + std::string(why));
}

uint64_t other(const MemoryEvents& events, std::string_view key) {
    for (const auto& [name, value] : events.others) {
        if (name == key) return value;
    }
    return 0;
}

uint64_t rise(uint64_t before, uint64_t after) {
    return after >= before ? after - before : after;
}

}  // namespace

bool MemoryEvents::empty() const {
    for (const Known& known : kKnown) {
        if (this->*known.counter != 0) return false;
    }
    return std::all_of(others.begin(), others.end(), [](const auto& entry) { return entry.second == 0; });
}

Result<MemoryEvents> parse_memory_events(std::string_view text) {
    MemoryEvents events;
    uint32_t seen = 0;
    while (!text.empty()) {
        size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        size_t blank = line.find(' ');
        if (blank == 0 || blank == std::string_view::npos) return bad_line(line, "is not a key and a number");
        std::string_view key = line.substr(0, blank);
        std::optional<uint64_t> value = parse_number<uint64_t>(line.substr(blank + 1));
        if (!value) return bad_line(line, "is not a key and a number");
        size_t i = 0;
        while (i < std::size(kKnown) && kKnown[i].key != key) ++i;
        if (i < std::size(kKnown)) {
            if ((seen >> i & 1) != 0) return bad_line(line, "is there twice");
            seen |= 1u << i;
            events.*kKnown[i].counter = *value;
            continue;
        }
        for (const auto& entry : events.others) {
            if (entry.first == key) return bad_line(line, "is there twice");
        }
        if (events.others.size() >= limits::kMemoryEventKeys) return bad_line(line, "is one key too many");
        events.others.emplace_back(std::string(key), *value);
    }
    return events;
}

MemoryEvents memory_events_since(const MemoryEvents& before, const MemoryEvents& after) {
    MemoryEvents delta;
    for (const Known& known : kKnown) {
        delta.*known.counter = rise(before.*known.counter, after.*known.counter);
    }
    for (const auto& [key, value] : after.others)
        delta.others.emplace_back(key, rise(other(before, key), value));
    return delta;
}

void add_memory_events(MemoryEvents& into, const MemoryEvents& more) {
    for (const Known& known : kKnown) into.*known.counter += more.*known.counter;
    for (const auto& [key, value] : more.others) {
        auto found = std::find_if(
            into.others.begin(), into.others.end(),
            [&, name = std::string_view(key)](const auto& entry) { return entry.first == name; });
        if (found != into.others.end()) {
            found->second += value;
        } else {
            into.others.emplace_back(key, value);
        }
    }
}

bool only_pressure_rose(const MemoryEvents& before, const MemoryEvents& after) {
    return before.oom == after.oom && before.oom_kill == after.oom_kill &&
           before.oom_group_kill == after.oom_group_kill && before.others == after.others;
}

}  // namespace berth::core
