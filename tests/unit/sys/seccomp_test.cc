#include "agent/sys/seccomp.h"

#include <doctest/doctest.h>
#include <linux/audit.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>

#include "tests/support/sys/bpf_eval.h"

using namespace berth;

namespace {

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr uint32_t kKillThread = SECCOMP_RET_KILL_THREAD;
constexpr uint32_t kX32 = 0x40000000;

#if defined(__x86_64__)
constexpr uint32_t kNative = AUDIT_ARCH_X86_64;
#else
constexpr uint32_t kNative = AUDIT_ARCH_AARCH64;
#endif

constexpr uint32_t err(uint32_t number) {
    return SECCOMP_RET_ERRNO | number;
}

struct Call {
    uint32_t arch;
    uint32_t number;
    uint64_t arguments[6] = {};
};

uint32_t verdict(const std::vector<sock_filter>& program, const Call& call) {
    seccomp_data data{};
    data.arch = call.arch;
    data.nr = static_cast<int>(call.number);
    for (int i = 0; i < 6; ++i) data.args[i] = call.arguments[i];
    auto result = test::evaluate(program, data);
    REQUIRE(result.has_value());
    return *result;
}

core::SeccompProfile profile_of(const char* json) {
    auto document = core::parse_json(json);
    REQUIRE(document.ok());
    auto profile = core::parse_seccomp(*document, "linux.seccomp");
    if (!profile.ok()) MESSAGE(profile.error().message);
    REQUIRE(profile.ok());
    return std::move(profile).value();
}

std::vector<sock_filter> compiled(const char* json) {
    auto program = sys::compile_profile(profile_of(json));
    if (!program.ok()) MESSAGE(program.error().message);
    REQUIRE(program.ok());
    return std::move(program).value();
}

}  // namespace

TEST_CASE("the agent's own filter") {
    std::vector<sock_filter> program = sys::compile_own_filter();
    struct Row {
        const char* what;
        Call call;
        uint32_t expected;
    };
    const uint32_t vsock_denied = err(EAFNOSUPPORT);
    const Row rows[] = {
#if defined(__x86_64__)
        {"x86_64 read", {AUDIT_ARCH_X86_64, 0, {}}, kAllow},
        {"x86_64 socket(AF_INET)", {AUDIT_ARCH_X86_64, 41, {AF_INET}}, kAllow},
        {"x86_64 socket(AF_VSOCK)", {AUDIT_ARCH_X86_64, 41, {AF_VSOCK}}, vsock_denied},
        {"x86_64 socket, high bits set", {AUDIT_ARCH_X86_64, 41, {0x1'0000'0028}}, vsock_denied},
        {"x86_64 socket, 40 in another argument", {AUDIT_ARCH_X86_64, 41, {AF_UNIX, 40, 40}}, kAllow},
        {"x86_64 another call with 40", {AUDIT_ARCH_X86_64, 42, {AF_VSOCK}}, kAllow},
        {"x86_64 io_uring_setup", {AUDIT_ARCH_X86_64, 425, {}}, err(ENOSYS)},
        {"x86_64 io_uring_enter", {AUDIT_ARCH_X86_64, 426, {}}, kAllow},
        {"x32 socket", {AUDIT_ARCH_X86_64, kX32 | 41, {AF_INET}}, err(ENOSYS)},
        {"x32 first", {AUDIT_ARCH_X86_64, kX32, {}}, err(ENOSYS)},
        {"call -1 (a tracer's skip)", {AUDIT_ARCH_X86_64, 0xFFFFFFFF, {}}, err(ENOSYS)},
        {"i386 read", {AUDIT_ARCH_I386, 3, {}}, kAllow},
        {"i386 socket(AF_VSOCK)", {AUDIT_ARCH_I386, 359, {AF_VSOCK}}, vsock_denied},
        {"i386 socket(AF_INET)", {AUDIT_ARCH_I386, 359, {AF_INET}}, kAllow},
        {"i386 socketcall(SYS_SOCKET)", {AUDIT_ARCH_I386, 102, {1}}, err(ENOSYS)},
        {"i386 socketcall(SYS_SOCKET), high bits", {AUDIT_ARCH_I386, 102, {0x1'0000'0001}}, err(ENOSYS)},
        {"i386 socketcall(SYS_BIND)", {AUDIT_ARCH_I386, 102, {2}}, kAllow},
        {"i386 io_uring_setup", {AUDIT_ARCH_I386, 425, {}}, err(ENOSYS)},
        {"i386 call 41 (dup)", {AUDIT_ARCH_I386, 41, {AF_VSOCK}}, kAllow},
#endif
#if defined(__aarch64__)
        {"aarch64 socket(AF_VSOCK)", {AUDIT_ARCH_AARCH64, 198, {AF_VSOCK}}, vsock_denied},
        {"aarch64 socket(AF_UNIX)", {AUDIT_ARCH_AARCH64, 198, {AF_UNIX}}, kAllow},
        {"aarch64 io_uring_setup", {AUDIT_ARCH_AARCH64, 425, {}}, err(ENOSYS)},
        {"arm socket(AF_VSOCK)", {AUDIT_ARCH_ARM, 281, {AF_VSOCK}}, vsock_denied},
        {"arm read", {AUDIT_ARCH_ARM, 3, {}}, kAllow},
#else
        {"aarch64 read, which no kernel of ours runs", {AUDIT_ARCH_AARCH64, 63, {}}, err(ENOSYS)},
        {"arm read", {AUDIT_ARCH_ARM, 3, {}}, err(ENOSYS)},
#endif
        {"riscv64", {AUDIT_ARCH_RISCV64, 63, {}}, err(ENOSYS)},
    };
    for (const Row& row : rows) {
        CAPTURE(row.what);
        CHECK(verdict(program, row.call) == row.expected);
    }
    CHECK(program.size() < 64);
}

