#include "agent/sys/device_program.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include "agent/core/device_filter.h"
#include "tests/support/sys/fake_tree.h"

using namespace berth::core;
using namespace berth::sys;
using berth::test::FakeTree;
using berth::test::folder;

namespace {

// The kernel says no to everybody here: no privilege, or no such program type.
bool kernel_refuses(const Error& error) {
    return error.err == EPERM || error.err == ENOSYS;
}

}  // namespace

TEST_CASE("the kernel's verifier takes the programs that the filter makes, the largest too") {
    for (size_t count : {0u, 1u, 100u, 1024u}) {
        std::vector<DeviceRule> rules;
        for (size_t i = 0; i < count; ++i) {
            DeviceRule rule{};
            rule.allow = i % 3 != 0;
            rule.type = i % 7 == 0 ? DeviceRuleType::kAll : DeviceRuleType::kChar;
            rule.major = static_cast<uint32_t>(i % 200);
            if (i % 2 == 0) rule.minor = static_cast<uint32_t>(i);
            rule.access = static_cast<uint8_t>(1 + i % 7);
            rules.push_back(rule);
        }
        auto program = build_device_filter(rules, {});
        REQUIRE(program.ok());
        auto loaded = load_device_program(*program);
        if (!loaded.ok() && kernel_refuses(loaded.error())) {
            MESSAGE("skipped: " << loaded.error().message);
            return;
        }
        CAPTURE(count);
        CHECK_MESSAGE(loaded.ok(), (loaded.ok() ? "" : loaded.error().message));
    }
}

TEST_CASE("a program that is none, and a directory that is no cgroup") {
    bpf_insn nothing{};
    auto loaded = load_device_program({&nothing, 1});
    REQUIRE(!loaded.ok());
    CHECK(loaded.error().message.starts_with("bpf.load: E"));
    FakeTree tree({folder("x")});
    CHECK(set_device_program(tree.root(), tree.root()).error().message.starts_with("bpf.query: E"));
    CHECK(count_device_programs(tree.root()).error().message.starts_with("bpf.query: E"));
}

TEST_CASE("a character device exists by its number") {
    FakeTree tree({folder("1:3"), folder("10:229")});
    CHECK(char_device_exists(tree.root(), 1, 3));
    CHECK(char_device_exists(tree.root(), 10, 229));
    CHECK(!char_device_exists(tree.root(), 10, 22));
    CHECK(!char_device_exists(tree.root(), 1, 33));
}
