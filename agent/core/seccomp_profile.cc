#include "agent/core/seccomp_profile.h"

#include <linux/seccomp.h>

#include <algorithm>
#include <cerrno>

#include "agent/core/limits.h"
#include "agent/core/text.h"

// Linux 5.19; not in every header.
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

namespace berth::core {

namespace {

constexpr uint64_t kErrnoMax = 4095;  // the kernel's MAX_ERRNO
constexpr uint64_t kTraceMessageMax = 0xFFFF;
constexpr uint32_t kArgumentIndexMax = 5;

struct ActionName {
    std::string_view name;
    SeccompAction action;
};
constexpr ActionName kActions[] = {
    {"SCMP_ACT_KILL", SeccompAction::kKillThread},
    {"SCMP_ACT_KILL_THREAD", SeccompAction::kKillThread},
    {"SCMP_ACT_KILL_PROCESS", SeccompAction::kKillProcess},
    {"SCMP_ACT_TRAP", SeccompAction::kTrap},
    {"SCMP_ACT_ERRNO", SeccompAction::kErrno},
    {"SCMP_ACT_TRACE", SeccompAction::kTrace},
    {"SCMP_ACT_LOG", SeccompAction::kLog},
    {"SCMP_ACT_ALLOW", SeccompAction::kAllow},
    {"SCMP_ACT_NOTIFY", SeccompAction::kNotify},
};

struct OperatorName {
    std::string_view name;
    SeccompOperator op;
};
constexpr OperatorName kOperators[] = {
    {"SCMP_CMP_NE", SeccompOperator::kNotEqual},           {"SCMP_CMP_LT", SeccompOperator::kLess},
    {"SCMP_CMP_LE", SeccompOperator::kLessOrEqual},        {"SCMP_CMP_EQ", SeccompOperator::kEqual},
    {"SCMP_CMP_GE", SeccompOperator::kGreaterOrEqual},     {"SCMP_CMP_GT", SeccompOperator::kGreater},
    {"SCMP_CMP_MASKED_EQ", SeccompOperator::kMaskedEqual},
};

struct FlagName {
    std::string_view name;
    uint32_t flag;
};
constexpr FlagName kFlags[] = {
    {"SECCOMP_FILTER_FLAG_TSYNC", SECCOMP_FILTER_FLAG_TSYNC},
    {"SECCOMP_FILTER_FLAG_LOG", SECCOMP_FILTER_FLAG_LOG},
    {"SECCOMP_FILTER_FLAG_SPEC_ALLOW", SECCOMP_FILTER_FLAG_SPEC_ALLOW},
    {"SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV", SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV},
};

constexpr std::string_view kArchitectures[] = {
    "SCMP_ARCH_X86",     "SCMP_ARCH_X86_64",   "SCMP_ARCH_X32",         "SCMP_ARCH_ARM",
    "SCMP_ARCH_AARCH64", "SCMP_ARCH_MIPS",     "SCMP_ARCH_MIPS64",      "SCMP_ARCH_MIPS64N32",
    "SCMP_ARCH_MIPSEL",  "SCMP_ARCH_MIPSEL64", "SCMP_ARCH_MIPSEL64N32", "SCMP_ARCH_PPC",
    "SCMP_ARCH_PPC64",   "SCMP_ARCH_PPC64LE",  "SCMP_ARCH_S390",        "SCMP_ARCH_S390X",
    "SCMP_ARCH_PARISC",  "SCMP_ARCH_PARISC64", "SCMP_ARCH_RISCV64",     "SCMP_ARCH_LOONGARCH64",
    "SCMP_ARCH_M68K",    "SCMP_ARCH_SH",       "SCMP_ARCH_SHEB",
};

std::string_view action_name(SeccompAction action) {
    std::string_view name;
    for (const ActionName& known : kActions) {
        if (known.action == action) name = known.name;  // the last of two is the precise one
    }
    return name;
}

// Reads the action `key` and its errno `errno_key`.
SeccompVerdict read_verdict(JsonObject& in, std::string_view key, std::string_view errno_key) {
    SeccompVerdict verdict;
    std::string text;
    in.read(key, text);
    const ActionName* known = std::find_if(std::begin(kActions), std::end(kActions),
                                           [&text](const ActionName& action) { return action.name == text; });
    if (known == std::end(kActions)) {
        in.fail(key, text.empty() ? "is required" : "unknown action " + quoted(text));
    } else {
        verdict.action = known->action;
    }
    bool carries = verdict.action == SeccompAction::kErrno || verdict.action == SeccompAction::kTrace;
    std::optional<uint32_t> data;
    in.read(errno_key, data);
    if (data && !carries && !in.report().failed()) {
        in.fail(errno_key, "only SCMP_ACT_ERRNO and SCMP_ACT_TRACE take one");
    }
    uint64_t most = verdict.action == SeccompAction::kErrno ? kErrnoMax : kTraceMessageMax;
    if (data && carries && *data > most) {
        in.fail(errno_key, format("%u is above %llu", *data, static_cast<unsigned long long>(most)));
    }
    if (carries) verdict.data = static_cast<uint16_t>(data.value_or(EPERM));
    return verdict;
}

SeccompArgument read_argument(JsonReport& report, const JsonValue& value, std::string path) {
    SeccompArgument argument;
    JsonObject in(report, &value, std::move(path));
    in.read_between("index", argument.index, uint32_t{0}, kArgumentIndexMax);
    in.read("value", argument.value);
    in.read("valueTwo", argument.value_two);
    std::string op;
    in.read("op", op);
    const OperatorName* known = std::find_if(std::begin(kOperators), std::end(kOperators),
                                             [&op](const OperatorName& name) { return name.name == op; });
    if (known == std::end(kOperators)) {
        in.fail("op", op.empty() ? "is required" : "unknown operator " + quoted(op));
    } else {
        argument.op = known->op;
    }
    if (in.find("index") == nullptr) in.fail("index", "is required");
    return argument;
}

bool names_an_index_twice(const std::vector<SeccompArgument>& arguments) {
    uint32_t seen = 0;
    for (const SeccompArgument& argument : arguments) {
        if ((seen >> argument.index & 1) != 0) return true;
        seen |= 1u << argument.index;
    }
    return false;
}

void read_rule(JsonReport& report, const JsonValue& value, std::string path, SeccompProfile& profile) {
    SeccompRule rule;
    rule.path = path;
    JsonObject in(report, &value, std::move(path));
    in.read("names", rule.names, limits::kSeccompNames);
    rule.verdict = read_verdict(in, "action", "errnoRet");
    in.each("args", limits::kSeccompArguments, [&](const JsonValue& element, std::string element_path) {
        rule.arguments.push_back(read_argument(report, element, std::move(element_path)));
    });
    if (rule.names.empty()) in.fail("names", "names no system call");
    if (report.failed()) return;
    if (!names_an_index_twice(rule.arguments)) {
        profile.rules.push_back(std::move(rule));
        return;
    }
    for (const SeccompArgument& argument : rule.arguments) {
        SeccompRule part = rule;
        part.arguments = {argument};
        profile.rules.push_back(std::move(part));
    }
}

bool has_notify(const SeccompProfile& profile) {
    for (const SeccompRule& rule : profile.rules)
        if (rule.verdict.action == SeccompAction::kNotify) return true;
    return false;
}

// Without a rule that notifies the listener is without effect, as is the flag,
// which the kernel would refuse.
void read_listener(JsonObject& in, SeccompProfile& profile) {
    in.read("listenerPath", profile.listener_path);
    in.read("listenerMetadata", profile.listener_metadata);
    if (in.report().failed()) return;
    if (profile.listener_path.empty() && !profile.listener_metadata.empty())
        in.fail("listenerMetadata", "is set without a listenerPath");
    if (profile.fallback.action == SeccompAction::kNotify)
        in.fail("defaultAction",
                "SCMP_ACT_NOTIFY cannot be the default: the "
                "set-up itself would wait for an answer");
    if (!has_notify(profile)) {
        profile.listener_path.clear();
        profile.flags &= ~uint32_t{SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV};
        return;
    }
    constexpr size_t kSocketPathBytes = 107;  // sun_path without its NUL
    if (profile.listener_path.empty()) return in.fail("listenerPath", "missing for SCMP_ACT_NOTIFY");
    if (profile.listener_path[0] != '/')
        return in.fail("listenerPath", "must be an absolute path, is " + quoted(profile.listener_path));
    if (profile.listener_path.size() > kSocketPathBytes)
        return in.fail("listenerPath", "longer than 107 bytes");
    // How the listener itself is handed over.
    for (const SeccompRule& rule : profile.rules) {
        if (rule.verdict.action != SeccompAction::kNotify) continue;
        for (const std::string& name : rule.names)
            if (name == "write" || name == "sendmsg")
                return in.report().fail(invalid(rule.path + ".action: SCMP_ACT_NOTIFY on " + quoted(name) +
                                                " would make the set-up wait for itself"));
    }
}

void read_flags(JsonObject& in, SeccompProfile& profile) {
    if (in.find("flags") == nullptr) {
        profile.flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        return;
    }
    std::vector<std::string> flags;
    in.read("flags", flags, std::size(kFlags) * 2);
    for (const std::string& flag : flags) {
        const FlagName* known = std::find_if(std::begin(kFlags), std::end(kFlags),
                                             [&flag](const FlagName& name) { return name.name == flag; });
        if (known == std::end(kFlags)) {
            in.fail("flags", "unknown flag " + quoted(flag));
        } else {
            profile.flags |= known->flag;
        }
    }
}

void read_architectures(JsonObject& in, SeccompProfile& profile) {
    std::vector<std::string>& names = profile.architectures;
    in.read("architectures", names, std::size(kArchitectures) * 2);
    for (const std::string& name : names) {
        if (std::find(std::begin(kArchitectures), std::end(kArchitectures), name) ==
            std::end(kArchitectures)) {
            in.fail("architectures", "unknown architecture " + quoted(name));
        }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace

Result<SeccompProfile> parse_seccomp(const rapidjson::Value& value, std::string_view json_path,
                                     std::vector<std::string>* skipped) {
    SeccompProfile profile;
    JsonReport report;
    {
        JsonObject in(report, &value, std::string(json_path));
        profile.fallback = read_verdict(in, "defaultAction", "defaultErrnoRet");
        read_architectures(in, profile);
        read_flags(in, profile);
        in.each("syscalls", limits::kSeccompRules, [&](const JsonValue& element, std::string path) {
            read_rule(report, element, std::move(path), profile);
        });
        if (profile.rules.size() > limits::kSeccompRules) {
            in.fail("syscalls", format("more than %zu rules", limits::kSeccompRules),
                    Code::kResourceExhausted);
        }
        read_listener(in, profile);
    }
    BERTH_TRY(report.status());
    if (skipped != nullptr) {
        for (std::string& path : report.ignored()) skipped->push_back(std::move(path));
    }
    return profile;
}

std::string seccomp_cache_key(const SeccompProfile& profile) {
    auto verdict_text = [](const SeccompVerdict& verdict) {
        return std::string(action_name(verdict.action)) + "(" + std::to_string(verdict.data) + ")";
    };
    std::string key = "default " + verdict_text(profile.fallback);
    for (const std::string& architecture : profile.architectures) key += " " + architecture;
    key += "\n";
    for (const SeccompRule& rule : profile.rules) {
        key += verdict_text(rule.verdict);
        for (const SeccompArgument& argument : rule.arguments) {
            key += format(" %u%c%llx:%llx", argument.index,
                          static_cast<char>('a' + static_cast<int>(argument.op)),
                          static_cast<unsigned long long>(argument.value),
                          static_cast<unsigned long long>(argument.value_two));
        }
        // Quoted, so that no name can look like another rule.
        for (const std::string& name : rule.names) key += " \"" + name + "\"";
        key += "\n";
    }
    return key;
}

}  // namespace berth::core
