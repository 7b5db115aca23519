// Hooks: as they are parsed, what they are told, and the process that each becomes.
#include <doctest/doctest.h>

#include "../../support/core/specs.h"
#include "agent/core/container_plan.h"

using namespace berth::core;
using namespace berth::test;

namespace {

ContainerSpec spec_with(std::string_view patch) {
    auto parsed = parse_container_spec(patched(base_spec(), patch));
    if (!parsed.ok()) FAIL(parsed.error().message);
    return std::move(*parsed);
}

constexpr std::string_view kAllKinds = R"({"hooks": {
    "prestart": [{"path": "/bin/a"}, {"path": "/bin/b", "args": ["b", "-x"], "env": ["A=1"], "timeout": 5}],
    "createRuntime": [{"path": "/bin/c"}], "createContainer": [{"path": "/bin/d", "env": []}],
    "startContainer": [{"path": "/bin/e"}, {"path": "/bin/f", "env": ["B=2"]}], "poststart": [{"path": "/bin/g"}],
    "poststop": [{"path": "/bin/h"}]}})";

LaunchPlan plan_of(const ContainerSpec& spec, HookKind kind, size_t index) {
    GuestFacts facts = guest();
    HookLaunch launch;
    launch.spec = &spec;
    launch.facts = &facts;
    launch.id = "web";
    launch.kind = kind;
    launch.index = index;
    launch.working_dir = "/srv/bundle";
    launch.seccomp.own = filter_of(1);
    auto plan = plan_hook(launch);
    if (!plan.ok()) FAIL(plan.error().message);
    return std::move(*plan);
}

}  // namespace

TEST_CASE("hooks as they are parsed") {
    ContainerSpec spec = spec_with(kAllKinds);
    const auto& prestart = spec.hooks.of(HookKind::kPrestart);
    REQUIRE(prestart.size() == 2);
    CHECK(prestart[0].args == std::vector<std::string>{"/bin/a"});
    CHECK_FALSE(prestart[0].env.has_value());
    CHECK(prestart[0].timeout_s == 0);
    CHECK(prestart[1].args == std::vector<std::string>{"b", "-x"});
    CHECK(prestart[1].env == std::vector<std::string>{"A=1"});
    CHECK(prestart[1].timeout_s == 5);
    CHECK(spec.hooks.of(HookKind::kCreateContainer)[0].env == std::vector<std::string>{});
    CHECK(spec.hooks.of(HookKind::kStartContainer)[0].env == spec.process.env);
    CHECK(spec.hooks.of(HookKind::kStartContainer)[1].env == std::vector<std::string>{"B=2"});
    CHECK(spec.hooks.has_create());
    CHECK_FALSE(
        spec_with(R"({"hooks": {"poststop": [{"path": "/x"}], "prestart": null}})").hooks.has_create());
}

TEST_CASE("hooks that are refused") {
    const struct {
        std::string_view patch;
        std::string_view error;
    } rows[] = {
        {R"({"hooks": []})", "hooks: must be an object"},
        {R"({"hooks": {"prestart": {}}})", "hooks.prestart: must be an array"},
        {R"({"hooks": {"prestart": ["/x"]}})", "hooks.prestart[0]: must be an object"},
        {R"({"hooks": {"poststop": [{"args": ["x"]}]}})", "hooks.poststop[0].path: missing"},
        {R"({"hooks": {"poststop": [{"path": "/x"}, {"path": "x"}]}})",
         "hooks.poststop[1].path: must be an absolute path, is \"x\""},
        {R"({"hooks": {"createRuntime": [{"path": "/x", "timeout": 0}]}})",
         "hooks.createRuntime[0].timeout: must be a number from 1 to 2147483647"},
        {R"({"hooks": {"createRuntime": [{"path": "/x", "timeout": -1}]}})",
         "hooks.createRuntime[0].timeout: must be a number from 1 to 2147483647"},
        {R"({"hooks": {"startContainer": [{"path": "/x", "env": ["=a"]}]}})",
         "hooks.startContainer[0].env[0]: must be NAME=value, is \"=a\""},
        {R"({"hooks": {"poststart": [{"path": "/x\u0000y"}]}})",
         "hooks.poststart[0].path: contains a NUL byte"},
        {R"({"hooks": {"createContainer": [{"path": "/x", "args": [1]}]}})",
         "hooks.createContainer[0].args[0]: must be a string"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.patch);
        auto parsed = parse_container_spec(patched(base_spec(), row.patch));
        REQUIRE_FALSE(parsed.ok());
        CHECK(parsed.error().message == row.error);
        CHECK(parsed.error().code == Code::kInvalidArgument);
    }
    std::string many = R"({"hooks": {"prestart": [)";
    for (int i = 0; i < 257; ++i) many += std::string(i == 0 ? "" : ",") + R"({"path": "/x"})";
    auto parsed = parse_container_spec(patched(base_spec(), many + "]}}"));
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().code == Code::kResourceExhausted);
}

