#include "agent/core/seccomp_profile.h"

#include <doctest/doctest.h>
#include <linux/seccomp.h>

#include <cerrno>

using namespace berth::core;

namespace {

Result<SeccompProfile> parse(std::string_view json) {
    auto document = parse_json(json);
    REQUIRE(document.ok());
    return parse_seccomp(*document, "linux.seccomp");
}

SeccompProfile parsed(std::string_view json) {
    auto profile = parse(json);
    if (!profile.ok()) MESSAGE(profile.error().message);
    REQUIRE(profile.ok());
    return std::move(profile).value();
}

}  // namespace

TEST_CASE("a profile in full") {
    SeccompProfile profile = parsed(R"({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_TSYNC"],
        "listenerPath": "/run/x.sock",
        "syscalls": [
            {"names": ["clone", "clone3"], "action": "SCMP_ACT_TRACE", "errnoRet": 65535,
             "args": [{"index": 5, "value": 18446744073709551615, "valueTwo": 3, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["a"], "action": "SCMP_ACT_KILL"},
            {"names": ["a"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 1, "value": 1, "op": "SCMP_CMP_NE"}, {"index": 2, "value": 2, "op": "SCMP_CMP_LE"},
                      {"index": 1, "value": 3, "op": "SCMP_CMP_GT"}]}]})");
    CHECK(profile.fallback == SeccompVerdict{SeccompAction::kErrno, 38});
    CHECK(profile.architectures == std::vector<std::string>{"SCMP_ARCH_X86", "SCMP_ARCH_X86_64"});
    CHECK(profile.flags == (SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_TSYNC));
    // Three rules of the last one: it names index 1 twice.
    REQUIRE(profile.rules.size() == 5);
    CHECK(profile.rules[0].names == std::vector<std::string>{"clone", "clone3"});
    CHECK(profile.rules[0].verdict == SeccompVerdict{SeccompAction::kTrace, 65535});
    REQUIRE(profile.rules[0].arguments.size() == 1);
    CHECK(profile.rules[0].arguments[0].index == 5);
    CHECK(profile.rules[0].arguments[0].value == UINT64_MAX);
    CHECK(profile.rules[0].arguments[0].value_two == 3);
    CHECK(profile.rules[0].arguments[0].op == SeccompOperator::kMaskedEqual);
    CHECK(profile.rules[1].verdict == SeccompVerdict{SeccompAction::kKillThread, 0});
    for (size_t i = 2; i < 5; ++i) {
        CHECK(profile.rules[i].arguments.size() == 1);
        CHECK(profile.rules[i].path == "linux.seccomp.syscalls[2]");
    }
    CHECK(profile.rules[4].arguments[0].op == SeccompOperator::kGreater);
}

