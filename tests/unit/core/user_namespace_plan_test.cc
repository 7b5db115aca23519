// User namespaces, their maps, id-mapped mounts and time namespaces: what is parsed, refused and planned.
#include <doctest/doctest.h>

#include <cstring>

#include "../../support/core/specs.h"
#include "agent/core/container_plan.h"
#include "agent/core/cpu_list.h"
#include "agent/core/id_map.h"

using namespace berth::core;
using namespace berth::test;

namespace {

constexpr std::string_view kUser =
    R"({"mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                   {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                   {"destination": "/data", "type": "bind", "source": "/srv/data", "options": ["bind", "ro", "idmap"]},
                   {"destination": "/disk", "type": "ext4", "source": "/dev/vdb"}],
        "process": {"user": {"uid": 7, "gid": 8}},
        "linux": {"uidMappings": [{"containerID": 0, "hostID": 100000, "size": 1000}],
                  "gidMappings": [{"containerID": 0, "hostID": 200000, "size": 1000}],
                  "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "user"},
                                 {"type": "network", "path": "/run/netns/a"}]}})";

Result<ContainerSpec> parsed(std::string_view patch) {
    return parse_container_spec(patched(base_spec(), patch));
}

LaunchPlan plan_of(const ContainerSpec& spec) {
    static const GuestFacts facts = guest();
    auto plan = plan_container(launch_of(spec, facts));
    if (!plan.ok()) FAIL(plan.error().message);
    return std::move(*plan);
}

size_t at(const LaunchPlan& plan, PlanOp op, std::string_view s1 = {}) {
    int found = find_step(plan, op, s1);
    CAPTURE(plan_op_name(op));
    REQUIRE(found >= 0);
    return static_cast<size_t>(found);
}

std::string map_json(std::string_view entries) {
    return R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "user"}], "gidMappings": [{"size": 1}],
               "uidMappings": [)" +
           std::string(entries) + "]}}";
}

}  // namespace

TEST_CASE("maps as text") {
    IdMappings map = {{0, 100000, 10}, {20, 5, 4294967200}};
    CHECK(id_map_text(map) == "0 100000 10\n20 5 4294967200\n");
    CHECK(parse_id_map_text("         0     100000         10\n        20          5 4294967200\n") == map);
    CHECK(parse_id_map_text("") == IdMappings{});
    for (std::string_view text : {"0 1", "0 1 2 3", "0 1 x", "-1 0 1"}) CHECK_FALSE(parse_id_map_text(text));
    CHECK(map_to_host(map, 9) == 100009);
    CHECK_FALSE(map_to_host(map, 10));
    CHECK(map_to_host(map, 21) == 6);
    CHECK_FALSE(map_to_host({}, 0));
}

TEST_CASE("maps that are refused") {
    const struct {
        std::string json;
        std::string_view error;
    } rows[] = {
        {map_json(R"({"containerID": 0, "hostID": 0, "size": 0})"),
         "linux.uidMappings[0].size: must be more than 0"},
        {map_json(R"({"containerID": 4294967295, "hostID": 0, "size": 1})"),
         "linux.uidMappings[0].size: reaches beyond the last id"},
        {map_json(R"({"containerID": 0, "hostID": 4294967000, "size": 1000})"),
         "linux.uidMappings[0].size: reaches beyond the last id"},
        {map_json(
             R"({"containerID": 0, "hostID": 0, "size": 2}, {"containerID": 1, "hostID": 9, "size": 1})"),
         "linux.uidMappings[1].containerID: overlaps with an earlier range"},
        {map_json(
             R"({"containerID": 5, "hostID": 9, "size": 2}, {"containerID": 0, "hostID": 8, "size": 2})"),
         "linux.uidMappings[1].hostID: overlaps with an earlier range"},
        {map_json(R"({"containerID": -1, "hostID": 0, "size": 1})"),
         "linux.uidMappings[0].containerID: must be a number from 0 to 4294967295"},
        {map_json(R"({"containerID": 1, "hostID": 0, "size": 1})"), "linux.uidMappings: id 0 is not mapped"},
        {R"({"process": {"user": {"uid": 1}}, "linux": {"namespaces": [{"type": "mount"}, {"type": "user"}],
             "uidMappings": [{"size": 1}], "gidMappings": [{"size": 1}]}})",
         "process.user.uid: 1 is not mapped into the user namespace"},
        {R"({"process": {"user": {"additionalGids": [0, 9]}}, "linux": {"namespaces": [{"type": "mount"}, {"type": "user"}],
             "uidMappings": [{"size": 1}], "gidMappings": [{"size": 1}]}})",
         "process.user.additionalGids[1]: 9 is not mapped into the user namespace"},
        {R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "user"}], "uidMappings": [{"size": 1}],
             "gidMappings": [{"size": 1}], "devices": [{"path": "/dev/x", "type": "p", "gid": 3}]}})",
         "linux.devices[0].gid: 3 is not mapped into the user namespace"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.json);
        auto spec = parsed(row.json);
        REQUIRE_FALSE(spec.ok());
        CHECK(spec.error().message == row.error);
        CHECK(spec.error().code == Code::kInvalidArgument);
    }
    std::string many;
    for (int i = 0; i < 341; ++i)
        many += std::string(i == 0 ? "" : ",") + R"({"containerID": )" + std::to_string(i) +
                R"(, "hostID": )" + std::to_string(i) + R"(, "size": 1})";
    auto spec = parsed(map_json(many));
    REQUIRE_FALSE(spec.ok());
    CHECK(spec.error().code == Code::kResourceExhausted);
}