TEST_CASE("the state that a hook reads") {
    std::vector<std::pair<std::string, std::string>> annotations = {{"a/b", "q\"\\\n"}, {"c", "é"}};
    HookState state{"1.0.2", "web", "created", 17, "/srv/b", &annotations};
    CHECK(hook_state_json(state) ==
          "{\"ociVersion\":\"1.0.2\",\"id\":\"web\",\"status\":\"created\",\"pid\":17,\"bundle\":\"/srv/b\","
          "\"annotations\":{\"a/b\":\"q\\\"\\\\\\u000a\",\"c\":\"é\"}}");
    HookState stopped{"1.0.2", "web", "stopped", 0, "/srv/b", nullptr};
    CHECK(hook_state_json(stopped) ==
          "{\"ociVersion\":\"1.0.2\",\"id\":\"web\",\"status\":\"stopped\",\"bundle\":\"/srv/b\"}");
}

TEST_CASE("a failed poststart stops the container from spec 1.3 on") {
    for (std::string_view version : {"1.0.0", "1.0.2-dev", "1.2.1", "1.2", "1.", "1.x"})
        CHECK_FALSE(poststart_failure_is_fatal(version));
    for (std::string_view version : {"1.3.0", "1.3", "1.10.0-rc.1", "1.4.0+dev"})
        CHECK(poststart_failure_is_fatal(version));
}

TEST_CASE("a hook as a process: in the guest's namespaces") {
    ContainerSpec spec = spec_with(kAllKinds);
    for (HookKind kind :
         {HookKind::kPrestart, HookKind::kCreateRuntime, HookKind::kPoststart, HookKind::kPoststop})
        CHECK(plan_of(spec, kind, 0).header().stay_in_cgroup == 1);
    LaunchPlan plan = plan_of(spec, HookKind::kPrestart, 1);
    CHECK(plan_text(plan) ==
          "clone_flags 0x0\n"
          "slot 2: stdin\n"
          "slot 3: stdout\n"
          "slot 4: stderr\n"
          "setsid  # setsid\n"
          "stdio slot=2  # stdin\n"
          "stdio a=0x1 slot=3  # stdout\n"
          "stdio a=0x2 slot=4  # stderr\n"
          "fchown stdio  # owner of stdio\n"
          "chdir \"/srv/bundle\" errors-ignored  # working directory\n"
          "umask a=0x12  # umask\n"
          "find executable \"/bin/b\"  # \"/bin/b\"\n"
          "close_range  # close_range\n"
          "wait for start\n"
          "execve  # exec \"/bin/b\"\n");
}

TEST_CASE("a hook as a process: in the container's namespaces") {
    ContainerSpec spec = spec_with(kAllKinds);
    LaunchPlan create = plan_of(spec, HookKind::kCreateContainer, 0);
    CHECK(create.header().stay_in_cgroup == 0);
    CHECK(create.header().envp.count == 0);
    CHECK(create.steps()[0].op == PlanOp::kSetns);
    CHECK(create.steps()[0].a == (kNewMount | kNewUts | kNewIpc | kNewNet));
    CHECK(create.header().pid_namespace_slot != kNoSlot);
    CHECK(find_step(create, PlanOp::kBoundingCaps) == -1);

    LaunchPlan start = plan_of(spec, HookKind::kStartContainer, 1);
    CHECK(start.steps()[0].op == PlanOp::kSetns);
    CHECK(find_step(start, PlanOp::kBoundingCaps) > 0);
    CHECK(find_step(start, PlanOp::kSeccomp) > 0);
    CHECK(find_step(start, PlanOp::kResolveExe, "/bin/f") > 0);
    CHECK(start.header().envp.count == 1);
}

TEST_CASE("where the init waits for hooks") {
    GuestFacts facts = guest();
    ContainerSpec spec = spec_with(kAllKinds);
    auto plan = plan_container(launch_of(spec, facts));
    REQUIRE(plan.ok());
    int first = find_step(*plan, PlanOp::kHookPoint);
    REQUIRE(first > 0);
    CHECK(plan->steps()[static_cast<size_t>(first)].a == kHookPointCreate);
    CHECK(first < find_step(*plan, PlanOp::kPivotRoot));
    CHECK(first > find_step(*plan, PlanOp::kNode, "/dev/null"));
    size_t ready = static_cast<size_t>(find_step(*plan, PlanOp::kReady));
    CHECK(plan->steps()[ready + 1].op == PlanOp::kHookPoint);
    CHECK(plan->steps()[ready + 1].a == kHookPointStart);
    // A hook finds the root by the name that the spec gives it.
    CHECK(find_step(*plan, PlanOp::kTargetGuest, "/srv/image") > 0);

    ContainerSpec plain = spec_with(R"({"hooks": {"poststop": [{"path": "/x"}]}})");
    auto without = plan_container(launch_of(plain, facts));
    REQUIRE(without.ok());
    CHECK(find_step(*without, PlanOp::kHookPoint) == -1);
    CHECK(find_step(*without, PlanOp::kTargetGuest, "/run/berth/bundles/web/rootfs") > 0);
}
