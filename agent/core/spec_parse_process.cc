// process: who runs, with what.
#include <algorithm>
#include <unordered_map>

#include "agent/core/caps.h"
#include "agent/core/cpu_list.h"
#include "agent/core/limits.h"
#include "agent/core/spec_parse.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

void parse_console_size(JsonObject& process, ProcessSpec& out) {
    JsonObject size(process.report(), process.find("consoleSize"), process.path_of("consoleSize"));
    constexpr uint32_t kMost = 65'535;  // struct winsize has 16 bits
    size.read_between("height", out.console_size.height, 0u, kMost);
    size.read_between("width", out.console_size.width, 0u, kMost);
}

void parse_user(JsonObject& process, ProcessSpec& out) {
    JsonObject user(process.report(), process.find("user"), process.path_of("user"));
    constexpr uint32_t kMost = 4'294'967'294;  // (uid_t)-1 means "unchanged" to the kernel
    user.read_between("uid", out.user.uid, 0u, kMost);
    user.read_between("gid", out.user.gid, 0u, kMost);
    if (user.find("umask")) {
        uint32_t umask = 0;
        user.read_between("umask", umask, 0u, 0777u);
        out.user.umask = umask;
    }
    std::string username;  // Windows only
    user.read("username", username);
    if (!username.empty()) user.fail("username", "is for Windows only");
    user.each("additionalGids", limits::kGroups, [&](const JsonValue& value, const std::string& path) {
        uint32_t gid = json_uint32(user.report(), value, path);
        if (gid > kMost) user.report().fail(invalid(path + ": must be a number from 0 to 4294967294"));
        out.user.additional_gids.push_back(gid);
    });
}

// The kernel keeps both "A=1" and "A=2" and programs take either; Go runtimes let the last one win.
std::vector<std::string> last_of_each(std::vector<std::string> variables) {
    std::unordered_map<std::string_view, size_t> last;
    for (size_t i = 0; i < variables.size(); ++i) {
        std::string_view entry = variables[i];
        last[entry.substr(0, entry.find('='))] = i;
    }
    std::vector<std::string> kept;
    for (size_t i = 0; i < variables.size(); ++i) {
        std::string_view entry = variables[i];
        if (last[entry.substr(0, entry.find('='))] == i) kept.push_back(variables[i]);
    }
    return kept;
}

void parse_arguments(JsonObject& process, ProcessSpec& out) {
    process.read("args", out.args, limits::kArgvEnvpEntries);
    process.read("env", out.env, limits::kArgvEnvpEntries);
    if (process.report().failed()) return;
    std::string command_line;  // Windows only
    process.read("commandLine", command_line);
    if (!command_line.empty()) process.fail("commandLine", "is for Windows only");
    if (out.args.empty()) process.fail("args", "must name a program");
    if (!out.args.empty() && out.args[0].empty()) process.fail("args[0]", "must not be empty");
    size_t bytes = 0;
    for (const std::string& argument : out.args) bytes += argument.size() + 1 + sizeof(char*);
    for (size_t i = 0; i < out.env.size(); ++i) {
        bytes += out.env[i].size() + 1 + sizeof(char*);
        size_t equals = out.env[i].find('=');
        if (equals == std::string::npos || equals == 0)
            return process.fail(format("env[%zu]", i), "must be NAME=value, is " + quoted(out.env[i]));
    }
    if (bytes > limits::kArgvEnvpBytes)
        process.fail(
            "args",
            format("and env take %zu bytes, more than the limit of %zu", bytes, limits::kArgvEnvpBytes),
            Code::kResourceExhausted);
    out.env = last_of_each(std::move(out.env));
}

void parse_capability_set(JsonObject& sets, std::string_view key, uint64_t& mask, ProcessSpec& out) {
    constexpr size_t kLimit = 256;
    sets.each(key, kLimit, [&](const JsonValue& value, const std::string& path) {
        std::string name = json_string(sets.report(), value, path);
        if (sets.report().failed()) return;
        if (auto number = capability_number(name))
            mask |= capability_bit(*number);
        else
            out.warnings.push_back(path + ": unknown capability " + quoted(name));
    });
}