TEST_CASE("a new user namespace: a stage as the guest's root, the rest as the namespace's") {
    auto spec = parsed(kUser);
    REQUIRE(spec.ok());
    LaunchPlan plan = plan_of(*spec);
    const PlanHeader& header = plan.header();
    CHECK(header.use_intermediate == 1);
    CHECK(header.stage_flags == kNewMount);
    CHECK(header.clone_flags == (kNewMount | kNewPid | kNewUser));
    CHECK(plan.text(header.uid_map) == "0 100000 1000\n");
    CHECK(plan.text(header.gid_map) == "0 200000 1000\n");
    REQUIRE(header.id_maps.count == 1);

    // Before the clone: what is joined, stdio's owner, nodes, the root, bind mounts, disks.
    size_t stage = header.stage_steps;
    CHECK(at(plan, PlanOp::kSetns) < stage);
    size_t owner = at(plan, PlanOp::kSlotOwner);
    CHECK(owner < stage);
    CHECK(plan.steps()[owner].a == 100007);
    CHECK(plan.steps()[owner].b == 200008);
    size_t node = at(plan, PlanOp::kNode);
    CHECK(node < stage);
    CHECK(plan.steps()[node].c == (uint64_t{100000} << 32 | 200000));
    CHECK(at(plan, PlanOp::kTreeGuest, "/srv/data") < stage);
    CHECK(at(plan, PlanOp::kMountIdmap) < stage);
    CHECK(at(plan, PlanOp::kFsOpen, "ext4") < stage);
    CHECK(plan.steps()[stage - 1].op == PlanOp::kChdirRoot);

    // After it.
    CHECK(plan.steps()[stage].op == PlanOp::kBecomeNsRoot);
    CHECK(at(plan, PlanOp::kFsOpen, "proc") > stage);
    CHECK(at(plan, PlanOp::kPivotRoot) > stage);
    size_t nodes_inside = 0;
    size_t kept = 0;
    size_t taken = 0;
    for (size_t i = 0; i < plan.steps().size(); ++i) {
        if (plan.steps()[i].op == PlanOp::kNode && i >= stage) ++nodes_inside;
        if (plan.steps()[i].op == PlanOp::kKeepMount) ++kept;
        if (plan.steps()[i].op == PlanOp::kTreeKept) ++taken;
    }
    CHECK(nodes_inside == 0);
    CHECK(kept == 6 + 1 + 2);  // nodes, root, mounts
    CHECK(taken == kept);
    // Each mount still comes in its place.
    CHECK(at(plan, PlanOp::kFsOpen, "proc") < at(plan, PlanOp::kTargetLike, "/data"));
    CHECK(at(plan, PlanOp::kTargetLike, "/data") < at(plan, PlanOp::kTargetLike, "/disk"));
}

TEST_CASE("a user namespace that is joined is entered last of the stage") {
    auto spec =
        parsed(R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "user", "path": "/proc/9/ns/user"},
                           {"type": "ipc", "path": "/proc/9/ns/ipc"}, {"type": "pid", "path": "/proc/9/ns/pid"},
                           {"type": "cgroup", "path": "/proc/9/ns/cgroup"}]}})");
    REQUIRE(spec.ok());
    LaunchPlan plan = plan_of(*spec);
    size_t stage = plan.header().stage_steps;
    CHECK(plan.header().clone_flags == kNewMount);
    CHECK(plan.header().uid_map.offset == 0);
    CHECK(plan.header().pid_namespace_slot != kNoSlot);
    CHECK(plan.steps()[stage - 1].op == PlanOp::kSetns);
    CHECK(plan.steps()[stage - 1].a == kNewUser);
    CHECK(plan.steps()[at(plan, PlanOp::kSetns)].a == kNewIpc);
    CHECK(plan.steps()[stage + 1].op == PlanOp::kSetns);
    CHECK(plan.steps()[stage + 1].a == kNewCgroup);
}