TEST_CASE("a profile's actions, arguments and default") {
    auto program = compiled(R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        {"names": ["read", "write", "openat2"], "action": "SCMP_ACT_ALLOW"},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
         "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
         "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
        {"names": ["prctl"], "action": "SCMP_ACT_ALLOW",
         "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_GE"}, {"index": 1, "value": 5, "op": "SCMP_CMP_LT"}]},
        {"names": ["kill"], "action": "SCMP_ACT_ALLOW",
         "args": [{"index": 1, "value": 9, "op": "SCMP_CMP_EQ"}, {"index": 1, "value": 15, "op": "SCMP_CMP_EQ"}]},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
        {"names": ["ptrace"], "action": "SCMP_ACT_KILL_PROCESS"},
        {"names": ["mount"], "action": "SCMP_ACT_TRAP"},
        {"names": ["umount2"], "action": "SCMP_ACT_TRACE", "errnoRet": 7},
        {"names": ["getpid"], "action": "SCMP_ACT_LOG"},
        {"names": ["no_such_call", "read"], "action": "SCMP_ACT_ALLOW"},
        {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]})");
    struct Row {
        uint32_t number;
        uint64_t arguments[6];
        uint32_t expected;
    };
    const Row rows[] = {
        {SYS_read, {}, kAllow},
        {SYS_openat2, {}, kAllow},
        {SYS_fchmod, {}, err(EPERM)},
        {SYS_personality, {8}, kAllow},
        {SYS_personality, {0x1'0000'0008}, err(EPERM)},
        {SYS_personality, {9}, err(EPERM)},
        {SYS_clone, {SIGCHLD}, kAllow},
        {SYS_clone, {0x10000000}, err(EPERM)},
        {SYS_prctl, {1, 4}, kAllow},
        {SYS_prctl, {0, 4}, err(EPERM)},
        {SYS_prctl, {1, 5}, err(EPERM)},
        {SYS_kill, {1, 9}, kAllow},
        {SYS_kill, {1, 15}, kAllow},
        {SYS_kill, {1, 10}, err(EPERM)},
        {SYS_clone3, {}, err(ENOSYS)},
        {SYS_ptrace, {}, SECCOMP_RET_KILL_PROCESS},
        {SYS_mount, {}, SECCOMP_RET_TRAP},
        {SYS_umount2, {}, SECCOMP_RET_TRACE | 7},
        {SYS_getpid, {}, SECCOMP_RET_LOG},
        {SYS_bpf, {}, err(EPERM)},
        {SYS_openat2 + 1, {}, err(ENOSYS)},  // newer than all that the profile names
        {9999, {}, err(ENOSYS)},
    };
    for (const Row& row : rows) {
        CAPTURE(row.number);
        Call call{kNative, row.number, {}};
        for (int i = 0; i < 6; ++i) call.arguments[i] = row.arguments[i];
        CHECK(verdict(program, call) == row.expected);
    }
    CHECK(verdict(program, {AUDIT_ARCH_RISCV64, 0, {}}) == kKillThread);
}

