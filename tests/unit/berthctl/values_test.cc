#include "agent/berthctl/values.h"

#include <doctest/doctest.h>

#include <csignal>

using berth::ctl::parse_signal;
using berth::ctl::parse_timeout_ms;
using berth::ctl::rfc3339;

TEST_CASE("signals by number and by name") {
    CHECK(*parse_signal("9") == 9);
    CHECK(*parse_signal("SIGRTMIN+3") == 37);
    CHECK(*parse_signal("rtmin") == 34);
    CHECK(*parse_signal("RTMAX") == 64);
    CHECK(*parse_signal("SIGRTMAX-30") == 34);
    for (const char* bad :
         {"RTMIN-1", "RTMIN+31", "RTMAX+1", "RTMAX-31", "RTMIN+", "RTMIN+x", "RTMINUS", "RTMIN+-1"})
        CHECK_FALSE(parse_signal(bad).ok());
    CHECK(*parse_signal("KILL") == SIGKILL);
    CHECK(*parse_signal("SIGKILL") == SIGKILL);
    CHECK(*parse_signal("sigterm") == SIGTERM);
    CHECK(*parse_signal("Usr1") == SIGUSR1);
    // The agent is the one to say which numbers exist.
    CHECK(*parse_signal("4000") == 4000);
    for (std::string_view text : {"", "SIG", "KILLX", "-9", " 9", "99999999999"}) {
        CAPTURE(text);
        auto parsed = parse_signal(text);
        REQUIRE_FALSE(parsed.ok());
        CHECK(parsed.error().message ==
              "no signal \"" + std::string(text) + "\" (a number, or a name such as TERM)");
    }
}

TEST_CASE("time limits") {
    CHECK(*parse_timeout_ms("5") == 5000);
    CHECK(*parse_timeout_ms("5s") == 5000);
    CHECK(*parse_timeout_ms("1ms") == 1);
    CHECK(*parse_timeout_ms("86400s") == 86'400'000);
    for (std::string_view text :
         {"", "0", "0ms", "s", "ms", "-1", "1.5", "5m", "86401", "86400001ms", "4294967296"}) {
        CAPTURE(text);
        auto parsed = parse_timeout_ms(text);
        REQUIRE_FALSE(parsed.ok());
        CHECK(parsed.error().message ==
              "--timeout must be seconds (5, 5s) or milliseconds (500ms), at most a day");
    }
}

TEST_CASE("times") {
    CHECK(rfc3339(0) == "1970-01-01T00:00:00.000000000Z");
    CHECK(rfc3339(1'700'000'000'123'456'789) == "2023-11-14T22:13:20.123456789Z");
    CHECK(rfc3339(951'782'400, 7) == "2000-02-29T00:00:00.000000007Z");
}
