#include "agent/core/cgroup_path.h"

#include <doctest/doctest.h>

#include "agent/core/swap.h"

using namespace berth::core;

namespace {

ContainerId id_of(const char* text) {
    return ContainerId::parse(text).value();
}

std::string placed(std::string_view cgroups_path, const char* id = "web") {
    auto layout = plan_cgroup_layout(cgroups_path, id_of(id), {});
    return layout.ok() ? layout->path
                       : std::string(code_name(layout.error().code)) + ": " + layout.error().message;
}

}  // namespace

TEST_CASE("where a container's cgroup lies") {
    CHECK(placed("") == "web");
    CHECK(placed("", "memory.max") == "_memory.max");
    CHECK(placed("", "cgroup.procs") == "_cgroup.procs");
    CHECK(placed("", "berth.inner") == "_berth.inner");
    CHECK(placed("", "memory") == "memory");
    CHECK(placed("", "my.max") == "my.max");
    CHECK(placed("/a/b/c") == "a/b/c");
    CHECK(placed("a/b/c") == "a/b/c");
    CHECK(placed("//a/./b///c/") == "a/b/c");
    CHECK(placed("/kubepods/burstable/pod7e/web") == "kubepods/burstable/pod7e/web");
    // runc's systemd form.
    CHECK(placed("kubepods-pod1.slice:cri-containerd:web") == "kubepods-pod1.slice/cri-containerd-web.scope");
    CHECK(placed(":docker:web") == "docker-web.scope");
    CHECK(placed("user.slice::web") == "user.slice/web.scope");
    CHECK(placed("a.slice:x:b.slice") == "a.slice/x-b.slice");
    CHECK(placed("/a:b/c") == "a:b/c");

    CHECK(placed("/") == "INVALID_ARGUMENT: cgroupsPath \"/\": names no cgroup");
    CHECK(placed("./.") == "INVALID_ARGUMENT: cgroupsPath \"./.\": names no cgroup");
    CHECK(placed("../x") == "INVALID_ARGUMENT: cgroupsPath \"../x\": contains \"..\"");
    CHECK(placed("/a/../b") == "INVALID_ARGUMENT: cgroupsPath \"/a/../b\": contains \"..\"");
    CHECK(placed("a.slice:..:") == "INVALID_ARGUMENT: cgroupsPath \"a.slice:..:\": names no cgroup");
    CHECK(placed("..:x:y") == "INVALID_ARGUMENT: cgroupsPath \"..:x:y\": contains \"..\"");
    CHECK(placed("a:b") == "INVALID_ARGUMENT: cgroupsPath \"a:b\": is neither a path nor slice:prefix:name");
    CHECK(placed("a\nb") == "INVALID_ARGUMENT: cgroupsPath \"a\\nb\": contains a control character");
    CHECK(placed(std::string_view("a\0b", 3)) ==
          "INVALID_ARGUMENT: cgroupsPath \"a\\x00b\": contains a control character");
    CHECK(
        placed("/x/memory.max") ==
        "INVALID_ARGUMENT: cgroupsPath \"/x/memory.max\": \"memory.max\" looks like a file of the kernel's");
    CHECK(placed("/x/berth.inner/y") ==
          "INVALID_ARGUMENT: cgroupsPath \"/x/berth.inner/y\": \"berth.inner\" is a name of the agent's own");
    CHECK(placed(std::string(256, 'x')).ends_with(": a component has 256 bytes, more than 255"));
    CHECK(placed(std::string(255, 'x')) == std::string(255, 'x'));
    CHECK(placed(std::string(5000, 'x')).ends_with(": has 5000 bytes, more than 4095"));
    std::string deep = "a";
    for (int i = 0; i < 31; ++i) deep += "/a";
    CHECK(placed(deep) == deep);
    CHECK(placed(deep + "/a").ends_with(": is deeper than 32 levels"));
}

TEST_CASE("the second level, and the directories to make") {
    const struct {
        CgroupPowers powers;
        bool two;
    } rows[] = {
        {{}, false},
        {{.sys_admin = true}, true},
        {{.sys_admin = true, .user_namespace = true}, false},
        {{.user_namespace = true}, false},
        {{.writable_cgroup_mount = true}, true},
        {{.sys_admin = true, .user_namespace = true, .writable_cgroup_mount = true}, true},
    };
    for (const auto& row : rows) {
        auto layout = plan_cgroup_layout("a/b", id_of("web"), row.powers);
        REQUIRE(layout.ok());
        CHECK(layout->two_levels == row.two);
        CHECK(layout->path == "a/b");
        CHECK(layout->process_path == (row.two ? "a/b/berth.inner" : "a/b"));
        std::vector<std::string> directories = {"a", "a/b"};
        if (row.two) directories.push_back("a/b/berth.inner");
        CHECK(layout->directories == directories);
    }
}

