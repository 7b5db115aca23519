#include "agent/sys/seccomp.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "agent/core/text.h"
#include "agent/sys/fd.h"

namespace berth::sys {

using core::SeccompAction;
using core::SeccompOperator;
using core::SeccompProfile;
using core::SeccompRule;
using core::SeccompVerdict;

namespace {

constexpr uint32_t kX32Bit = 0x40000000;
constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;

constexpr uint32_t deny(int err) {
    return SECCOMP_RET_ERRNO | static_cast<uint32_t>(err);
}

sock_filter load(size_t offset) {
    return {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<uint32_t>(offset)};
}
sock_filter jump(uint16_t test, uint32_t value, uint8_t if_true, uint8_t if_false) {
    return {static_cast<uint16_t>(BPF_JMP | test | BPF_K), if_true, if_false, value};
}
sock_filter answer(uint32_t verdict) {
    return {BPF_RET | BPF_K, 0, 0, verdict};
}

// ---- the profile ----

struct Architecture {
    std::string_view name;
    uint32_t token;  // libseccomp's
    uint32_t audit;  // the kernel's
};
// What this kernel may run; the first is native.
constexpr Architecture kRunnable[] = {
#if defined(__x86_64__)
    {"SCMP_ARCH_X86_64", SCMP_ARCH_X86_64, AUDIT_ARCH_X86_64},
    {"SCMP_ARCH_X86", SCMP_ARCH_X86, AUDIT_ARCH_I386},
    {"SCMP_ARCH_X32", SCMP_ARCH_X32, AUDIT_ARCH_X86_64},
#elif defined(__aarch64__)
    {"SCMP_ARCH_AARCH64", SCMP_ARCH_AARCH64, AUDIT_ARCH_AARCH64},
    {"SCMP_ARCH_ARM", SCMP_ARCH_ARM, AUDIT_ARCH_ARM},
#else
#error "no seccomp architectures for this machine"
#endif
};

bool is_wanted(const SeccompProfile& profile, const Architecture& architecture) {
    if (&architecture == &kRunnable[0]) return true;
    for (const std::string& name : profile.architectures) {
        if (name == architecture.name) return true;
    }
    return false;
}

uint32_t libseccomp_action(const SeccompVerdict& verdict) {
    switch (verdict.action) {
        case SeccompAction::kKillThread: return SCMP_ACT_KILL_THREAD;
        case SeccompAction::kKillProcess: return SCMP_ACT_KILL_PROCESS;
        case SeccompAction::kTrap: return SCMP_ACT_TRAP;
        case SeccompAction::kErrno: return SCMP_ACT_ERRNO(uint32_t{verdict.data});
        case SeccompAction::kTrace: return SCMP_ACT_TRACE(uint32_t{verdict.data});
        case SeccompAction::kLog: return SCMP_ACT_LOG;
        case SeccompAction::kAllow: return SCMP_ACT_ALLOW;
        case SeccompAction::kNotify: return SCMP_ACT_NOTIFY;
    }
    return SCMP_ACT_KILL_PROCESS;
}

scmp_compare libseccomp_operator(SeccompOperator op) {
    switch (op) {
        case SeccompOperator::kNotEqual: return SCMP_CMP_NE;
        case SeccompOperator::kLess: return SCMP_CMP_LT;
        case SeccompOperator::kLessOrEqual: return SCMP_CMP_LE;
        case SeccompOperator::kEqual: return SCMP_CMP_EQ;
        case SeccompOperator::kGreaterOrEqual: return SCMP_CMP_GE;
        case SeccompOperator::kGreater: return SCMP_CMP_GT;
        case SeccompOperator::kMaskedEqual: return SCMP_CMP_MASKED_EQ;
    }
    return SCMP_CMP_EQ;
}

struct ContextDeleter {
    void operator()(void* context) const { seccomp_release(context); }
};
using Context = std::unique_ptr<void, ContextDeleter>;

core::Status add_rule(const Context& context, const SeccompRule& rule, const std::string& name, int number) {
    std::vector<scmp_arg_cmp> arguments;
    for (const core::SeccompArgument& argument : rule.arguments) {
        scmp_arg_cmp compare{};
        compare.arg = argument.index;
        compare.op = libseccomp_operator(argument.op);
        compare.datum_a = argument.value;
        compare.datum_b = argument.value_two;
        arguments.push_back(compare);
    }
    int err = seccomp_rule_add_array(context.get(), libseccomp_action(rule.verdict), number,
                                     static_cast<unsigned>(arguments.size()), arguments.data());
    if (err == 0) return core::ok();
    return core::errno_error(-err, rule.path + ": " + core::quoted(name));
}

// The largest number that the profile names on `architecture`, or -1.
int newest_named(const SeccompProfile& profile, const Architecture& architecture) {
    int newest = -1;
    for (const SeccompRule& rule : profile.rules) {
        for (const std::string& name : rule.names) {
            int number = seccomp_syscall_resolve_name_arch(architecture.token, name.c_str());
            if (number > newest) newest = number;
        }
    }
    return newest;
}

bool denies(const SeccompVerdict& verdict) {
    switch (verdict.action) {
        case SeccompAction::kErrno: return verdict.data != ENOSYS;
        case SeccompAction::kKillThread:
        case SeccompAction::kKillProcess:
        case SeccompAction::kTrap: return true;
        case SeccompAction::kTrace:
        case SeccompAction::kLog:
        case SeccompAction::kNotify:
        case SeccompAction::kAllow: break;
    }
    return false;
}

// What goes before libseccomp's program: ENOSYS for calls that are newer than the profile. It falls through
// at its end; libseccomp's jumps are relative.
std::vector<sock_filter> newer_calls_stub(const SeccompProfile& profile) {
    std::vector<sock_filter> stub;
    if (!denies(profile.fallback)) return stub;
    for (const Architecture& architecture : kRunnable) {
        int newest = newest_named(profile, architecture);
        if (!is_wanted(profile, architecture) || newest < 0) continue;
        bool is_x32 = architecture.token == SCMP_ARCH_X32;
        // Skips the rest of the block for another architecture, and for the other half of the numbers, which
        // x32 shares with x86_64.
        stub.push_back(load(offsetof(seccomp_data, arch)));
        stub.push_back(jump(BPF_JEQ, architecture.audit, 0, 4));
        stub.push_back(load(offsetof(seccomp_data, nr)));
        stub.push_back(is_x32 ? jump(BPF_JGE, kX32Bit, 0, 2) : jump(BPF_JGE, kX32Bit, 2, 0));
        stub.push_back(jump(BPF_JGT, static_cast<uint32_t>(newest), 0, 1));
        stub.push_back(answer(deny(ENOSYS)));
    }
    return stub;
}

core::Result<std::vector<sock_filter>> exported(const Context& context) {
    UniqueFd fd(::memfd_create("seccomp", MFD_CLOEXEC));
    if (!fd.valid()) return core::errno_error(errno, "memfd_create");
    int err = seccomp_export_bpf(context.get(), fd.get());
    if (err != 0) return core::errno_error(-err, "linux.seccomp: export");
    off_t size = ::lseek(fd.get(), 0, SEEK_END);
    if (size < 0) return core::errno_error(errno, "lseek");
    std::vector<sock_filter> program(static_cast<size_t>(size) / sizeof(sock_filter));
    ssize_t got = ::pread(fd.get(), program.data(), program.size() * sizeof(sock_filter), 0);
    if (got != size) return core::errno_error(got < 0 ? errno : EIO, "read seccomp program");
    return program;
}

}  // namespace

core::Result<std::vector<sock_filter>> compile_profile(const SeccompProfile& profile,
                                                       std::vector<std::string>* unknown_names) {
    Context context(seccomp_init(libseccomp_action(profile.fallback)));
    if (!context)
        return core::make_error(core::Code::kFailedPrecondition, "linux.seccomp: default action refused");
    for (const Architecture& architecture : kRunnable) {
        if (!is_wanted(profile, architecture) || &architecture == &kRunnable[0]) continue;
        int err = seccomp_arch_add(context.get(), architecture.token);
        if (err != 0) return core::errno_error(-err, "linux.seccomp: " + std::string(architecture.name));
    }
    // 2: a binary tree over the call numbers.
    int err = seccomp_attr_set(context.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (err != 0) return core::errno_error(-err, "linux.seccomp: optimize");
    // Of two rules without arguments for one call the first one counts, as libseccomp has it and other
    // runtimes with it: the profile of podman and buildah allows setns and then denies it.
    std::unordered_set<std::string_view> decided;
    for (const SeccompRule& rule : profile.rules) {
        for (const std::string& name : rule.names) {
            int number = seccomp_syscall_resolve_name(name.c_str());
            if (number == __NR_SCMP_ERROR) {
                if (unknown_names != nullptr) unknown_names->push_back(name);
            } else if (rule.verdict != profile.fallback) {
                if (rule.arguments.empty() && !decided.insert(name).second) continue;
                BERTH_TRY(add_rule(context, rule, name, number));
            }
        }
    }
    BERTH_ASSIGN(std::vector<sock_filter> body, exported(context));
    std::vector<sock_filter> program = newer_calls_stub(profile);
    program.insert(program.end(), body.begin(), body.end());
    if (program.size() > BPF_MAXINSNS) {
        return core::invalid(core::format("linux.seccomp: %zu instructions; the kernel takes %d",
                                          program.size(), BPF_MAXINSNS));
    }
    return program;
}

namespace {

// Where the blocks of all architectures lead, in the order of the program's end.
enum Verdict : size_t { kAskDomain, kAskSocketcall, kDenyVsock, kNoCall, kVerdicts };

// A program whose jumps to a verdict are filled in when it is known where that lies.
class OwnFilter {
 public:
    void add(sock_filter instruction) { program_.push_back(instruction); }
    void jump_if(uint16_t test, uint32_t value, Verdict verdict) {
        fixes_.push_back({program_.size(), verdict});
        add(jump(test, value, 0, 0));
    }
    void place(Verdict verdict) { places_[verdict] = program_.size(); }
    std::vector<sock_filter> finish() {
        for (const Fix& fix : fixes_)
            program_[fix.at].jt = static_cast<uint8_t>(places_[fix.verdict] - fix.at - 1);
        return std::move(program_);
    }

 private:
    struct Fix {
        size_t at;
        Verdict verdict;
    };
    std::vector<sock_filter> program_;
    std::vector<Fix> fixes_;
    size_t places_[kVerdicts] = {};
};

// Numbers of each architecture by hand: the headers have those of one only. Those that this kernel runs, and
// its own first: the kernel walks the program for every call of both when it is installed. What comes from
// any other is denied.
struct Calls {
    uint32_t audit;
    uint32_t socket;
    uint32_t socketcall;  // 0: none
    uint8_t length;       // instructions of its block
};
constexpr Calls kCalls[] = {
#if defined(__aarch64__)
    {AUDIT_ARCH_AARCH64, 198, 0, 4}, {AUDIT_ARCH_ARM, 281, 0, 4},  // EABI has no socketcall
#else
    {AUDIT_ARCH_X86_64, 41, 0, 5},
    {AUDIT_ARCH_I386, 359, 102, 5},
#endif
};

}  // namespace

std::vector<sock_filter> compile_own_filter() {
    constexpr uint32_t kIoUringSetup = 425;  // everywhere
    constexpr uint32_t kSocketcallSocket = 1;
    constexpr size_t kFirstArgument =
        offsetof(seccomp_data, args);  // its low half: little-endian machines only
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

    OwnFilter filter;
    filter.add(load(offsetof(seccomp_data, arch)));
    constexpr size_t kCount = sizeof kCalls / sizeof kCalls[0];
    size_t skipped = 1;  // the verdict on what is none of these
    for (size_t i = 0; i < kCount; ++i) {
        filter.add(jump(BPF_JEQ, kCalls[i].audit, static_cast<uint8_t>(kCount - 1 - i + skipped), 0));
        skipped += kCalls[i].length;
    }
    filter.add(answer(deny(ENOSYS)));
    for (const Calls& calls : kCalls) {
        filter.add(load(offsetof(seccomp_data, nr)));
        if (calls.audit == AUDIT_ARCH_X86_64) filter.jump_if(BPF_JGE, kX32Bit, kNoCall);
        filter.jump_if(BPF_JEQ, kIoUringSetup, kNoCall);
        filter.jump_if(BPF_JEQ, calls.socket, kAskDomain);
        if (calls.socketcall != 0) filter.jump_if(BPF_JEQ, calls.socketcall, kAskSocketcall);
        filter.add(answer(kAllow));
    }
    filter.place(kAskDomain);
    filter.add(load(kFirstArgument));
    filter.jump_if(BPF_JEQ, AF_VSOCK, kDenyVsock);
    filter.add(answer(kAllow));
    filter.place(kAskSocketcall);
    filter.add(load(kFirstArgument));
    filter.jump_if(BPF_JEQ, kSocketcallSocket, kNoCall);
    filter.add(answer(kAllow));
    filter.place(kDenyVsock);
    filter.add(answer(deny(EAFNOSUPPORT)));
    filter.place(kNoCall);
    filter.add(answer(deny(ENOSYS)));
    return filter.finish();
}

}  // namespace berth::sys
