#include <doctest/doctest.h>

#include "agent/core/caps.h"
#include "agent/core/path.h"
#include "agent/core/rlimits.h"

using namespace berth::core;

TEST_CASE("capabilities by name") {
    CHECK(capability_number("CAP_CHOWN") == 0);
    CHECK(capability_number("CAP_NET_RAW") == 13);
    CHECK(capability_number("CAP_SYS_ADMIN") == 21);
    CHECK(capability_number("CAP_CHECKPOINT_RESTORE") == 40);
    for (std::string_view unknown : {"", "CAP_", "CHOWN", "cap_chown", "CAP_CHOWN ", "CAP_NEW_ONE"})
        CHECK_FALSE(capability_number(unknown));
    for (uint32_t number = 0; number <= 40; ++number)
        CHECK(capability_number(capability_name(number)) == number);
    CHECK(capability_name(63) == "capability 63");
    CHECK(capabilities_up_to(0) == 1);
    CHECK(capabilities_up_to(40) == 0x1ffffffffff);
    CHECK(capabilities_up_to(63) == ~uint64_t{0});
}

TEST_CASE("rlimits by name") {
    CHECK(rlimit_number("RLIMIT_CPU") == 0);
    CHECK(rlimit_number("RLIMIT_NOFILE") == 7);
    CHECK(rlimit_number("RLIMIT_RTTIME") == 15);
    for (std::string_view unknown : {"", "NOFILE", "rlimit_nofile", "RLIMIT_NLIMITS"})
        CHECK_FALSE(rlimit_number(unknown));
    for (uint32_t number = 0; number < 16; ++number) CHECK(rlimit_number(rlimit_name(number)) == number);
    CHECK(rlimit_name(16) == "");
}

TEST_CASE("paths as text") {
    CHECK(clean_path("") == "/");
    CHECK(clean_path("/") == "/");
    CHECK(clean_path("//a/./b//c/") == "/a/b/c");
    CHECK(clean_path("a/../../b") == "/b");
    CHECK(clean_path("/../..") == "/");
    CHECK(is_at_or_below("/a/b", "/a"));
    CHECK(is_at_or_below("/a", "/a"));
    CHECK(is_at_or_below("/a", "/"));
    CHECK_FALSE(is_at_or_below("/ab", "/a"));
    CHECK_FALSE(is_at_or_below("/", "/a"));
    CHECK(has_dot_dot("/a/../b"));
    CHECK_FALSE(has_dot_dot("/a/..b/b.."));
    CHECK(parent_path("/a/b") == "/a");
    CHECK(parent_path("/a") == "/");
    CHECK(parent_path("/") == "/");
}
