// linux.seccomp of a spec, checked. sys/seccomp.h compiles it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/json.h"
#include "agent/core/result.h"

namespace berth::core {

enum class SeccompAction : uint8_t {
    kKillThread,  // SCMP_ACT_KILL is another name for it
    kKillProcess,
    kTrap,
    kErrno,
    kTrace,
    kLog,
    kAllow,
    kNotify,  // asks whoever listens at listener_path
};

// An action and what it carries: the errno of kErrno, the message of kTrace; 0 for the others.
struct SeccompVerdict {
    SeccompAction action = SeccompAction::kErrno;
    uint16_t data = 0;
    bool operator==(const SeccompVerdict&) const = default;
};

enum class SeccompOperator : uint8_t {
    kNotEqual,
    kLess,
    kLessOrEqual,
    kEqual,
    kGreaterOrEqual,
    kGreater,
    kMaskedEqual,  // (argument & value) == value_two
};

struct SeccompArgument {
    uint32_t index = 0;  // 0 to 5
    SeccompOperator op = SeccompOperator::kEqual;
    uint64_t value = 0;
    uint64_t value_two = 0;
};

// One rule: any of these calls, when all of the arguments match. (A spec's rule that names an argument index
// twice has become one rule for each argument, as runc and crun read it: any of them matches.)
struct SeccompRule {
    std::vector<std::string> names;
    SeccompVerdict verdict;
    std::vector<SeccompArgument> arguments;
    std::string path;  // for errors: "linux.seccomp.syscalls[3]"
};

struct SeccompProfile {
    SeccompVerdict fallback;                 // defaultAction
    std::vector<std::string> architectures;  // "SCMP_ARCH_X86_64", known names, sorted, each once
    uint32_t flags = 0;                      // SECCOMP_FILTER_FLAG_*
    std::vector<SeccompRule> rules;
    std::string listener_path;      // absolute; there when a rule notifies, else empty
    std::string listener_metadata;  // handed on

    bool notifies() const { return !listener_path.empty(); }
};

// Reads linux.seccomp; `json_path` is for errors. INVALID_ARGUMENT for an
// unknown action, operator, flag or architecture, an errnoRet that the action
// has no use for or that is too large, a rule without names, an argument index
// above 5; SCMP_ACT_NOTIFY as the default, without a listenerPath, or on a call
// that the set-up makes once the filter is loaded (it would wait for itself).
// As runc: flags absent means SECCOMP_FILTER_FLAG_SPEC_ALLOW, an empty list
// none; the errno is EPERM when the spec names none; listenerPath is without
// effect when no action notifies. Names of system calls are not judged here.
// Properties that are not known are skipped; their paths are appended to
// `skipped` when that is not null.
Result<SeccompProfile> parse_seccomp(const rapidjson::Value& value, std::string_view json_path,
                                     std::vector<std::string>* skipped = nullptr);

// A text that two profiles share exactly when they compile to the same program.
std::string seccomp_cache_key(const SeccompProfile& profile);

}  // namespace berth::core
