#include "agent/sys/cgroup.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include "tests/support/sys/fake_tree.h"

using namespace berth::core;
using namespace berth::sys;
using berth::test::FakeTree;
using berth::test::file;
using berth::test::folder;

namespace {

template <typename T>
std::string failure(const Result<T>& result) {
    if (result.ok()) return "ok";
    return std::string(code_name(result.error().code)) + ": " + result.error().message;
}

}  // namespace

TEST_CASE("cgroups are opened, made and removed below their parent only") {
    FakeTree tree({folder("berth", {folder("web", {folder("inner")})}), file("memory.max", "max\n")});
    REQUIRE(symlink("/", tree.path("out").c_str()) == 0);
    REQUIRE(symlink("berth", tree.path("berth2").c_str()) == 0);
    CHECK(failure(open_cgroup(tree.root(), "berth/web")) == "ok");
    CHECK(failure(open_cgroup(tree.root(), ".")) == "ok");
    CHECK(failure(open_cgroup(tree.root(), "none")) == "NOT_FOUND: cgroup.open none: ENOENT");
    CHECK(failure(open_cgroup(tree.root(), "..")) == "INTERNAL: cgroup.open ..: EXDEV");
    CHECK(failure(open_cgroup(tree.root(), "berth/../..")) == "INTERNAL: cgroup.open berth/../..: EXDEV");
    CHECK(failure(open_cgroup(tree.root(), "/tmp")) == "INTERNAL: cgroup.open /tmp: EXDEV");
    CHECK(!open_cgroup(tree.root(), "out").ok());
    CHECK(failure(open_cgroup(tree.root(), "berth2/web")) ==
          "INVALID_ARGUMENT: cgroup.open berth2/web: ELOOP");
    CHECK(failure(open_cgroup(tree.root(), "memory.max")) ==
          "INVALID_ARGUMENT: cgroup.open memory.max: ENOTDIR");
    UniqueFd web = open_cgroup(tree.root(), "berth/web").value();
    CHECK((fcntl(web.get(), F_GETFD) & FD_CLOEXEC) != 0);

    CHECK(failure(create_cgroup(tree.root(), "berth/db")) == "ok");
    CHECK(tree.exists("berth/db"));
    CHECK(failure(create_cgroup(tree.root(), "berth/db")) == "ALREADY_EXISTS: cgroup.mkdir berth/db: EEXIST");
    CHECK(failure(create_cgroup(tree.root(), "none/db")) == "NOT_FOUND: cgroup.mkdir none: ENOENT");
    CHECK(!create_cgroup(tree.root(), "out/berth-test").ok());
    for (const char* bad : {"", ".", "..", "berth/", "berth/.."}) {
        CAPTURE(bad);
        CHECK(create_cgroup(tree.root(), bad).error().err == EINVAL);
        CHECK(remove_cgroup(tree.root(), bad).error().err == EINVAL);
    }
    CHECK(failure(remove_cgroup(tree.root(), "berth/db")) == "ok");
    CHECK(!tree.exists("berth/db"));
    CHECK(failure(remove_cgroup(tree.root(), "berth/db")) == "NOT_FOUND: cgroup.rmdir berth/db: ENOENT");
    CHECK(remove_cgroup(tree.root(), "berth/web").error().err == ENOTEMPTY);
}

TEST_CASE("a tree is removed deepest first, within its budget") {
    FakeTree tree({folder("web", {folder("a", {folder("b", {folder("c")}), folder("d")}), folder("e")}),
                   folder("other")});
    size_t calls = 0;
    bool more = true;
    for (; more && calls < 20; ++calls) {
        auto outcome = remove_cgroup_tree(tree.root(), "web", 2);
        CHECK_MESSAGE(outcome.ok(), failure(outcome));
        more = outcome.ok() && *outcome == RemoveOutcome::kMore;
    }
    CHECK(!more);
    CHECK(calls > 1);
    CHECK(!tree.exists("web"));
    CHECK(tree.exists("other"));
    CHECK(*remove_cgroup_tree(tree.root(), "web", 3) == RemoveOutcome::kRemoved);
    CHECK(*remove_cgroup_tree(tree.root(), "other", 0) == RemoveOutcome::kMore);
}

TEST_CASE("a tree deeper than the levels that are kept is removed too") {
    FakeTree tree({folder("web")});
    std::string path = "web";
    for (int i = 0; i < 150; ++i) REQUIRE(create_cgroup(tree.root(), path += "/x").ok());
    for (int i = 0; i < 40; ++i) REQUIRE(create_cgroup(tree.root(), "web/wide" + std::to_string(i)).ok());
    auto outcome = remove_cgroup_tree(tree.root(), "web", 2000);
    REQUIRE_MESSAGE(outcome.ok(), failure(outcome));
    CHECK(*outcome == RemoveOutcome::kRemoved);
    CHECK(!tree.exists("web"));
}

TEST_CASE("what cannot be removed is named from the top") {
    FakeTree tree({folder("web", {folder("a", {folder("busy", {file("f", "")})})})});
    CHECK(failure(remove_cgroup_tree(tree.root(), "web", 100)) ==
          "INTERNAL: cgroup.rmdir web/a/busy: ENOTEMPTY");
    CHECK(tree.exists("web/a/busy"));
}