std::string first_capability(uint64_t mask) {
    uint32_t number = 0;
    while (!(mask & capability_bit(number))) ++number;
    return capability_name(number);
}

void parse_capabilities(JsonObject& process, ProcessSpec& out) {
    JsonObject sets(process.report(), process.find("capabilities"), process.path_of("capabilities"));
    if (!sets.present()) return;
    CapabilitySets parsed;
    parse_capability_set(sets, "bounding", parsed.bounding, out);
    parse_capability_set(sets, "effective", parsed.effective, out);
    parse_capability_set(sets, "permitted", parsed.permitted, out);
    parse_capability_set(sets, "inheritable", parsed.inheritable, out);
    parse_capability_set(sets, "ambient", parsed.ambient, out);
    // What capset(2) would refuse. (Ambient ones that cannot be raised are dropped, as by runc.)
    if (uint64_t excess = parsed.effective & ~parsed.permitted)
        sets.fail("effective", first_capability(excess) + " is not in the permitted set");
    if (uint64_t excess = parsed.inheritable & ~parsed.bounding)
        sets.fail("inheritable", first_capability(excess) + " is not in the bounding set");
    out.capabilities = parsed;
}

void parse_rlimits(JsonObject& process, ProcessSpec& out) {
    constexpr size_t kLimit = 64;
    JsonReport& report = process.report();
    process.each("rlimits", kLimit, [&](const JsonValue& value, const std::string& path) {
        JsonObject in(report, &value, path);
        std::string type;
        Rlimit limit;
        in.read("type", type);
        in.read("soft", limit.soft);
        in.read("hard", limit.hard);
        auto number = rlimit_number(type);
        if (!number) return in.fail("type", "unknown resource limit " + quoted(type));
        limit.resource = *number;
        if (limit.soft > limit.hard)
            in.fail("soft", format("%llu is more than the hard limit %llu",
                                   static_cast<unsigned long long>(limit.soft),
                                   static_cast<unsigned long long>(limit.hard)));
        for (const Rlimit& other : out.rlimits)
            if (other.resource == limit.resource) in.fail("type", type + " is given twice");
        out.rlimits.push_back(limit);
    });
}

constexpr std::string_view kPolicies[] = {"SCHED_OTHER", "SCHED_FIFO", "SCHED_RR",      "SCHED_BATCH",
                                          "SCHED_ISO",   "SCHED_IDLE", "SCHED_DEADLINE"};
constexpr struct {
    std::string_view name;
    uint64_t bit;
} kSchedulerFlags[] = {
    {"SCHED_FLAG_RESET_ON_FORK", 0x01},  {"SCHED_FLAG_RECLAIM", 0x02},
    {"SCHED_FLAG_DL_OVERRUN", 0x04},     {"SCHED_FLAG_KEEP_POLICY", 0x08},
    {"SCHED_FLAG_KEEP_PARAMS", 0x10},    {"SCHED_FLAG_UTIL_CLAMP_MIN", 0x20},
    {"SCHED_FLAG_UTIL_CLAMP_MAX", 0x40},
};

void check_scheduler(JsonObject& in, const SchedulerAttributes& attributes, std::string_view policy) {
    // Not "nice": the kernel takes no notice of it with the other policies, and runc's specs have it there.
    bool priority_allowed = policy == "SCHED_FIFO" || policy == "SCHED_RR";
    if (attributes.priority != 0 && !priority_allowed)
        in.fail("priority", "is for SCHED_FIFO and SCHED_RR only");
    bool deadline = attributes.runtime_ns != 0 || attributes.deadline_ns != 0 || attributes.period_ns != 0;
    if (deadline && policy != "SCHED_DEADLINE")
        in.fail("runtime", "deadline and period are for SCHED_DEADLINE only");
}

