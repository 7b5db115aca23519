// One hook as a process.
#include "agent/core/container_plan.h"
#include "agent/core/process_plan.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint32_t kHookUmask = 0022;
// What a hook finds whose spec has no env; the agent has no environment to inherit.
constexpr std::string_view kDefaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

StdioLayout hook_stdio() {
    StdioLayout layout;
    for (StdioStream& stream : layout.streams) stream.mode = StdioMode::kPipe;
    return layout;
}

// As the program itself, in its root, with its rights and filters.
Result<LaunchPlan> plan_start_hook(const HookLaunch& launch, const HookSpec& hook) {
    ProcessSpec process = launch.spec->process;
    process.terminal = false;
    process.args = hook.args;
    process.env = hook.env.value_or(std::vector<std::string>());
    ExecLaunch exec;
    exec.spec = launch.spec;
    exec.process = &process;
    exec.facts = launch.facts;
    exec.id = launch.id;
    exec.stdio = hook_stdio();
    exec.seccomp = launch.seccomp;
    exec.executable = hook.path;
    return plan_exec(exec);
}

}  // namespace

Result<LaunchPlan> plan_hook(const HookLaunch& launch) {
    BERTH_CHECK(launch.index < launch.spec->hooks.of(launch.kind).size());
    const HookSpec& hook = launch.spec->hooks.of(launch.kind)[launch.index];
    if (launch.kind == HookKind::kStartContainer) return plan_start_hook(launch, hook);

    LaunchPlanBuilder builder(PlanKind::kExec);
    bool inside = launch.kind == HookKind::kCreateContainer;
    if (inside)
        emit_join(builder, *launch.spec, /*mounts_left=*/false);
    else
        builder.header().stay_in_cgroup = 1;
    builder.step(PlanOp::kSetsid, "setsid");
    StdioLayout stdio = hook_stdio();
    ProcessSpec process;
    ProcessPlanInput streams;
    streams.process = &process;
    streams.stdio = &stdio;
    emit_stdio(builder, streams);
    PlanString directory = builder.string(launch.working_dir.empty() ? "/" : launch.working_dir);
    PlanStep& chdir = builder.step(PlanOp::kCwd, "working directory");
    chdir.s1 = directory;
    chdir.flags = kIgnoreErrors;
    builder.step(PlanOp::kUmask, "umask").a = kHookUmask;
    PlanString path = builder.string(hook.path);
    builder.step(PlanOp::kResolveExe, quoted(hook.path)).s1 = path;
    builder.step(PlanOp::kCloseFds, "close_range");
    builder.step(PlanOp::kReady, "");
    builder.step(PlanOp::kExec, "exec " + quoted(hook.path));
    builder.argv(hook.args);
    std::vector<std::string> default_env{std::string(kDefaultPath)};
    builder.envp(hook.env ? *hook.env : default_env);
    return std::move(builder).finish();
}

}  // namespace berth::core