TEST_CASE("calls newer than the profile: only where the default denies") {
    const char* pattern[][2] = {
        {"SCMP_ACT_ALLOW", "allow"}, {"SCMP_ACT_LOG", "log"}, {"SCMP_ACT_KILL", "kill"}};
    const uint32_t expected[] = {kAllow, SECCOMP_RET_LOG, err(ENOSYS)};
    for (int i = 0; i < 3; ++i) {
        CAPTURE(pattern[i][1]);
        std::string json = std::string(R"({"defaultAction": ")") + pattern[i][0] +
                           R"(", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_TRAP"}]})";
        CHECK(verdict(compiled(json.c_str()), {kNative, 9999, {}}) == expected[i]);
    }
    auto nosys = compiled(R"({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38})");
    CHECK(verdict(nosys, {kNative, SYS_read, {}}) == err(ENOSYS));
    auto empty = compiled(R"({"defaultAction": "SCMP_ACT_ERRNO"})");
    CHECK(verdict(empty, {kNative, 9999, {}}) == err(EPERM));
}

#if defined(__x86_64__)
TEST_CASE("architectures: native always, others when named and runnable") {
    auto native = compiled(R"({"defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [{"names": ["read", "openat2"], "action": "SCMP_ACT_ALLOW"}]})");
    CHECK(verdict(native, {AUDIT_ARCH_X86_64, SYS_read, {}}) == kAllow);
    CHECK(verdict(native, {AUDIT_ARCH_I386, 3, {}}) == kKillThread);
    CHECK(verdict(native, {AUDIT_ARCH_X86_64, kX32 | SYS_read, {}}) == kKillThread);
    auto all = compiled(R"({"defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_ARM", "SCMP_ARCH_S390X"],
        "syscalls": [{"names": ["read", "openat2"], "action": "SCMP_ACT_ALLOW"}]})");
    CHECK(verdict(all, {AUDIT_ARCH_X86_64, SYS_read, {}}) == kAllow);
    CHECK(verdict(all, {AUDIT_ARCH_X86_64, 9999, {}}) == err(ENOSYS));
    CHECK(verdict(all, {AUDIT_ARCH_I386, 3, {}}) == kAllow);
    CHECK(verdict(all, {AUDIT_ARCH_I386, 4, {}}) == err(EPERM));
    CHECK(verdict(all, {AUDIT_ARCH_I386, 9999, {}}) == err(ENOSYS));
    CHECK(verdict(all, {AUDIT_ARCH_X86_64, kX32 | SYS_read, {}}) == kAllow);
    CHECK(verdict(all, {AUDIT_ARCH_X86_64, kX32 | SYS_write, {}}) == err(EPERM));
    CHECK(verdict(all, {AUDIT_ARCH_X86_64, kX32 | 9999, {}}) == err(ENOSYS));
    CHECK(verdict(all, {AUDIT_ARCH_ARM, 3, {}}) == kKillThread);
}
#endif

TEST_CASE("unknown names are left out and told, of two rules the first one counts") {
    std::vector<std::string> unknown;
    auto profile = profile_of(R"({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["frobnicate", "read", "get_thread_area_2"], "action": "SCMP_ACT_ERRNO"}]})");
    REQUIRE(sys::compile_profile(profile, &unknown).ok());
    CHECK(unknown == std::vector<std::string>{"frobnicate", "get_thread_area_2"});

    auto twice = compiled(R"({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        {"names": ["read"], "action": "SCMP_ACT_ALLOW"}, {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
        {"names": ["write", "read"], "action": "SCMP_ACT_KILL"}, {"names": ["write"], "action": "SCMP_ACT_ALLOW"}]})");
    CHECK(verdict(twice, {kNative, SYS_read, {}}) == kAllow);
    CHECK(verdict(twice, {kNative, SYS_write, {}}) == kKillThread);
}
