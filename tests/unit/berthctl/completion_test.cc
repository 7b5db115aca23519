#include "agent/berthctl/completion.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "agent/berthctl/names.h"
#include "agent/berthctl/notify.h"

using berth::ctl::BindMount;
using berth::ctl::complete_config;

TEST_CASE("variables of the caller's go into the environment") {
    const std::string variables[] = {"LISTEN_FDS=1", "LISTEN_PID=1"};
    auto config = complete_config(R"({"process":{"env":["LISTEN_PID=7","A=1"]}})", {variables});
    REQUIRE(config.ok());
    CHECK(*config == R"({"process":{"env":["LISTEN_PID=1","A=1","LISTEN_FDS=1"]}})");
    CHECK(*complete_config(R"({ "not" : "touched" })", {}) == R"({ "not" : "touched" })");
    CHECK_FALSE(complete_config("[]", {}).ok());
}

TEST_CASE("a user namespace without maps gets the caller's") {
    std::string id = std::to_string(::geteuid());
    auto config =
        complete_config(R"({"process":{"user":{"uid":5}},"linux":{"namespaces":[{"type":"user"}]}})", {});
    REQUIRE(config.ok());
    CHECK(config->find(R"({"containerID":5,"hostID":)" + id + R"(,"size":1})") != std::string::npos);
    CHECK(config->find(R"("gidMappings":[{"containerID":0,"hostID":)") != std::string::npos);
    for (std::string_view untouched :
         {R"({"linux":{"namespaces":[{"type":"user","path":"/x"}]}})",
          R"({"linux":{"namespaces":[{"type":"pid"}]}})",
          R"({"linux":{"namespaces":[{"type":"user"}],"uidMappings":[{"size":1}]}})", R"({"linux":7})"}) {
        CHECK(*complete_config(std::string(untouched), {}) == untouched);
    }
}

TEST_CASE("subordinate ids") {
    constexpr std::string_view kTable = "# a comment\nother:1:2\nroot:x:5\nroot:100000:65536\n7:300:4\n";
    CHECK(berth::ctl::find_subordinate_ids(kTable, "root", 0) == std::pair{100000u, 65536u});
    CHECK(berth::ctl::find_subordinate_ids(kTable, "", 7) == std::pair{300u, 4u});
    CHECK_FALSE(berth::ctl::find_subordinate_ids(kTable, "nobody", 1));
}

TEST_CASE("a mount of the caller's comes after the configuration's own") {
    const BindMount mounts[] = {{"/run/x", "/run/y"}};
    auto config = complete_config(R"({"mounts":[{"destination":"/proc"}]})", {{}, mounts});
    REQUIRE(config.ok());
    CHECK(*config ==
          R"({"mounts":[{"destination":"/proc"},{"destination":"/run/y","type":"bind","source":"/run/x",)"
          R"("options":["bind","nosuid","noexec","nodev","ro"]}]})");
}

TEST_CASE("ambient capabilities that will not be raised are told") {
    constexpr std::string_view kConfig =
        R"({"process":{"capabilities":{"permitted":["CAP_KILL","CAP_CHOWN"],)"
        R"("inheritable":["CAP_KILL","CAP_SYSLOG"],)"
        R"("ambient":["CAP_KILL","CAP_CHOWN","CAP_SYSLOG",7]}}})";
    std::vector<std::string> warnings;
    auto config = complete_config(std::string(kConfig), {}, &warnings);
    REQUIRE(config.ok());
    CHECK(*config == kConfig);
    REQUIRE(warnings.size() == 2);
    CHECK(warnings[0] ==
          "can't raise ambient capability CAP_CHOWN: it must be permitted and inheritable, too");
    CHECK(warnings[1] ==
          "can't raise ambient capability CAP_SYSLOG: it must be permitted and inheritable, too");
    warnings.clear();
    for (std::string_view text :
         {R"({"process":{"capabilities":{"ambient":7}}})", R"({"process":{}})", "{}",
          R"({"process":{"capabilities":{"ambient":["CAP_KILL"],"inheritable":[]}}})"}) {
        CHECK(complete_config(std::string(text), {}, &warnings).ok());
    }
    CHECK(warnings.empty());
}

TEST_CASE("a line of a notification") {
    CHECK(berth::ctl::has_assignment("READY=1", "READY=1"));
    CHECK(berth::ctl::has_assignment("STATUS=up\nREADY=1\n", "READY=1"));
    for (std::string_view text : {"", "READY=10", "STATUS=READY=1", "\nREADY=", "ready=1"})
        CHECK_FALSE(berth::ctl::has_assignment(text, "READY=1"));
}

TEST_CASE("folders of the caller's are those of a name, and nothing else") {
    const berth::ctl::Names names;
    CHECK(names.folder("web") == "/run/berthctl/web");
    for (std::string_view id : {"", ".", "..", "../web", "a/b"}) CHECK(names.folder(id).empty());
}

TEST_CASE("a destination that begins with the root file system's own path") {
    berth::ctl::CallersPart part;
    part.bundle = "/b";
    auto completed = [&part](std::string_view json) { return *complete_config(std::string(json), part); };
    CHECK(completed(R"({"root":{"path":"rootfs"},"mounts":[{"destination":"/b/rootfs/x"}]})") ==
          R"({"root":{"path":"rootfs"},"mounts":[{"destination":"/x"}]})");
    CHECK(completed(R"({"root":{"path":"/r/"},"mounts":[{"destination":"/r/x/y"}]})") ==
          R"({"root":{"path":"/r/"},"mounts":[{"destination":"/x/y"}]})");
    for (std::string_view untouched : {
             R"({ "root":{"path":"rootfs"},"mounts":[{"destination":"/b/rootfsx"}]})",
             R"({ "root":{"path":"rootfs"},"mounts":[{"destination":"/b/rootfs"}]})",
             R"({ "root":{"path":"/"},"mounts":[{"destination":"/x"}]})",
             R"({ "root":{"path":5},"mounts":[{"destination":"/x"}]})",
             R"({ "root":5,"mounts":[{"destination":5},5]})",
         })
        CHECK(completed(untouched) == untouched);
}