void parse_scheduler(JsonObject& process, ProcessSpec& out) {
    JsonObject in(process.report(), process.find("scheduler"), process.path_of("scheduler"));
    if (!in.present()) return;
    SchedulerAttributes attributes;
    std::string policy;
    in.read("policy", policy);
    const auto* known = std::find(std::begin(kPolicies), std::end(kPolicies), policy);
    if (known == std::end(kPolicies) || policy == "SCHED_ISO")
        return in.fail("policy", "unknown policy " + quoted(policy));
    attributes.policy = static_cast<uint32_t>(known - std::begin(kPolicies));
    in.read_between("nice", attributes.nice, -20, 19);
    in.read_between("priority", attributes.priority, 0u, 99u);
    in.read("runtime", attributes.runtime_ns);
    in.read("deadline", attributes.deadline_ns);
    in.read("period", attributes.period_ns);
    in.each("flags", std::size(kSchedulerFlags), [&](const JsonValue& value, const std::string& path) {
        std::string name = json_string(in.report(), value, path);
        uint64_t bit = 0;
        for (const auto& flag : kSchedulerFlags)
            if (flag.name == name) bit = flag.bit;
        if (bit == 0) in.report().fail(invalid(path + ": unknown flag " + quoted(name)));
        attributes.flags |= bit;
    });
    check_scheduler(in, attributes, policy);
    out.scheduler = attributes;
}

void parse_affinity(JsonObject& process, ProcessSpec& out) {
    JsonObject in(process.report(), process.find("execCPUAffinity"), process.path_of("execCPUAffinity"));
    const std::pair<std::string_view, std::vector<uint64_t>*> lists[] = {{"initial", &out.affinity_initial},
                                                                         {"final", &out.affinity_final}};
    for (const auto& [key, mask] : lists) {
        std::string text;
        in.read(key, text);
        if (text.empty() || in.report().failed()) continue;
        auto parsed = parse_cpu_list(text, limits::kCpus);
        if (!parsed) return in.fail(key, quoted(text) + " is not a list of CPUs");
        *mask = std::move(*parsed);
    }
}

void parse_io_priority(JsonObject& process, ProcessSpec& out) {
    JsonObject in(process.report(), process.find("ioPriority"), process.path_of("ioPriority"));
    if (!in.present()) return;
    constexpr std::string_view kClasses[] = {"IOPRIO_CLASS_NONE", "IOPRIO_CLASS_RT", "IOPRIO_CLASS_BE",
                                             "IOPRIO_CLASS_IDLE"};
    constexpr uint32_t kClassShift = 13;
    std::string name;
    uint32_t level = 0;
    in.read("class", name);
    in.read_between("priority", level, 0u, 7u);
    const auto* known = std::find(std::begin(kClasses) + 1, std::end(kClasses), name);
    if (known == std::end(kClasses)) return in.fail("class", "unknown class " + quoted(name));
    out.io_priority = static_cast<uint32_t>(known - std::begin(kClasses)) << kClassShift | level;
}

}  // namespace

void parse_process(JsonObject& in, ProcessSpec& out) {
    in.read("terminal", out.terminal);
    parse_console_size(in, out);
    parse_user(in, out);
    parse_arguments(in, out);
    in.read("cwd", out.cwd);
    if (in.present() && out.cwd.empty()) in.fail("cwd", "missing");
    check_absolute(in.report(), in.path_of("cwd"), out.cwd);
    parse_capabilities(in, out);
    parse_rlimits(in, out);
    in.read("noNewPrivileges", out.no_new_privileges);
    if (in.find("oomScoreAdj")) {
        int32_t adjust = 0;
        in.read_between("oomScoreAdj", adjust, -1000, 1000);
        out.oom_score_adj = adjust;
    }
    parse_scheduler(in, out);
    parse_io_priority(in, out);
    parse_affinity(in, out);
    in.read("apparmorProfile", out.apparmor_profile);
    in.read("selinuxLabel", out.selinux_label);
}

}  // namespace berth::core