TEST_CASE("files: whole reads, bounded reads, one write") {
    FakeTree tree({file("memory.max", "max\n"), file("cgroup.controllers", "cpu io memory\n"),
                   file("none", "\n"), file("lines", "a 1\nb 2\nc 3\n"), folder("sub")});
    CHECK(*read_cgroup_file(tree.root(), "memory.max") == "max\n");
    CHECK(read_cgroup_file(tree.root(), "memory.max", 4)->size() == 4);
    CHECK(failure(read_cgroup_file(tree.root(), "memory.max", 3)) ==
          "RESOURCE_EXHAUSTED: cgroup.read memory.max: has more than 3 bytes");
    CHECK(failure(read_cgroup_file(tree.root(), "memory.low")) ==
          "NOT_FOUND: cgroup.open memory.low: ENOENT");
    CHECK(failure(read_cgroup_file(tree.root(), "sub")) == "INTERNAL: cgroup.read sub: EISDIR");
    char buffer[9];
    CHECK(*read_cgroup_file_into(tree.root(), "memory.max", buffer) == "max\n");
    CHECK(*read_cgroup_file_into(tree.root(), "lines", buffer) == "a 1\nb 2\n");
    CHECK(failure(read_cgroup_file_into(tree.root(), "x", buffer)) == "NOT_FOUND: cgroup.open x: ENOENT");

    CHECK(write_cgroup_file(tree.root(), "memory.max", "4096").ok());
    CHECK(tree.content("memory.max") == "4096");
    CHECK(failure(write_cgroup_file(tree.root(), "memory.low", "5")) ==
          "NOT_FOUND: cgroup.write memory.low=5: ENOENT");
    CHECK(!tree.exists("memory.low"));
    REQUIRE(symlink("memory.max", tree.path("link").c_str()) == 0);
    CHECK(failure(write_cgroup_file(tree.root(), "link", "5")) ==
          "INVALID_ARGUMENT: cgroup.write link=5: ELOOP");

    CHECK(*available_controllers(tree.root()) == std::vector<std::string>{"cpu", "io", "memory"});
    CHECK(open_cgroup_file(tree.root(), "memory.max", O_RDONLY).ok());
}

TEST_CASE("controllers, kill, freezer, state") {
    FakeTree tree({file("cgroup.subtree_control", ""), file("cgroup.kill", ""), file("cgroup.freeze", ""),
                   file("cgroup.events", "populated 1\nfrozen 1\n"), file("cgroup.controllers", "\n")});
    const std::string both[] = {"cpu", "memory"};
    CHECK(enable_controllers(tree.root(), {}).ok());
    CHECK(tree.content("cgroup.subtree_control") == "");
    CHECK(enable_controllers(tree.root(), both).ok());
    CHECK(tree.content("cgroup.subtree_control") == "+cpu +memory");
    CHECK(kill_cgroup(tree.root()).ok());
    CHECK(tree.content("cgroup.kill") == "1");
    CHECK(set_freezer(tree.root(), FreezerState::kFrozen).ok());
    CHECK(tree.content("cgroup.freeze") == "1");
    CHECK(set_freezer(tree.root(), FreezerState::kThawed).ok());
    CHECK(tree.content("cgroup.freeze") == "0");
    CHECK(cgroup_state(tree.root())->populated);
    CHECK(cgroup_state(tree.root())->frozen);
    CHECK(available_controllers(tree.root())->empty());

    FakeTree bare({folder("sub")});
    CHECK(failure(enable_controllers(bare.root(), both)) ==
          "NOT_FOUND: cgroup.write cgroup.subtree_control=+cpu: ENOENT");
    CHECK(failure(kill_cgroup(bare.root())) == "NOT_FOUND: cgroup.write cgroup.kill=1: ENOENT");
    CHECK(failure(cgroup_state(bare.root())) == "NOT_FOUND: cgroup.open cgroup.events: ENOENT");
}

TEST_CASE("processes of a cgroup, and of all below it") {
    FakeTree tree({file("cgroup.procs", "7\n0\n3\n"),
                   folder("a", {file("cgroup.procs", "5\n3\n"), folder("b", {file("cgroup.procs", "9\n")})}),
                   folder("gone")});
    CHECK(*cgroup_procs(tree.root(), 10) == std::vector<pid_t>{7, 3});
    CHECK(cgroup_procs(tree.root(), 1)->size() == 1);
    CHECK(*cgroup_procs_recursive(tree.root(), 10, 10) == std::vector<pid_t>{3, 5, 7, 9});
    CHECK(*cgroup_procs_recursive(tree.root(), 10, 1) == std::vector<pid_t>{3, 7});

    auto entries = list_cgroup(tree.root(), 1);
    REQUIRE(entries.ok());
    CHECK(entries->files == std::vector<std::string>{"cgroup.procs"});
    CHECK(entries->children.size() == 1);
    CHECK(list_cgroup(tree.root(), 10)->children.size() == 2);
}