TEST_CASE("an absolute path may begin at the hierarchy's mount point") {
    auto from_mount = [](std::string_view path) {
        auto layout =
            plan_cgroup_layout(path, id_of("web"), {.sys_admin = true}, AbsoluteCgroups::kFromMount);
        REQUIRE(layout.ok());
        return *layout;
    };
    CHECK(from_mount("//kubepods/./pod1//web").path == "/kubepods/pod1/web");
    CHECK(from_mount("/kubepods/web").process_path == "/kubepods/web/berth.inner");
    CHECK(from_mount("/kubepods/web").directories ==
          std::vector<std::string>{"/kubepods", "/kubepods/web", "/kubepods/web/berth.inner"});
    CHECK(from_mount("/web").directories == std::vector<std::string>{"/web", "/web/berth.inner"});
    // What is relative, systemd's form among it, and what is absent stay below the sandbox.
    CHECK(from_mount("kubepods/web").path == "kubepods/web");
    CHECK(from_mount("a.slice:x:y").path == "a.slice/x-y.scope");
    CHECK(from_mount("").path == "web");
    CHECK(plan_cgroup_layout("/", id_of("web"), {}, AbsoluteCgroups::kFromMount).error().message ==
          "cgroupsPath \"/\": names no cgroup");

    const std::string own[] = {"/machine/berth", "/machine/berth.agent"};
    CHECK(check_own_cgroups("/machine/berth2", own).ok());
    CHECK(check_own_cgroups("/other/machine/berth", own).ok());
    for (std::string_view path :
         {"/machine/berth", "/machine/berth/web", "/machine", "/machine/berth.agent/x"})
        CHECK(check_own_cgroups(path, own).error().code == Code::kPermissionDenied);
    CHECK(check_own_cgroups("/machine", own).error().message ==
          "cgroupsPath \"/machine\": \"/machine/berth\" is the agent's own");
}

TEST_CASE("no container's cgroup is, or lies above or below, another's") {
    const std::string_view existing[] = {"pod/a", "web"};
    CHECK(check_cgroup_collision("pod/b", existing).ok());
    CHECK(check_cgroup_collision("pod/ab", existing).ok());
    CHECK(check_cgroup_collision("web2", existing).ok());
    CHECK(check_cgroup_collision("x", {}).ok());
    CHECK(check_cgroup_collision("web", existing).error().code == Code::kAlreadyExists);
    CHECK(check_cgroup_collision("web", existing).error().message ==
          "cgroup \"web\": is another container's");
    CHECK(check_cgroup_collision("web/x", existing).error().code == Code::kFailedPrecondition);
    CHECK(check_cgroup_collision("web/x", existing).error().message ==
          "cgroup \"web/x\": lies below \"web\", another container's");
    CHECK(check_cgroup_collision("pod", existing).error().message ==
          "cgroup \"pod\": lies above \"pod/a\", another container's");
}

TEST_CASE("swap_max alone") {
    using Value = std::optional<int64_t>;
    const struct {
        Value total;
        Value limit;
        Value expected;
        bool good;
    } rows[] = {
        {-1, {}, -1, true},
        {-1, 5, -1, true},
        {-1, -1, -1, true},
        {{}, -1, -1, true},
        {0, -1, -1, true},
        {{}, {}, {}, true},
        {0, {}, {}, true},
        {{}, 5, {}, true},
        {10, 4, 6, true},
        {4, 4, 0, true},
        {10, -1, 10, true},
        {10, 0, 10, true},
        {3, 4, {}, false},
        {10, {}, {}, false},
        {-2, 5, {}, false},
        {INT64_MIN, -1, {}, false},
        {5, -2, {}, false},
        {{}, -2, {}, false},
        {INT64_MAX, 0, INT64_MAX, true},
        {INT64_MAX, INT64_MAX, 0, true},
    };
    for (const auto& row : rows) {
        CAPTURE(row.total.value_or(-99));
        CAPTURE(row.limit.value_or(-99));
        auto result = swap_max({.total = row.total, .memory_limit = row.limit});
        CHECK(result.ok() == row.good);
        if (!result.ok()) CHECK(result.error().code == Code::kInvalidArgument);
        if (result.ok()) CHECK(*result == row.expected);
    }
}
