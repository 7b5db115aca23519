#include "agent/core/cgroup_mount.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

using berth::core::find_cgroup2_mount;
using berth::core::find_own_cgroup2;

TEST_CASE("the cgroup2 mount point is found on unified and hybrid hosts") {
    CHECK(find_cgroup2_mount(
              "21 1 0:20 / /proc rw - proc proc rw\n"
              "30 25 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n") ==
          "/sys/fs/cgroup");
    CHECK(find_cgroup2_mount(
              "30 25 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
              "31 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
              "32 30 0:29 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup rw\n") ==
          "/sys/fs/cgroup/unified");
    CHECK(find_cgroup2_mount("1 1 0:1 / /a\\040b\\134 rw - cgroup2 none rw") == "/a b\\");
    CHECK(find_cgroup2_mount("1 1 0:1 / /x\\04 rw - cgroup2 none rw") == "/x\\04");
}

TEST_CASE("other lines and malformed ones are skipped") {
    for (const char* text : {"", "\n\n", "1 1 0:1 / /x rw - cgroup2x none rw", "1 1 0:1 / - cgroup2 none rw",
                             "1 1 0:1 / /x rw cgroup2 none rw", " - cgroup2"}) {
        CAPTURE(text);
        CHECK(find_cgroup2_mount(text) == std::nullopt);
    }
}

TEST_CASE("a process's own cgroup is the unified line") {
    CHECK(find_own_cgroup2("12:memory:/x\n1:name=systemd:/y\n0::/user.slice/a\n") == "/user.slice/a");
    CHECK(find_own_cgroup2("0::/\n") == "/");
    CHECK(find_own_cgroup2("12:memory:/x\n") == std::nullopt);
    CHECK(find_own_cgroup2("0::relative\n") == std::nullopt);
    CHECK(find_own_cgroup2("") == std::nullopt);
}
