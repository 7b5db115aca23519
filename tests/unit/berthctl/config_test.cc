#include "agent/berthctl/config.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>

using berth::ctl::Arguments;
using berth::ctl::Flag;

namespace {

constexpr Flag kFlags[] = {
    {"memory", 0, Flag::Kind::kValue, {}},  {"memory-swap", 0, Flag::Kind::kValue, {}},
    {"unified", 0, Flag::Kind::kValue, {}}, {"cpuset-cpus", 0, Flag::Kind::kValue, {}},
    {"tty", 0, Flag::Kind::kSwitch, {}},    {"env", 0, Flag::Kind::kValue, {}},
    {"user", 0, Flag::Kind::kValue, {}},    {"cap", 0, Flag::Kind::kValue, {}},
    {"cwd", 0, Flag::Kind::kValue, {}},     {"additional-gids", 0, Flag::Kind::kValue, {}},
};

Arguments arguments_of(const std::vector<std::string_view>& words) {
    Arguments arguments;
    const Flag* tables[] = {kFlags};
    const size_t sizes[] = {std::size(kFlags)};
    REQUIRE(arguments.parse(words, tables, sizes, Arguments::Order::kMixed).ok());
    return arguments;
}

}  // namespace

TEST_CASE("mounts of the root file system") {
    auto mount = berth::ctl::parse_rootfs_mount("erofs:serial:userland:ro,noatime");
    REQUIRE(mount.ok());
    CHECK(mount->type() == "erofs");
    CHECK(mount->source() == "serial:userland");
    REQUIRE(mount->options_size() == 2);
    CHECK(mount->options(1) == "noatime");

    mount = berth::ctl::parse_rootfs_mount("format/overlay:overlay:lowerdir={{ mount 0 }}:/b,target=/data");
    REQUIRE(mount.ok());
    CHECK(mount->source() == "overlay");
    CHECK(mount->target() == "/data");
    REQUIRE(mount->options_size() == 1);
    CHECK(mount->options(0) == "lowerdir={{ mount 0 }}:/b");

    mount = berth::ctl::parse_rootfs_mount("tmpfs:");
    REQUIRE(mount.ok());
    CHECK(mount->options_size() == 0);

    for (std::string_view text : {"", "erofs", ":a:b"}) {
        auto wrong = berth::ctl::parse_rootfs_mount(text);
        REQUIRE_FALSE(wrong.ok());
        CHECK(wrong.error().message ==
              "--rootfs-mount \"" + std::string(text) + "\": must be TYPE:SOURCE:OPTIONS");
    }
    auto wrong = berth::ctl::parse_rootfs_mount("erofs:serial:x:ro,,noatime");
    REQUIRE_FALSE(wrong.ok());
    CHECK(wrong.error().message == "--rootfs-mount \"erofs:serial:x:ro,,noatime\": an option is empty");
}

TEST_CASE("limits of the command line as LinuxResources") {
    auto json =
        berth::ctl::build_resources(arguments_of({"--memory", "67108864", "--memory-swap", "-1",
                                                  "--cpuset-cpus", "0-1", "--unified", "memory.high=max"}));
    REQUIRE(json.ok());
    CHECK(*json ==
          R"({"memory":{"limit":67108864,"swap":-1},"cpu":{"cpus":"0-1"},"unified":{"memory.high":"max"}})");

    // No limit of memory is none of swap, unless one is named.
    CHECK(*berth::ctl::build_resources(arguments_of({"--memory", "-1"})) ==
          R"({"memory":{"limit":-1,"swap":-1}})");
    CHECK(*berth::ctl::build_resources(arguments_of({"--memory", "-1", "--memory-swap", "64M"})) ==
          R"({"memory":{"limit":-1,"swap":67108864}})");

    auto wrong = berth::ctl::build_resources(arguments_of({"--memory", "64X"}));
    REQUIRE_FALSE(wrong.ok());
    CHECK(wrong.error().message == "--memory: \"64X\" is no number");
    wrong = berth::ctl::build_resources(arguments_of({"--unified", "memory.high"}));
    REQUIRE_FALSE(wrong.ok());
    CHECK(wrong.error().message == "--unified must be KEY=VALUE");
}

TEST_CASE("bytes with units") {
    struct Case {
        std::string_view text;
        int64_t bytes;
    };
    for (const Case& each : {Case{"-1", -1}, Case{"0", 0}, Case{"64M", 64 << 20}, Case{"64m", 64 << 20},
                             Case{"1.5GiB", 3ll << 29}, Case{"2 kb", 2048}, Case{"7b", 7}}) {
        CAPTURE(each.text);
        auto bytes = berth::ctl::parse_bytes("memory", each.text);
        REQUIRE(bytes.ok());
        CHECK(*bytes == each.bytes);
    }
    for (std::string_view text : {"", "M", "1x", "1MM", "-1M", "1.2.3M", "9999999999P"}) {
        CAPTURE(text);
        CHECK_FALSE(berth::ctl::parse_bytes("memory", text).ok());
    }
}

