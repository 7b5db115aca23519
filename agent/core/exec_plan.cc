// One more process in a running container.
#include "agent/core/caps.h"
#include "agent/core/container_plan.h"
#include "agent/core/process_plan.h"
#include "agent/core/user_namespace_plan.h"

namespace berth::core {
namespace {

// What an exec leaves out is the container's (runc exec).
ProcessSpec with_defaults(const ProcessSpec& process, const ProcessSpec& init) {
    ProcessSpec full = process;
    if (!full.capabilities) full.capabilities = init.capabilities;
    if (full.rlimits.empty()) full.rlimits = init.rlimits;
    if (!full.oom_score_adj) full.oom_score_adj = init.oom_score_adj;
    if (!full.user.umask) full.user.umask = init.user.umask;
    if (full.affinity_initial.empty() && full.affinity_final.empty()) {
        full.affinity_initial = init.affinity_initial;
        full.affinity_final = init.affinity_final;
    }
    if (full.apparmor_profile.empty()) full.apparmor_profile = init.apparmor_profile;
    if (full.selinux_label.empty()) full.selinux_label = init.selinux_label;
    return full;
}

Status check_capabilities(const CapabilitySets& asked, uint64_t bounding, uint32_t last_cap) {
    const std::pair<std::string_view, uint64_t> sets[] = {{"bounding", asked.bounding},
                                                          {"effective", asked.effective},
                                                          {"permitted", asked.permitted},
                                                          {"inheritable", asked.inheritable},
                                                          {"ambient", asked.ambient}};
    for (const auto& [name, mask] : sets) {
        uint64_t excess = mask & ~bounding & capabilities_up_to(last_cap);
        if (excess == 0) continue;
        uint32_t number = 0;
        while (!(excess & capability_bit(number))) ++number;
        return make_error(Code::kPermissionDenied, "process.capabilities." + std::string(name) + ": " +
                                                       capability_name(number) +
                                                       " is not in the container's bounding set");
    }
    return ok();
}

}  // namespace

PlanStep& emit_leave_mounts(LaunchPlanBuilder& builder) {
    constexpr std::string_view kLabel = "mount namespace of the machine";
    FdRequest machine;
    machine.source = FdSource::kNamespacePath;
    machine.path = "/proc/self/ns/mnt";
    machine.ns_type = kNewMount;
    machine.label = kLabel;
    int32_t slot = builder.slot(std::move(machine));
    PlanStep& step = builder.step(PlanOp::kLeaveMounts, kLabel);
    step.slot = slot;
    return step;
}

void emit_join(LaunchPlanBuilder& builder, const ContainerSpec& spec, bool mounts_left) {
    // Until it leaves, a container without a mount namespace of its own has one, too.
    uint64_t flags = mounts_left ? 0 : kNewMount;
    for (const NamespaceSpec& entry : spec.namespaces)
        if (entry.flag != kNewPid) flags |= entry.flag;
    bool has_pid = spec.find_namespace(kNewPid) != nullptr;
    int32_t slot = kNoSlot;
    if (flags != 0 || has_pid) {
        FdRequest init;
        init.source = FdSource::kInitPidfd;
        init.label = "init of the container";
        slot = builder.slot(std::move(init));
    }
    if (has_pid) builder.header().pid_namespace_slot = slot;
    if (flags != 0) {
        PlanStep& step = builder.step(PlanOp::kSetns, "namespaces of the container");
        step.slot = slot;
        step.a = flags;
    }
    if (mounts_left && !spec.find_namespace(kNewMount)) {
        constexpr std::string_view kLabel = "mounts of the container";
        FdRequest mounts;
        mounts.source = FdSource::kContainerMounts;
        mounts.ns_type = kNewMount;
        mounts.label = kLabel;
        int32_t place = builder.slot(std::move(mounts));
        PlanStep& join = builder.step(PlanOp::kSetns, kLabel);
        join.slot = place;
        join.a = kNewMount;
        emit_leave_mounts(builder);
    }
    if (has_user_namespace(spec)) builder.step(PlanOp::kBecomeNsRoot, "user namespace");
}

// The recipe of an exec.
Result<LaunchPlan> plan_exec(const ExecLaunch& launch) {
    const ContainerSpec& spec = *launch.spec;
    ProcessSpec full = with_defaults(*launch.process, spec.process);
    CapabilitySets init_sets = spec.process.capabilities.value_or(CapabilitySets{});
    ProcessPlanInput process{
        .process = &full,
        .facts = launch.facts,
        .stdio = &launch.stdio,
        .seccomp = &launch.seccomp,
        .container_id = launch.id,
        .capabilities = full.capabilities.value_or(CapabilitySets{}),
        .no_new_privileges = full.no_new_privileges || (spec.process.no_new_privileges && !launch.may_exceed),
        .allow_vsock = spec.berth.allow_vsock,
        .has_profile = spec.seccomp.has_value(),
        .make_cwd = false,
        .personality = spec.personality,
        .memory_policy = spec.memory_policy ? &*spec.memory_policy : nullptr,
        .is_exec = true,
        .waits = launch.waits,
        .executable = launch.executable,
    };
    if (!launch.may_exceed)
        BERTH_TRY(check_capabilities(process.capabilities, init_sets.bounding, launch.facts->last_cap));
    BERTH_TRY(check_process(process));

    LaunchPlanBuilder builder(PlanKind::kExec);
    // With CAP_SYS_PTRACE a container reads what joins its pid namespace; the intermediate has nothing to
    // read.
    bool may_look = (init_sets.bounding & capability_bit(kCapSysPtrace)) != 0 && !has_user_namespace(spec);
    builder.header().use_intermediate = may_look ? 1 : 0;
    if (has_user_namespace(spec)) emit_stdio_owner(builder, spec, full.user, launch.stdio);
    if (!full.affinity_initial.empty())
        emit_affinity(builder, "process.execCPUAffinity.initial", full.affinity_initial);
    emit_join(builder, spec, /*mounts_left=*/true);
    builder.step(PlanOp::kSetsid, "setsid");
    emit_pty(builder, process);
    emit_stdio(builder, process);
    emit_process(builder, process);
    return std::move(builder).finish();
}

}  // namespace berth::core
