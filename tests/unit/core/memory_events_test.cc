#include "agent/core/memory_events.h"

#include <doctest/doctest.h>

using namespace berth::core;

namespace {

constexpr const char* kCaptured =
    "low 0\nhigh 12\nmax 345\noom 6\noom_kill 7\noom_group_kill 1\n";  // Linux 6.1

MemoryEvents parsed(std::string_view text) {
    auto events = parse_memory_events(text);
    REQUIRE_MESSAGE(events.ok(), (events.ok() ? "" : events.error().message));
    return std::move(*events);
}

}  // namespace

TEST_CASE("memory.events of old, present and future kernels") {
    MemoryEvents events = parsed(kCaptured);
    CHECK(events == MemoryEvents{.high = 12, .max = 345, .oom = 6, .oom_kill = 7, .oom_group_kill = 1});
    CHECK(!events.empty());
    CHECK(parsed("low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n") ==
          MemoryEvents{.low = 1, .high = 2, .max = 3, .oom = 4, .oom_kill = 5});
    MemoryEvents future = parsed("oom_kill 5\nnew_thing 9\nsock_throttled 3\nlow 1\nother 0");
    CHECK(future.oom_kill == 5);
    CHECK(future.low == 1);
    CHECK(future.sock_throttled == 3);
    CHECK(future.others == std::vector<std::pair<std::string, uint64_t>>{{"new_thing", 9}, {"other", 0}});
    CHECK(parsed("").empty());
    CHECK(parsed("low 0\nnew 0\n").empty());
    CHECK(!parsed("new 1\n").empty());
    CHECK(parsed("oom_kill 18446744073709551615\n").oom_kill == UINT64_MAX);
}

TEST_CASE("memory.events that is none") {
    const struct {
        const char* text;
        const char* message;
    } rows[] = {
        {"low", "memory.events line \"low\": is not a key and a number"},
        {"low \n", "memory.events line \"low \": is not a key and a number"},
        {"low 1\n\n", "memory.events line \"\": is not a key and a number"},
        {" 1\n", "memory.events line \" 1\": is not a key and a number"},
        {"low -1\n", "memory.events line \"low -1\": is not a key and a number"},
        {"low 1 2\n", "memory.events line \"low 1 2\": is not a key and a number"},
        {"low 18446744073709551616\n",
         "memory.events line \"low 18446744073709551616\": is not a key and a number"},
        {"low 1\nlow 1\n", "memory.events line \"low 1\": is there twice"},
        {"new 1\nnew 1\n", "memory.events line \"new 1\": is there twice"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.text);
        auto events = parse_memory_events(row.text);
        REQUIRE(!events.ok());
        CHECK(events.error().code == Code::kInternal);
        CHECK(events.error().message == row.message);
    }
    std::string many;
    for (int i = 0; i < 32; ++i) many += "key" + std::to_string(i) + " 1\n";
    CHECK(parsed(many).others.size() == 32);
    CHECK(parse_memory_events(many + "one 1\n").error().message ==
          "memory.events line \"one 1\": is one key too many");
    std::string whole(kCaptured);
    for (size_t length = 0; length + 1 < whole.size(); ++length) {
        // Cut anywhere it is an error, or what stood before the cut.
        auto cut = parse_memory_events(std::string_view(whole).substr(0, length));
        if (cut.ok()) CHECK(cut->oom_group_kill == 0);
    }
}

TEST_CASE("what rose between two readings") {
    MemoryEvents before = parsed("low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 0\nnew 7\n");
    CHECK(memory_events_since(before, before).empty());
    MemoryEvents after =
        parsed("low 1\nhigh 12\nmax 3\noom 4\noom_kill 6\noom_group_kill 1\nnew 9\nnewest 2\n");
    MemoryEvents delta = memory_events_since(before, after);
    CHECK(
        delta ==
        MemoryEvents{.high = 10, .oom_kill = 1, .oom_group_kill = 1, .others = {{"new", 2}, {"newest", 2}}});
    CHECK(!delta.empty());
    // A cgroup made anew counts from zero.
    CHECK(memory_events_since(after, parsed("high 3\noom_kill 6\n")) == MemoryEvents{.high = 3});
}

TEST_CASE("the local counters of two levels add up") {
    MemoryEvents sum = parsed("oom_kill 1\nnew 2\n");
    add_memory_events(sum, parsed("low 3\noom_kill 4\nnew 5\nmore 6\n"));
    CHECK(sum == MemoryEvents{.low = 3, .oom_kill = 5, .others = {{"new", 7}, {"more", 6}}});
}

TEST_CASE("pressure alone is told from an OOM") {
    const MemoryEvents before = parsed("low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\nnew 7\n");
    CHECK(only_pressure_rose(before, before));
    MemoryEvents after = before;
    after.low = after.high = after.max = after.sock_throttled = 100;
    CHECK(only_pressure_rose(before, after));
    for (uint64_t MemoryEvents::*counter :
         {&MemoryEvents::oom, &MemoryEvents::oom_kill, &MemoryEvents::oom_group_kill}) {
        MemoryEvents killed = after;
        ++(killed.*counter);
        CHECK(!only_pressure_rose(before, killed));
    }
    ++after.others[0].second;
    CHECK(!only_pressure_rose(before, after));
}