TEST_CASE("sysfs of a network namespace that is the guest's is bound") {
    constexpr std::string_view kSys =
        R"("mounts": [{"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]}])";
    auto plan_with = [&](std::string_view network) {
        auto spec = parsed("{" + std::string(kSys) +
                           R"(, "linux": {"uidMappings": [{"size": 1}], "gidMappings": [{"size": 1}],
                                "namespaces": [{"type": "mount"}, {"type": "user"})" +
                           std::string(network) + "]}}");
        if (!spec.ok()) FAIL(spec.error().message);
        return plan_of(*spec);
    };
    CHECK(find_step(plan_with(""), PlanOp::kTreeGuest, "/sys") >= 0);
    CHECK(find_step(plan_with(R"(,{"type": "network", "path": "/n"})"), PlanOp::kTreeGuest, "/sys") >= 0);
    CHECK(find_step(plan_with(R"(,{"type": "network"})"), PlanOp::kFsOpen, "sysfs") >= 0);
    CHECK(find_step(plan_with(""), PlanOp::kMask, "/sys/firmware") >= 0);
}

TEST_CASE("id-mapped mounts without a user namespace") {
    auto spec = parsed(R"({"mounts": [
        {"destination": "/a", "type": "bind", "source": "/srv/a", "options": ["rbind", "ridmap"],
         "uidMappings": [{"containerID": 0, "hostID": 5, "size": 2}], "gidMappings": [{"containerID": 0, "hostID": 6, "size": 2}]},
        {"destination": "/b", "type": "bind", "source": "/srv/b", "options": ["bind"],
         "uidMappings": [{"containerID": 0, "hostID": 5, "size": 2}], "gidMappings": [{"containerID": 0, "hostID": 6, "size": 2}]}]})");
    REQUIRE(spec.ok());
    LaunchPlan plan = plan_of(*spec);
    CHECK(plan.header().stage_steps == 0);
    CHECK(plan.header().id_maps.count == 1);  // equal maps share a namespace
    std::vector<uint16_t> flags;
    for (const PlanStep& step : plan.steps())
        if (step.op == PlanOp::kMountIdmap) flags.push_back(step.flags);
    CHECK(flags == std::vector<uint16_t>{kRecursive, 0});
}

TEST_CASE("time namespaces") {
    auto spec = parsed(R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "time"}],
        "timeOffsets": {"boottime": {"secs": -5, "nanosecs": 7}, "monotonic": {"secs": 9}}}})");
    REQUIRE(spec.ok());
    LaunchPlan plan = plan_of(*spec);
    CHECK(plan.header().clone_flags == (kNewMount | kNewTime));
    CHECK(plan.text(plan.header().timens_offsets) == "monotonic 9 0\nboottime -5 7\n");
    auto joined = parsed(R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "time", "path": "/t"}]}})");
    REQUIRE(joined.ok());
    LaunchPlan other = plan_of(*joined);
    CHECK(other.header().time_namespace_slot != kNoSlot);
    CHECK(other.header().clone_flags == kNewMount);
    CHECK(find_step(other, PlanOp::kSetns) == -1);
}

TEST_CASE("an exec into a user namespace becomes its root, and its stdio the user's") {
    auto spec = parsed(kUser);
    REQUIRE(spec.ok());
    auto process = parse_process_spec(R"({"args": ["id"], "cwd": "/", "user": {"uid": 9, "gid": 9}})");
    REQUIRE(process.ok());
    GuestFacts facts = guest();
    ExecLaunch launch;
    launch.spec = &*spec;
    launch.process = &*process;
    launch.facts = &facts;
    launch.id = "web";
    launch.stdio.streams[1].mode = StdioMode::kPipe;
    launch.seccomp.own = filter_of(1);
    auto plan = plan_exec(launch);
    REQUIRE(plan.ok());
    CHECK(plan->steps()[0].op == PlanOp::kSlotOwner);
    CHECK(plan->steps()[0].a == 100009);
    CHECK(plan->steps()[1].op == PlanOp::kSetns);
    CHECK(plan->steps()[1].a == (kNewMount | kNewUser | kNewNet));
    CHECK(plan->steps()[2].op == PlanOp::kBecomeNsRoot);
    CHECK(plan->header().use_intermediate == 0);
}

