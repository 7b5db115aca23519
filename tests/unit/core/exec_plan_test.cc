// Exec: joins by the init's pidfd, takes from the container what it leaves out, and gains nothing.
#include <doctest/doctest.h>

#include "../../support/core/specs.h"
#include "agent/core/caps.h"
#include "agent/core/container_plan.h"

using namespace berth::core;
using namespace berth::test;

namespace {

struct Exec {
    GuestFacts facts = guest();
    ContainerSpec spec;
    ProcessSpec process;
    SeccompPrograms seccomp;

    Exec(std::string_view spec_patch, std::string_view process_json) {
        auto parsed = parse_container_spec(patched(base_spec(), spec_patch));
        if (!parsed.ok()) FAIL(parsed.error().message);
        spec = std::move(*parsed);
        auto parsed_process = parse_process_spec(process_json);
        if (!parsed_process.ok()) FAIL(parsed_process.error().message);
        process = std::move(*parsed_process);
        seccomp.own = filter_of(1);
        if (spec.seccomp) seccomp.profile = filter_of(2);
    }
    Result<LaunchPlan> plan(bool may_exceed = false, bool waits = true) const {
        ExecLaunch launch;
        launch.spec = &spec;
        launch.process = &process;
        launch.facts = &facts;
        launch.id = "web";
        launch.seccomp = seccomp;
        launch.may_exceed = may_exceed;
        launch.waits = waits;
        return plan_exec(launch);
    }
};

constexpr std::string_view kSpec =
    R"({"process": {"user": {"umask": 63}, "oomScoreAdj": 7, "noNewPrivileges": true,
    "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_PTRACE"], "permitted": ["CAP_KILL"], "effective": ["CAP_KILL"]},
    "rlimits": [{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}]}, "linux": {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW"}}})";

}  // namespace

TEST_CASE("an exec joins, takes over what it leaves out, and ends like any process") {
    Exec exec(kSpec, R"({"args": ["id", "-u"], "cwd": "/", "user": {"uid": 3, "gid": 4}})");
    auto plan = exec.plan();
    REQUIRE(plan.ok());
    CHECK(plan_text(*plan) ==
          "clone_flags 0x0 pid_slot 2 intermediate\n"
          "slot 2: init pidfd\n"
          "setns a=0x4c020000 slot=2  # namespaces of the container\n"
          "setsid  # setsid\n"
          "stdio  # stdin\n"
          "stdio a=0x1  # stdout\n"
          "stdio a=0x2  # stderr\n"
          "fchown stdio a=0x3  # owner of stdio\n"
          "session keyring \"_ses.web\"  # session keyring\n"
          "oom_score_adj a=0x7  # process.oomScoreAdj\n"
          "prlimit a=0x4  # process.rlimits (RLIMIT_CORE)\n"
          "HOME a=0x3  # HOME\n"
          "chdir \"/\"  # process.cwd\n"
          "umask a=0x3f  # process.user.umask\n"
          "no_new_privs  # process.noNewPrivileges\n"
          "capability bounding set a=0x80020  # process.capabilities.bounding\n"
          "setgroups  # process.user.additionalGids\n"
          "setresuid a=0x3 b=0x4 c=0x1  # process.user\n"
          "capset a=0x20 b=0x20  # process.capabilities\n"
          "ambient capabilities  # process.capabilities.ambient\n"
          "find executable  # process.args[0] \"id\"\n"
          "close_range  # close_range\n"
          "wait for start\n"
          "seccomp <8 bytes>  # seccomp filter of the agent\n"
          "seccomp <8 bytes>  # linux.seccomp\n"
          "execve  # exec \"id\"\n");
    CHECK(plan->header().kind == PlanKind::kExec);
    CHECK(find_step(*plan, PlanOp::kReady) >= 0);
    auto at_once = exec.plan(/*may_exceed=*/false, /*waits=*/false);
    REQUIRE(at_once.ok());
    CHECK(find_step(*at_once, PlanOp::kReady) < 0);
}