TEST_CASE("an exec's user keeps what is not named") {
    char path[] = "/tmp/berthctl-user-XXXXXX";
    int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    std::string config = R"({"process":{"user":{"uid":1,"gid":2,"additionalGids":[3]},"cwd":"/","env":[]}})";
    REQUIRE(::write(fd, config.data(), config.size()) == static_cast<ssize_t>(config.size()));
    ::close(fd);
    const std::string_view words[] = {"id"};
    auto one = berth::ctl::build_process(arguments_of({"--user", "7"}), words, path);
    auto both =
        berth::ctl::build_process(arguments_of({"--user", "7:8", "--additional-gids", "9"}), words, path);
    ::unlink(path);
    REQUIRE(one.ok());
    CHECK(one->find(R"("user":{"uid":7,"gid":2,"additionalGids":[3]})") != std::string::npos);
    REQUIRE(both.ok());
    CHECK(both->find(R"("user":{"uid":7,"gid":8,"additionalGids":[3,9]})") != std::string::npos);
}

TEST_CASE("a process from the command line") {
    const std::string_view words[] = {"ls", "-l"};
    auto json = berth::ctl::build_process(
        arguments_of({"--tty", "--user", "5:6", "--env", "A=1", "--env", "A=2", "--cwd", "/tmp"}), words, "");
    REQUIRE(json.ok());
    CHECK(json->find(R"("args":["ls","-l"])") != std::string::npos);
    CHECK(json->find(R"("terminal":true)") != std::string::npos);
    CHECK(json->find(R"("cwd":"/tmp")") != std::string::npos);
    CHECK(json->find(R"("user":{"uid":5,"gid":6})") != std::string::npos);
    CHECK(json->find("A=1") == std::string::npos);
    CHECK(json->find("A=2") != std::string::npos);
    auto terminal = berth::ctl::wants_terminal(*json);
    REQUIRE(terminal.ok());
    CHECK(*terminal);

    struct Case {
        std::vector<std::string_view> flags;
        std::string_view message;
    };
    const Case cases[] = {
        {{"--user", "root"}, "--user must be UID or UID:GID, both numbers"},
        {{"--user", "1:"}, "--user must be UID or UID:GID, both numbers"},
        {{"--cap", "NET_ADMIN"}, "--cap must be a name such as CAP_NET_ADMIN"},
        {{"--additional-gids", "x"}, "--additional-gids must be numbers"},
    };
    for (const Case& each : cases) {
        CAPTURE(each.message);
        auto wrong = berth::ctl::build_process(arguments_of(each.flags), words, "");
        REQUIRE_FALSE(wrong.ok());
        CHECK(wrong.error().message == each.message);
    }
    auto none = berth::ctl::build_process(arguments_of({}), {}, "");
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().message == "exec: no command given");
}

TEST_CASE("an exec takes everything but its command and terminal from the container's process") {
    char path[] = "/tmp/berthctl-config-XXXXXX";
    int fd = ::mkstemp(path);
    REQUIRE(fd >= 0);
    std::string config =
        R"({"process":{"terminal":true,"consoleSize":{"width":1,"height":1},"args":["init"],"cwd":"/srv","env":["A=1"]}})";
    REQUIRE(::write(fd, config.data(), config.size()) == static_cast<ssize_t>(config.size()));
    ::close(fd);
    const std::string_view words[] = {"ls"};
    auto json = berth::ctl::build_process(arguments_of({}), words, path);
    auto none = berth::ctl::build_process(arguments_of({}), {}, path);
    ::unlink(path);
    REQUIRE(json.ok());
    CHECK(*json == R"({"cwd":"/srv","env":["A=1"],"args":["ls"],"user":{"uid":0,"gid":0}})");
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().message == "exec: no command given");
}

TEST_CASE("whether a config asks for a terminal") {
    CHECK(*berth::ctl::wants_terminal(R"({"process":{"terminal":true}})"));
    CHECK_FALSE(*berth::ctl::wants_terminal(R"({"process":{}})"));
    CHECK_FALSE(*berth::ctl::wants_terminal(R"({"process":{"terminal":"yes"}})"));
    CHECK_FALSE(berth::ctl::wants_terminal("[]").ok());
    CHECK_FALSE(berth::ctl::wants_terminal("{").ok());
}