TEST_CASE("who may write to the container's cgroup") {
    auto owner_of = [](std::string_view options, std::string_view user) -> int64_t {
        auto spec = parsed(R"({"process": {"user": {"uid": )" + std::string(user) +
                           R"(}}, "mounts": [{"destination": "/c", "type": "cgroup", "options": [)" +
                           std::string(options) +
                           R"(]}], "linux": {"namespaces": [{"type": "mount"}, {"type": "cgroup"}]}})");
        if (!spec.ok()) FAIL(spec.error().message);
        LaunchPlan plan = plan_of(*spec);
        int found = find_step(plan, PlanOp::kCgroupOwner);
        return found < 0 ? -1 : static_cast<int64_t>(plan.steps()[static_cast<size_t>(found)].a);
    };
    CHECK(owner_of(R"("rw")", "1000") == 1000);
    CHECK(owner_of(R"("ro")", "1000") == -1);
    CHECK(owner_of(R"("rw")", "0") == -1);
}

TEST_CASE("lists of CPUs") {
    CHECK(parse_cpu_list("0-3,8", 64) == std::vector<uint64_t>{0x10f});
    CHECK(parse_cpu_list("64", 65) == std::vector<uint64_t>{0, 1});
    CHECK(parse_cpu_list("5,5,4-6", 64) == std::vector<uint64_t>{0x70});
    for (std::string_view text : {"", ",", "1,", "-1", "1-", "2-1", "64", " 1", "0x1", "1-2-3"})
        CHECK_FALSE(parse_cpu_list(text, 64));
}

TEST_CASE("affinity is an exec's: during the set-up, and from then on") {
    auto spec = parsed(R"({"process": {"execCPUAffinity": {"initial": "1"}}})");
    REQUIRE(spec.ok());
    CHECK(find_step(plan_of(*spec), PlanOp::kAffinity) == -1);
    auto affinities = [&](std::string_view json) {
        auto process = parse_process_spec(json);
        REQUIRE(process.ok());
        GuestFacts facts = guest();
        ExecLaunch launch;
        launch.spec = &*spec;
        launch.process = &*process;
        launch.facts = &facts;
        launch.id = "web";
        launch.seccomp.own = filter_of(1);
        auto plan = plan_exec(launch);
        REQUIRE(plan.ok());
        std::vector<uint64_t> masks;
        for (const PlanStep& step : plan->steps()) {
            if (step.op != PlanOp::kAffinity) continue;
            uint64_t mask = 0;
            if (step.s1.length == 8) memcpy(&mask, plan->text(step.s1).data(), 8);
            masks.push_back(mask);
        }
        return masks;
    };
    CHECK(affinities(R"({"args": ["a"], "cwd": "/", "execCPUAffinity": {"initial": "0", "final": "1-2"}})") ==
          std::vector<uint64_t>{1, 6});
    CHECK(affinities(R"({"args": ["a"], "cwd": "/", "execCPUAffinity": {"final": "2"}})") ==
          std::vector<uint64_t>{4});
    // The container's, and back to all.
    CHECK(affinities(R"({"args": ["a"], "cwd": "/"})") == std::vector<uint64_t>{2, 0});
}

TEST_CASE("network devices and the memory policy in a plan") {
    auto spec = parsed(R"({"linux": {"netDevices": {"eth0": {"name": "in%d"}, "eth1": {}},
                           "memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0-1", "flags": ["MPOL_F_STATIC_NODES"]}}})");
    REQUIRE(spec.ok());
    LaunchPlan plan = plan_of(*spec);
    CHECK(plan.header().net_devices.count == 2);
    CHECK(plan.header().net_namespace_slot == kNoSlot);
    const PlanStep& policy = plan.steps()[at(plan, PlanOp::kMemoryPolicy)];
    CHECK(policy.a == 0x8002);
    CHECK(policy.s1.length == 8);
    auto joined = parsed(R"({"linux": {"netDevices": {"eth0": {}},
                            "namespaces": [{"type": "mount"}, {"type": "network", "path": "/n"}]}})");
    REQUIRE(joined.ok());
    CHECK(plan_of(*joined).header().net_namespace_slot != kNoSlot);
}
