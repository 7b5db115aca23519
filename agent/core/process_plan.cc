#include "agent/core/process_plan.h"

#include <algorithm>

#include "agent/core/caps.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint32_t kDefaultUmask = 0022;  // crun's

bool is_unconfined(std::string_view profile) {
    return profile.empty() || profile == "unconfined";
}

constexpr std::string_view kStreamNames[] = {"stdin", "stdout", "stderr"};

void emit_stream(LaunchPlanBuilder& builder, const StdioStream& stream, uint32_t fd) {
    int32_t slot = kNoSlot;
    if (stream.mode != StdioMode::kNull) slot = builder.slot(stdio_request(stream, fd));
    PlanStep& step = builder.step(PlanOp::kStdio, kStreamNames[fd]);
    step.a = fd;
    step.slot = slot;
}

// Attributes that only root may raise, while the process still is.
void emit_attributes_of_process(LaunchPlanBuilder& builder, const ProcessPlanInput& input) {
    const ProcessSpec& process = *input.process;
    builder.step(PlanOp::kSessionKeyring, "session keyring").s1 =
        builder.string("_ses." + input.container_id);
    if (process.scheduler) {
        PlanString attributes = builder.bytes(std::as_bytes(std::span(&*process.scheduler, 1)));
        builder.step(PlanOp::kScheduler, "process.scheduler").s1 = attributes;
    }
    if (process.io_priority) builder.step(PlanOp::kIoPriority, "process.ioPriority").a = *process.io_priority;
    if (process.oom_score_adj)
        builder.step(PlanOp::kOomScoreAdj, "process.oomScoreAdj").a =
            static_cast<uint64_t>(static_cast<int64_t>(*process.oom_score_adj));
    for (const Rlimit& limit : process.rlimits) {
        std::string label = "process.rlimits (" + std::string(rlimit_name(limit.resource)) + ")";
        PlanStep& step = builder.step(PlanOp::kRlimit, label);
        step.a = limit.resource;
        step.b = limit.soft;
        step.c = limit.hard;
    }
    if (input.memory_policy) {
        PlanString nodes = builder.bytes(std::as_bytes(std::span(input.memory_policy->nodes)));
        PlanStep& step = builder.step(PlanOp::kMemoryPolicy, "linux.memoryPolicy");
        step.a = input.memory_policy->mode;
        step.s1 = nodes;
    }
    if (input.personality) builder.step(PlanOp::kPersonality, "linux.personality").a = *input.personality;
    if (!is_unconfined(process.apparmor_profile)) {
        PlanString label = builder.string("exec " + process.apparmor_profile);
        PlanString file = builder.string("apparmor/exec");
        PlanStep& step = builder.step(PlanOp::kLsmLabel, "process.apparmorProfile");
        step.s1 = label;
        step.s2 = file;
    }
    if (!process.selinux_label.empty()) {
        PlanString label = builder.string(process.selinux_label);
        PlanString file = builder.string("exec");
        PlanStep& step = builder.step(PlanOp::kLsmLabel, "process.selinuxLabel");
        step.s1 = label;
        step.s2 = file;
    }
}

void emit_filter(LaunchPlanBuilder& builder, std::string_view label, const SeccompProgram& program) {
    int32_t slot = program.notify ? kSlotSync : kNoSlot;
    PlanString filter = builder.bytes(program.filter);
    PlanStep& step = builder.step(PlanOp::kSeccomp, label);
    step.a = program.flags;
    step.s1 = filter;
    step.slot = slot;
}

// Ours first: a filter loaded later is asked first, but the strictest verdict of all wins, and a profile that
// denies seccomp(2) must not be able to keep ours out.
void emit_filters(LaunchPlanBuilder& builder, const ProcessPlanInput& input) {
    if (!input.allow_vsock) emit_filter(builder, "seccomp filter of the agent", input.seccomp->own);
    if (input.seccomp->profile) emit_filter(builder, "linux.seccomp", *input.seccomp->profile);
}

// Bounding set, ids, capability sets: in the order in which each is still allowed.
void emit_identity(LaunchPlanBuilder& builder, const ProcessPlanInput& input) {
    const UserSpec& user = input.process->user;
    const CapabilitySets& sets = input.capabilities;
    uint64_t known = capabilities_up_to(input.facts->last_cap);
    builder.step(PlanOp::kBoundingCaps, "process.capabilities.bounding").a = sets.bounding & known;
    PlanString groups;
    if (!user.additional_gids.empty()) groups = builder.bytes(std::as_bytes(std::span(user.additional_gids)));
    builder.step(PlanOp::kSetgroups, "process.user.additionalGids").s1 = groups;
    PlanStep& ids = builder.step(PlanOp::kUser, "process.user");
    ids.a = user.uid;
    ids.b = user.gid;
    ids.c = 1;
    PlanStep& capset = builder.step(PlanOp::kCapset, "process.capabilities");
    capset.a = sets.effective & known;
    capset.b = sets.permitted & known;
    capset.c = sets.inheritable & known;
    // The kernel raises ambient only what is permitted and inheritable; runc warns about the rest and goes
    // on.
    builder.step(PlanOp::kAmbientCaps, "process.capabilities.ambient").a =
        sets.ambient & sets.permitted & sets.inheritable & known;
}

}  // namespace