TEST_CASE("defaults: EPERM, SPEC_ALLOW when flags are absent, none when they are empty") {
    CHECK(parsed(R"({"defaultAction": "SCMP_ACT_ERRNO"})").fallback ==
          SeccompVerdict{SeccompAction::kErrno, EPERM});
    CHECK(parsed(R"({"defaultAction": "SCMP_ACT_ALLOW"})").fallback ==
          SeccompVerdict{SeccompAction::kAllow, 0});
    CHECK(parsed(R"({"defaultAction": "SCMP_ACT_ALLOW"})").flags == SECCOMP_FILTER_FLAG_SPEC_ALLOW);
    CHECK(parsed(R"({"defaultAction": "SCMP_ACT_ALLOW", "flags": []})").flags == 0);
    CHECK(parsed(R"({"defaultAction": "SCMP_ACT_ALLOW",
                     "flags": ["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]})")
              .flags == 0);
}

TEST_CASE("what is refused, by name") {
    struct Row {
        const char* json;
        Code code;
        const char* message;
    };
    const Row rows[] = {
        {R"([])", Code::kInvalidArgument, "linux.seccomp: must be an object"},
        {R"({})", Code::kInvalidArgument, "linux.seccomp.defaultAction: is required"},
        {R"({"defaultAction": "SCMP_ACT_allow"})", Code::kInvalidArgument,
         "linux.seccomp.defaultAction: unknown action \"SCMP_ACT_allow\""},
        {R"({"defaultAction": "SCMP_ACT_NOTIFY", "listenerPath": "/x"})", Code::kInvalidArgument,
         "linux.seccomp.defaultAction: SCMP_ACT_NOTIFY cannot be the default: the set-up itself would wait "
         "for an answer"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": 1})", Code::kInvalidArgument,
         "linux.seccomp.defaultErrnoRet: only SCMP_ACT_ERRNO and SCMP_ACT_TRACE take one"},
        {R"({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 4096})", Code::kInvalidArgument,
         "linux.seccomp.defaultErrnoRet: 4096 is above 4095"},
        {R"({"defaultAction": "SCMP_ACT_TRACE", "defaultErrnoRet": 65536})", Code::kInvalidArgument,
         "linux.seccomp.defaultErrnoRet: 65536 is above 65535"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "flags": ["X"]})", Code::kInvalidArgument,
         "linux.seccomp.flags: unknown flag \"X\""},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["amd64"]})", Code::kInvalidArgument,
         "linux.seccomp.architectures: unknown architecture \"amd64\""},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "listenerMetadata": "x"})", Code::kInvalidArgument,
         "linux.seccomp.listenerMetadata: is set without a listenerPath"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": [], "action": "SCMP_ACT_KILL"}]})",
         Code::kInvalidArgument, "linux.seccomp.syscalls[0].names: names no system call"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"]}]})", Code::kInvalidArgument,
         "linux.seccomp.syscalls[0].action: is required"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}]})",
         Code::kInvalidArgument, "linux.seccomp.listenerPath: missing for SCMP_ACT_NOTIFY"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "x",
             "syscalls": [{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}]})",
         Code::kInvalidArgument, "linux.seccomp.listenerPath: must be an absolute path, is \"x\""},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x",
             "syscalls": [{"names": ["read", "write"], "action": "SCMP_ACT_NOTIFY"}]})",
         Code::kInvalidArgument,
         "linux.seccomp.syscalls[0].action: SCMP_ACT_NOTIFY on \"write\" would make the set-up wait for "
         "itself"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_KILL",
             "args": [{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}]}]})",
         Code::kInvalidArgument, "linux.seccomp.syscalls[0].args[0].index: must be a number from 0 to 5"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_KILL",
             "args": [{"index": 0, "value": 1, "op": "=="}]}]})",
         Code::kInvalidArgument, "linux.seccomp.syscalls[0].args[0].op: unknown operator \"==\""},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_KILL",
             "args": [{"value": 1, "op": "SCMP_CMP_EQ"}]}]})",
         Code::kInvalidArgument, "linux.seccomp.syscalls[0].args[0].index: is required"},
        {R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_KILL",
             "args": [{"index": 0, "value": -1, "op": "SCMP_CMP_EQ"}]}]})",
         Code::kInvalidArgument,
         "linux.seccomp.syscalls[0].args[0].value: must be a number from 0 to 18446744073709551615"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.json);
        auto profile = parse(row.json);
        REQUIRE_FALSE(profile.ok());
        CHECK(profile.error().code == row.code);
        CHECK(profile.error().message == row.message);
    }
}

TEST_CASE("unknown properties are skipped and told") {
    auto document = parse_json(R"({"defaultAction": "SCMP_ACT_ALLOW", "future": 1})");
    REQUIRE(document.ok());
    std::vector<std::string> skipped;
    REQUIRE(parse_seccomp(*document, "linux.seccomp", &skipped).ok());
    CHECK(skipped == std::vector<std::string>{"linux.seccomp.future"});
}

TEST_CASE("the cache key tells profiles apart by what they compile to") {
    const char* base = R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]})";
    std::string key = seccomp_cache_key(parsed(base));
    CHECK(key == "default SCMP_ACT_ERRNO(1)\nSCMP_ACT_ALLOW(0) 0d1:0 \"read\"\n");
    const char* others[] = {
        R"({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 2, "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]})",
        R"({"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86"], "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]})",
        R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_NE"}]}]})",
        R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]})",
    };
    for (const char* other : others) CHECK(seccomp_cache_key(parsed(other)) != key);
    // Flags are of the loading, not of the program.
    CHECK(seccomp_cache_key(parsed(R"({"flags": [], "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]})")) ==
          key);
}