TEST_CASE("an exec never gets more than the init may have") {
    const struct {
        std::string_view capabilities;
        std::string_view error;
    } rows[] = {
        {R"({"bounding": ["CAP_KILL", "CAP_CHOWN"]})",
         "process.capabilities.bounding: CAP_CHOWN is not in the container's bounding set"},
        {R"({"bounding": ["CAP_KILL"], "permitted": ["CAP_SYS_ADMIN"], "effective": ["CAP_SYS_ADMIN"]})",
         "process.capabilities.effective: CAP_SYS_ADMIN is not in the container's bounding set"},
        {R"({"permitted": ["CAP_NET_RAW"]})",
         "process.capabilities.permitted: CAP_NET_RAW is not in the container's bounding set"},
        {R"({"ambient": ["CAP_NET_RAW"]})",
         "process.capabilities.ambient: CAP_NET_RAW is not in the container's bounding set"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.capabilities);
        Exec exec(kSpec, std::string(R"({"args": ["id"], "cwd": "/", "capabilities": )") +
                             std::string(row.capabilities) + "}");
        auto plan = exec.plan();
        REQUIRE_FALSE(plan.ok());
        CHECK(plan.error().message == row.error);
        CHECK(plan.error().code == Code::kPermissionDenied);
    }
    Exec owners(kSpec, R"({"args": ["id"], "cwd": "/", "capabilities": {"bounding": ["CAP_CHOWN"]}})");
    auto more = owners.plan(/*may_exceed=*/true);  // the machine's own root, as with crun exec --cap
    REQUIRE(more.ok());
    CHECK(more->steps()[static_cast<size_t>(find_step(*more, PlanOp::kBoundingCaps))].a == capability_bit(0));
    CHECK(find_step(*more, PlanOp::kNoNewPrivs) < 0);  // nor is this the container's any more

    Exec fewer(kSpec, R"({"args": ["id"], "cwd": "/", "capabilities": {"bounding": ["CAP_KILL"]}})");
    auto plan = fewer.plan();
    REQUIRE(plan.ok());
    CHECK(plan->steps()[static_cast<size_t>(find_step(*plan, PlanOp::kBoundingCaps))].a == capability_bit(5));
    CHECK(plan->steps()[static_cast<size_t>(find_step(*plan, PlanOp::kCapset))].b == 0);
    CHECK(find_step(*plan, PlanOp::kNoNewPrivs) >= 0);
}

TEST_CASE("an exec: into the root of a container that is in the machine's mount namespace") {
    Exec exec(R"({"linux": {"namespaces": [{"type": "network", "path": "/run/netns/a"}]}})",
              R"({"args": ["id"], "cwd": "/"})");
    auto plan = exec.plan();
    REQUIRE(plan.ok());
    CHECK(plan->steps()[0].a == kNewNet);
    CHECK(plan->steps()[1].op == PlanOp::kSetns);
    CHECK(plan->steps()[1].a == kNewMount);
    CHECK(plan->fds[static_cast<size_t>(plan->steps()[1].slot)].source == FdSource::kContainerMounts);
    CHECK(plan->steps()[2].op == PlanOp::kLeaveMounts);
    CHECK(plan->steps()[2].a == 0);
    // Nothing at all to join of its init.
    Exec bare(R"({"linux": {"namespaces": []}})", R"({"args": ["id"], "cwd": "/"})");
    auto least = bare.plan();
    REQUIRE(least.ok());
    CHECK(least->steps()[0].a == kNewMount);
    CHECK(least->fds[static_cast<size_t>(least->steps()[0].slot)].source == FdSource::kContainerMounts);
}

TEST_CASE("an exec: what the container lacks, it lacks") {
    Exec exec(
        R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "network", "path": "/run/netns/a"}]}})",
        R"({"args": ["id"], "cwd": "/", "terminal": true, "consoleSize": {"height": 1, "width": 2}})");
    auto plan = exec.plan();
    REQUIRE(plan.ok());
    CHECK(plan->header().pid_namespace_slot == kNoSlot);
    CHECK(plan->header().use_intermediate == 0);
    CHECK(plan->steps()[0].a == (kNewMount | kNewNet));
    CHECK(plan->steps()[static_cast<size_t>(find_step(*plan, PlanOp::kCapset))].b == 0);
    CHECK(find_step(*plan, PlanOp::kPtyOpen) < find_step(*plan, PlanOp::kPtyAttach));
    CHECK(find_step(*plan, PlanOp::kTreeTtySlave) == -1);
    exec.process.apparmor_profile = "web";
    CHECK(exec.plan().error().message == "process.apparmorProfile: the guest has no AppArmor");
}