Status check_process(const ProcessPlanInput& input) {
    const ProcessSpec& process = *input.process;
    if (!is_unconfined(process.apparmor_profile) && !input.facts->apparmor)
        return make_error(Code::kFailedPrecondition, "process.apparmorProfile: the guest has no AppArmor");
    if (!process.selinux_label.empty() && !input.facts->selinux)
        return make_error(Code::kFailedPrecondition, "process.selinuxLabel: the guest has no SELinux");
    if (!input.allow_vsock && input.seccomp->own.filter.empty())
        return make_error(Code::kInternal, "the agent's own seccomp filter is missing");
    if (input.has_profile != input.seccomp->profile.has_value() ||
        (input.has_profile && input.seccomp->profile->filter.empty()))
        return make_error(Code::kInternal, "linux.seccomp: the compiled filter is missing");
    std::vector<uint32_t> targets;
    for (const ExtraFd& extra : input.stdio->extra) {
        if (extra.target < 3 || extra.target > kPlanExtraFdMax)
            return invalid(format("extra descriptor %u: must be from 3 to %llu", extra.target,
                                  static_cast<unsigned long long>(kPlanExtraFdMax)));
        if (std::find(targets.begin(), targets.end(), extra.target) != targets.end())
            return invalid(format("extra descriptor %u: given twice", extra.target));
        targets.push_back(extra.target);
    }
    return ok();
}

void emit_affinity(LaunchPlanBuilder& builder, std::string_view label, const std::vector<uint64_t>& mask) {
    PlanString bytes;
    if (!mask.empty()) bytes = builder.bytes(std::as_bytes(std::span(mask)));
    builder.step(PlanOp::kAffinity, label).s1 = bytes;
}

FdRequest stdio_request(const StdioStream& stream, uint32_t fd) {
    constexpr FdSource kSources[] = {FdSource::kStdin, FdSource::kStdout, FdSource::kStderr};
    FdRequest request;
    request.source = stream.mode == StdioMode::kPipe ? kSources[fd] : FdSource::kPassed;
    request.ns_type = stream.mode == StdioMode::kPassed ? stream.passed_index : 0;
    request.label = kStreamNames[fd];
    return request;
}

void emit_pty(LaunchPlanBuilder& builder, const ProcessPlanInput& input) {
    if (!input.process->terminal) return;
    PlanStep& step = builder.step(PlanOp::kPtyOpen, "process.terminal");
    step.a = input.process->console_size.height;
    step.b = input.process->console_size.width;
    step.c = input.process->user.uid;
    step.flags = input.stdio->plain_newlines ? kPlainNewlines : 0;
}

void emit_stdio(LaunchPlanBuilder& builder, const ProcessPlanInput& input) {
    if (input.process->terminal) {
        builder.step(PlanOp::kPtyAttach, "process.terminal");
    } else {
        for (uint32_t fd = 0; fd < 3; ++fd) emit_stream(builder, input.stdio->streams[fd], fd);
        builder.step(PlanOp::kStdioOwner, "owner of stdio").a = input.process->user.uid;
    }
    for (const ExtraFd& extra : input.stdio->extra) {
        std::string label = format("extra descriptor %u", extra.target);
        FdRequest request;
        request.source = FdSource::kPassed;
        request.ns_type = extra.passed_index;
        request.label = label;
        int32_t slot = builder.slot(std::move(request));
        PlanStep& step = builder.step(PlanOp::kExtraFd, label);
        step.a = extra.target;
        step.slot = slot;
    }
}

// runc's order: without no_new_privs only CAP_SYS_ADMIN may load a filter, so that it comes before the
// capabilities go; with it, last, so that a profile need not allow what the set-up does.
void emit_process(LaunchPlanBuilder& builder, const ProcessPlanInput& input) {
    const ProcessSpec& process = *input.process;
    emit_attributes_of_process(builder, input);
    // runc's: what "initial" set is for the set-up alone.
    if (input.is_exec && (!process.affinity_initial.empty() || !process.affinity_final.empty())) {
        bool reset = process.affinity_final.empty();
        emit_affinity(builder, reset ? "process.execCPUAffinity (reset)" : "process.execCPUAffinity.final",
                      process.affinity_final);
    }
    builder.step(PlanOp::kHome, "HOME").a = process.user.uid;
    // As root: it may have to be made, and it may be a folder that only root may enter (runc).
    PlanString cwd = builder.string(process.cwd);
    PlanStep& chdir = builder.step(PlanOp::kCwd, "process.cwd");
    chdir.s1 = cwd;
    chdir.b = input.make_cwd ? 1 : 0;
    // After it: the umask is for what the process makes.
    builder.step(PlanOp::kUmask, "process.user.umask").a = process.user.umask.value_or(kDefaultUmask);
    if (input.no_new_privileges) builder.step(PlanOp::kNoNewPrivs, "process.noNewPrivileges");
    if (!input.no_new_privileges) emit_filters(builder, input);
    emit_identity(builder, input);
    if (input.executable.empty()) {
        builder.step(PlanOp::kResolveExe, "process.args[0] " + quoted(process.args[0]));
    } else {
        PlanString path = builder.string(input.executable);
        builder.step(PlanOp::kResolveExe, quoted(input.executable)).s1 = path;
    }
    builder.step(PlanOp::kCloseFds, "close_range");
    if (input.waits) builder.step(PlanOp::kReady, "");
    if (input.start_hooks) builder.step(PlanOp::kHookPoint, "hooks.startContainer").a = kHookPointStart;
    if (input.no_new_privileges) emit_filters(builder, input);
    builder.step(PlanOp::kExec, "exec " + quoted(process.args[0]));
    builder.argv(process.args);
    builder.envp(process.env);
}

}  // namespace berth::core
