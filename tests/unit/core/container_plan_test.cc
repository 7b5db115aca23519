// From spec to steps: golden plans of what tools write, and the order and the details that matter.
#include "agent/core/container_plan.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "../../support/core/specs.h"
#include "agent/core/caps.h"

using namespace berth::core;
using namespace berth::test;

namespace {

ContainerSpec parse(std::string_view json) {
    auto spec = parse_container_spec(json);
    if (!spec.ok()) FAIL(spec.error().message);
    return std::move(*spec);
}

ContainerSpec parse_patched(std::string_view patch) {
    return parse(patched(base_spec(), patch));
}

LaunchPlan plan_of(const ContainerLaunch& launch) {
    auto plan = plan_container(launch);
    if (!plan.ok()) FAIL(plan.error().message);
    return std::move(*plan);
}

std::string plan_error(std::string_view patch, const GuestFacts& facts = guest()) {
    ContainerSpec spec = parse_patched(patch);
    auto plan = plan_container(launch_of(spec, facts));
    return plan.ok() ? "" : plan.error().message;
}

// Compares with tests/data/specs/NAME; BERTH_UPDATE_GOLDEN=1 writes it instead.
void check_golden(const std::string& name, const std::string& text) {
    if (getenv("BERTH_UPDATE_GOLDEN")) {
        FILE* file = fopen((BERTH_SOURCE_DIR "/tests/data/specs/" + name).c_str(), "we");
        REQUIRE(file);
        fwrite(text.data(), 1, text.size(), file);
        fclose(file);
    }
    CHECK(text == read_spec(name));
}

const PlanStep& step_at(const LaunchPlan& plan, int index) {
    REQUIRE(index >= 0);
    return plan.steps()[static_cast<size_t>(index)];
}

}  // namespace

TEST_CASE("golden plans of what tools write") {
    GuestFacts facts = guest();
    for (std::string name : {"runc-1.1.5", "crun-1.8.1", "umoci-0.4.7", "containerd-2.1.4"}) {
        CAPTURE(name);
        ContainerSpec spec = parse(read_spec(name + ".json"));
        ContainerLaunch launch = launch_of(spec, facts);
        launch.rootfs = {
            {.type = "erofs", .source = "serial:image", .target = "", .options = {"ro"}},
            {.type = "ext4", .source = "serial:scratch", .target = "", .options = {}},
            {.type = "format/mkdir/overlay",
             .source = "overlay",
             .target = "",
             .options = {"X-containerd.mkdir.path={{ mount 1 }}/upper:0755:0:0",
                         "X-containerd.mkdir.path={{ mount 1 }}/work:0755:0:0", "lowerdir={{ mount 0 }}",
                         "upperdir={{ mount 1 }}/upper", "workdir={{ mount 1 }}/work"}}};
        if (spec.seccomp) launch.seccomp.profile = filter_of(2);
        LaunchPlan plan = plan_of(launch);
        CHECK(validate_launch_plan(plan.blob, plan.fds.size()));
        check_golden(name + ".plan", plan_text(plan));
    }
}

TEST_CASE("the filters: before the capabilities go without no_new_privs, right before exec with it") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW"}}})");
    ContainerLaunch launch = launch_of(spec, facts);
    launch.seccomp.profile = filter_of(2);
    auto filters = [](const LaunchPlan& plan) {
        std::vector<int> found;
        for (size_t i = 0; i < plan.steps().size(); ++i)
            if (plan.steps()[i].op == PlanOp::kSeccomp) found.push_back(static_cast<int>(i));
        return found;
    };
    auto first_byte = [](const LaunchPlan& plan, int index) {
        return plan.text(plan.steps()[static_cast<size_t>(index)].s1)[4];
    };
    LaunchPlan plan = plan_of(launch);
    std::vector<int> found = filters(plan);
    REQUIRE(found.size() == 2);
    CHECK(first_byte(plan, found[0]) == 1);
    CHECK(first_byte(plan, found[1]) == 2);
    CHECK(find_step(plan, PlanOp::kHome) < found[0]);
    CHECK(find_step(plan, PlanOp::kPersonality) < found[0]);
    CHECK(found[1] < find_step(plan, PlanOp::kBoundingCaps));
    CHECK(find_step(plan, PlanOp::kNoNewPrivs) == -1);

    spec.process.no_new_privileges = true;
    plan = plan_of(launch);
    found = filters(plan);
    REQUIRE(found.size() == 2);
    CHECK(first_byte(plan, found[0]) == 1);
    CHECK(first_byte(plan, found[1]) == 2);
    CHECK(find_step(plan, PlanOp::kNoNewPrivs) < find_step(plan, PlanOp::kReady));
    CHECK(find_step(plan, PlanOp::kReady) + 1 == found[0]);
    CHECK(found[1] + 1 == find_step(plan, PlanOp::kExec));

    // Without a profile ours is still there; only the annotation leaves it out.
    launch.seccomp.profile.reset();
    CHECK(plan_container(launch).error().message == "linux.seccomp: the compiled filter is missing");
    spec.seccomp.reset();
    CHECK(filters(plan_of(launch)).size() == 1);
    spec.berth.allow_vsock = true;
    CHECK(filters(plan_of(launch)).empty());
    spec.berth.allow_vsock = false;
    launch.seccomp.own.filter.clear();
    CHECK(plan_container(launch).error().message == "the agent's own seccomp filter is missing");
}

TEST_CASE("the executable is found as the user, before the container counts as created") {
    GuestFacts facts = guest();
    ContainerSpec spec =
        parse_patched(R"({"process": {"user": {"uid": 7, "gid": 8, "additionalGids": [9, 10]}}})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    int user = find_step(plan, PlanOp::kUser);
    CHECK(step_at(plan, user).a == 7);
    CHECK(step_at(plan, user).b == 8);
    CHECK(step_at(plan, user).c == 1);
    CHECK(step_at(plan, find_step(plan, PlanOp::kSetgroups)).s1.length == 8);
    CHECK(find_step(plan, PlanOp::kSetgroups) < user);
    CHECK(user < find_step(plan, PlanOp::kCapset));
    CHECK(find_step(plan, PlanOp::kCapset) < find_step(plan, PlanOp::kResolveExe));
    CHECK(find_step(plan, PlanOp::kResolveExe) < find_step(plan, PlanOp::kReady));
    CHECK(step_at(plan, find_step(plan, PlanOp::kStdioOwner)).a == 7);
    CHECK(step_at(plan, find_step(plan, PlanOp::kHome)).a == 7);
    CHECK(step_at(plan, find_step(plan, PlanOp::kUmask)).a == 022);
    // No list is the empty list: the agent's own groups are not inherited.
    spec.process.user.additional_gids.clear();
    plan = plan_of(launch_of(spec, facts));
    CHECK(step_at(plan, find_step(plan, PlanOp::kSetgroups)).s1.length == 0);
}

TEST_CASE("capabilities: none by default, never more than the kernel has") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched("{}");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    CHECK(step_at(plan, find_step(plan, PlanOp::kBoundingCaps)).a == 0);
    CHECK(step_at(plan, find_step(plan, PlanOp::kCapset)).b == 0);
    spec = parse_patched(R"({"process": {"capabilities": {"bounding": ["CAP_KILL", "CAP_CHECKPOINT_RESTORE"],
        "permitted": ["CAP_KILL"], "effective": ["CAP_KILL"], "inheritable": ["CAP_KILL"],
        "ambient": ["CAP_KILL", "CAP_CHOWN"]}}})");
    facts.last_cap = 38;
    plan = plan_of(launch_of(spec, facts));
    CHECK(step_at(plan, find_step(plan, PlanOp::kBoundingCaps)).a == capability_bit(5));
    CHECK(step_at(plan, find_step(plan, PlanOp::kAmbientCaps)).a == capability_bit(5));
}

TEST_CASE("namespaces: without one of its own for mounts, a container ends in the machine's") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"linux": {"namespaces": [{"type": "uts"}]}})");
    CHECK(refuse_owners_requests(spec).error().code == Code::kUnimplemented);
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    CHECK(plan.header().clone_flags == (kNewMount | kNewUts));
    int leave = find_step(plan, PlanOp::kLeaveMounts);
    CHECK(leave > find_step(plan, PlanOp::kPivotRoot));
    CHECK(leave < find_step(plan, PlanOp::kCapset));
    CHECK(step_at(plan, leave).a == 1);
    const FdRequest& machine = plan.fds[static_cast<size_t>(step_at(plan, leave).slot)];
    CHECK(machine.source == FdSource::kNamespacePath);
    CHECK(machine.ns_type == kNewMount);
    CHECK(find_step(plan_of(launch_of(spec = parse_patched("{}"), facts)), PlanOp::kLeaveMounts) == -1);
}

TEST_CASE("namespaces: new ones by clone, others joined") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"linux": {"namespaces": [{"type": "mount"},
        {"type": "pid", "path": "/proc/9/ns/pid"}, {"type": "network", "path": "/run/netns/a"}, {"type": "cgroup"},
        {"type": "uts"}]}})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    CHECK(plan.header().clone_flags == (kNewMount | kNewCgroup | kNewUts));
    int32_t pid = plan.header().pid_namespace_slot;
    REQUIRE(pid == 2);
    CHECK(plan.fds[2].path == "/proc/9/ns/pid");
    CHECK(plan.fds[2].ns_type == kNewPid);
    CHECK(plan.fds[2].label == "linux.namespaces[1].path \"/proc/9/ns/pid\"");
    const PlanStep& join = plan.steps()[0];
    CHECK(join.op == PlanOp::kSetns);
    CHECK(join.a == kNewNet);
    CHECK(plan.fds[static_cast<size_t>(join.slot)].path == "/run/netns/a");
    // A joined network has its own loopback already.
    CHECK(find_step(plan, PlanOp::kLoopbackUp) == -1);
    CHECK(find_step(plan_of(launch_of(spec = parse_patched("{}"), facts)), PlanOp::kLoopbackUp) >= 0);
}

TEST_CASE("mounts: a bind, its flags and its propagation") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"mounts": [
        {"destination": "/data", "type": "bind", "source": "/srv//data/", "options": ["rbind", "ro", "exec", "rnosuid", "rslave", "shared"]},
        {"destination": "/plain", "type": "none", "source": "/srv/x", "options": ["bind"]}]})");
    ContainerLaunch launch = launch_of(spec, facts);
    std::string text = plan_text(plan_of(launch));
    CHECK(text.find("open_tree \"/srv/data\" a=0x8000  # mount 0 (bind on /data)\n"
                    "mount_setattr a=0x1 b=0x20000e c=0x200006  # mount 0 (bind on /data)\n"
                    "mount_setattr a=0x2 recursive  # mount 0 (bind on /data)\n"
                    "open mount target \"/data\" a=0x1ed  # mount 0 (bind on /data)\n"
                    "move_mount  # mount 0 (bind on /data)\n"
                    "mount propagation a=0x80000 recursive  # mount 0 (bind on /data)\n"
                    "mount propagation a=0x100000  # mount 0 (bind on /data)\n"
                    "open_tree \"/srv/x\"  # mount 1 (bind on /plain)\n"
                    "open mount target \"/plain\" a=0x1ed  # mount 1 (bind on /plain)\n"
                    "move_mount  # mount 1 (bind on /plain)\n") != std::string::npos);
}

TEST_CASE("mounts: a source below the root file system shows what earlier mounts put there") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"root": {"path": "/srv/root"}, "mounts": [
        {"destination": "/a", "type": "bind", "source": "/srv/root//b/c", "options": ["rbind", "ro"]},
        {"destination": "/d", "type": "bind", "source": "/srv/rootfs/x", "options": ["bind"]},
        {"destination": "/e", "type": "bind", "source": "/srv/root", "options": ["bind"]}]})");
    ContainerLaunch launch = launch_of(spec, facts);
    launch.rootfs.clear();
    LaunchPlan plan = plan_of(launch);
    int step = find_step(plan, PlanOp::kTreeRoot);
    REQUIRE(step >= 0);
    CHECK(plan.text(step_at(plan, step).s1) == "/b/c");
    CHECK(step_at(plan, step).a == 0x8000);
    CHECK(step_at(plan, step).b == 0);  // missing is an error
    std::string text = plan_text(plan);
    CHECK(text.find("open_tree \"/srv/rootfs/x\"  # mount 1") != text.npos);
    CHECK(text.find("open_tree \"/srv/root\"  # mount 2") != text.npos);
    // With mounts of Create's the directory is only where they go.
    launch.rootfs.resize(1);
    launch.rootfs[0].type = "tmpfs";
    spec.root_path = "rootfs";
    CHECK(find_step(plan_of(launch), PlanOp::kTreeRoot) < 0);
}

TEST_CASE("mounts: a symlink may be copied instead of followed") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"mounts": [
        {"destination": "/etc/zone", "type": "bind", "source": "/srv/zone", "options": ["bind", "copy-symlink"]},
        {"destination": "/x", "type": "tmpfs"}]})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    int copy = find_step(plan, PlanOp::kCopySymlink);
    REQUIRE(copy >= 0);
    const PlanStep& step = step_at(plan, copy);
    CHECK(plan.text(step.s1) == "/srv/zone");
    CHECK(plan.text(step.s2) == "/etc/zone");
    // What is no symlink is bound by the steps in between.
    CHECK(step_at(plan, copy + 1).op == PlanOp::kTreeGuest);
    CHECK(step.b == 1);
    REQUIRE(step.c < plan.steps().size());
    CHECK(step_at(plan, static_cast<int>(step.c) - 1).op == PlanOp::kAttach);
    CHECK(plan.step_label(static_cast<uint32_t>(step.c)) == "mount 1 (tmpfs on /x)");
    CHECK(describe_step_error(plan, static_cast<uint32_t>(copy), 2, "") ==
          "mount 0 (bind on /etc/zone): copy symlink \"/srv/zone\": ENOENT");
}

TEST_CASE("mounts: proc and sysfs only onto real directories, files of /proc where allowed") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["hidepid=2"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
        {"destination": "/proc/meminfo", "type": "bind", "source": "/srv/meminfo"},
        {"destination": "/x", "type": "tmpfs"}]})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    for (std::string_view path : {"/proc", "/sys"}) {
        CAPTURE(path);
        CHECK(step_at(plan, find_step(plan, PlanOp::kTargetDir, path)).b == 1);
    }
    CHECK(step_at(plan, find_step(plan, PlanOp::kTargetLike, "/proc/meminfo")).c == 1);
    CHECK(step_at(plan, find_step(plan, PlanOp::kTargetLike, "/x")).c == 0);
    // The one superblock of sysfs stays writable: "ro" is this mount's.
    CHECK(find_step(plan, PlanOp::kFsFlag, "ro") == -1);
}

TEST_CASE("mounts: cgroup with and without its namespace") {
    GuestFacts facts = guest();
    constexpr std::string_view kMount =
        R"({"mounts": [{"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid"]}]})";
    ContainerSpec spec = parse_patched(kMount);
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    const PlanStep& tree = step_at(plan, find_step(plan, PlanOp::kTreeSlot));
    CHECK(plan.fds[static_cast<size_t>(tree.slot)].source == FdSource::kCgroupNamespaceRoot);
    const PlanStep& attributes = step_at(plan, find_step(plan, PlanOp::kMountSetattr));
    CHECK(attributes.a == (kAttrRdonly | kAttrNosuid));
    CHECK_FALSE(needs_two_cgroup_levels(spec));

    // Writable only when that was written out.
    spec = parse(patched(patched(base_spec(), kMount),
                         R"({"mounts": [{"destination": "/c", "type": "cgroup", "options": ["rw"]}]})"));
    plan = plan_of(launch_of(spec, facts));
    CHECK(step_at(plan, find_step(plan, PlanOp::kMountSetattr)).a == 0);
    CHECK(needs_two_cgroup_levels(spec));

    spec = parse(patched(patched(base_spec(), kMount),
                         R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "cgroup"}]}})"));
    plan = plan_of(launch_of(spec, facts));
    CHECK(find_step(plan, PlanOp::kTreeSlot) == -1);
    CHECK(find_step(plan, PlanOp::kFsOpen, "cgroup2") >= 0);
    CHECK(needs_two_cgroup_levels(spec));
    CHECK(needs_two_cgroup_levels(
        parse_patched(R"({"process": {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}})")));

    facts.cgroup_namespaces = false;
    CHECK(plan_container(launch_of(spec, facts)).error().message ==
          "linux.namespaces: the guest's kernel has no cgroup namespaces");
}

TEST_CASE("mounts: a cgroup's source and options have bounds") {
    const std::string longest(254, 'x');
    for (const char* option : {"\"source\": \"", "\"options\": [\"x="}) {
        std::string begin = std::string(R"({"mounts": [{"destination": "/c", "type": "cgroup", )") + option;
        std::string end = std::string(begin.ends_with("x=") ? "\"]" : "\"") +
                          R"(}], "linux": {"namespaces": [{"type": "mount"}, {"type": "cgroup"}]}})";
        CHECK(plan_error(begin + longest + end) == "");
        CHECK(plan_error(begin + longest + "xx" + end) ==
              "mounts[0]: source or an option of a cgroup mount is longer than 255 bytes");
    }
}

TEST_CASE("mounts: tmpfs inherits a mode, copies up, and /dev becomes read-only last") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"mounts": [
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["ro", "mode=755"]},
        {"destination": "/var", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup", "ro", "nosuid"]}]})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    std::string text = plan_text(plan);
    CHECK(text.find("fsopen \"tmpfs\"  # mount 0 (tmpfs on /dev)\n"
                    "fsconfig \"source\" \"tmpfs\"  # mount 0 (tmpfs on /dev)\n"
                    "fsconfig \"mode\" \"755\"  # mount 0 (tmpfs on /dev)\n"
                    "fsmount  # mount 0 (tmpfs on /dev)\n") != std::string::npos);
    CHECK(find_step(plan, PlanOp::kFsModeOf, "/dev") == -1);
    CHECK(find_step(plan, PlanOp::kFsModeOf, "/var") >= 0);
    int copy = find_step(plan, PlanOp::kTmpCopyUp, "/var");
    CHECK(step_at(plan, copy - 1).a == kAttrNosuid);
    CHECK(step_at(plan, copy + 1).op == PlanOp::kMountSetattr);
    CHECK(step_at(plan, copy + 1).a == kAttrRdonly);
    CHECK(find_step(plan, PlanOp::kNode, "/dev/null") < find_step(plan, PlanOp::kReadonlyPath, "/dev"));
    const PlanStep& dev = step_at(plan, find_step(plan, PlanOp::kReadonlyPath, "/dev"));
    CHECK(dev.a == 1);
    CHECK(dev.flags == 0);
}

TEST_CASE("mounts: an overlay too long for fsconfig goes through mount(2)") {
    GuestFacts facts = guest();
    std::string lower = "/srv/" + std::string(150, 'a') + ":/srv/" + std::string(150, 'b');
    ContainerSpec spec =
        parse_patched(R"({"mounts": [{"destination": "/o", "type": "overlay", "source": "overlay",
        "options": ["lowerdir=)" +
                      lower + R"(", "nosuid"]}]})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    const PlanStep& mount = step_at(plan, find_step(plan, PlanOp::kMountGuest));
    CHECK(plan.text(mount.s1) == "/run/berth/bundles/web/mounts/spec-0");
    CHECK(plan.text(mount.s2) == std::string("overlay\0overlay\0lowerdir=", 25) + lower);
    CHECK(mount.a == (2u | 1u << 21));
    CHECK(find_step(plan, PlanOp::kTreeGuest, "/run/berth/bundles/web/mounts/spec-0") >= 0);
}

TEST_CASE("refused: what this guest cannot do, and what a container may not see") {
    const struct {
        std::string_view patch;
        std::string_view error;
    } rows[] = {
        {R"({"mounts": [{"destination": "/a", "type": "zfs"}]})",
         "mounts[0].type: the guest's kernel has no filesystem \"zfs\""},
        {R"({"mounts": [{"destination": "/a", "type": "ext4", "source": "/dev/sda"}]})",
         "mounts[0].source: \"/dev/sda\" is not a block device that the host attached"},
        {R"({"mounts": [{"destination": "/a", "type": "btrfs", "source": ""}]})",
         "mounts[0].source: \"\" is not a block device that the host attached"},
        {R"({"mounts": [{"destination": "/a", "type": "ext4", "source": "serial:none"}]})",
         "mounts[0].source: no attached disk has the serial \"none\""},
        {R"({"mounts": [{"destination": "/a", "type": "ext4", "source": "serial:"}]})",
         "mounts[0].source: no attached disk has the serial \"\""},
        {R"({"mounts": [{"destination": "/a", "type": "bind", "source": "/run/berth/state"}]})",
         "mounts[0].source: \"/run/berth/state\" would show the agent's /run/berth"},
        {R"({"mounts": [{"destination": "/a", "type": "bind", "source": "/run/./berth/bundles/web/mounts"}]})",
         "mounts[0].source: \"/run/berth/bundles/web/mounts\" would show the agent's /run/berth"},
        {R"({"mounts": [{"destination": "/a", "type": "bind", "source": "/run"}]})",
         "mounts[0].source: \"/run\" would show the agent's /run/berth"},
        {R"({"mounts": [{"destination": "/a", "type": "bind", "source": "/"}]})",
         "mounts[0].source: \"/\" would show the agent's /run/berth"},
        {R"({"mounts": [{"destination": "/a", "type": "overlay", "options": ["lowerdir=/srv:/run/berth"]}]})",
         "mounts[0].options: \"/run/berth\" would show the agent's /run/berth"},
        {R"({"mounts": [{"destination": "/a", "type": "overlay", "options": ["lowerdir=srv"]}]})",
         "mounts[0].options: overlay directory \"srv\" must be an absolute path"},
        {R"({"mounts": [{"destination": "/a", "type": "overlay", "options": ["upperdir=/srv/\\:/run"]}]})",
         "mounts[0].options: overlay directory \"/srv/\\\\\" must not contain \"..\" or a backslash"},
        {R"({"root": {"path": "/"}})", "root.path: \"/\" would show the agent's /run/berth"},
        {R"({"root": {"path": "/run/berth/bundles/other/rootfs"}})",
         "root.path: \"/run/berth/bundles/other/rootfs\" would show the agent's /run/berth"},
        {R"({"mounts": [{"destination": "/a", "type": "bind", "source": "/sys/firmware/dmi"}]})",
         "mounts[0].source: \"/sys/firmware/dmi\" would show /sys/firmware"},
        {R"({"process": {"apparmorProfile": "web"}})", "process.apparmorProfile: the guest has no AppArmor"},
        {R"({"process": {"selinuxLabel": "a:b:c"}})", "process.selinuxLabel: the guest has no SELinux"},
        {R"({"linux": {"mountLabel": "a:b:c"}})", "linux.mountLabel: the guest has no SELinux"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.patch);
        CHECK(plan_error(row.patch) == row.error);
    }
    CHECK(plan_error(R"({"process": {"apparmorProfile": "unconfined"}})") == "");
    CHECK(plan_error(R"({"mounts": [{"destination": "/a", "type": "fuse"}]})") == "");
    CHECK(plan_error(R"({"mounts": [{"destination": "/a", "type": "ext4", "source": "/dev/vdc"}]})") == "");
}

TEST_CASE("devices: defaults, the spec's instead of a default, none in a /dev from outside") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"linux": {"devices": [
        {"path": "/dev/tty", "type": "c", "major": 5, "minor": 0, "fileMode": 384, "uid": 1, "gid": 5},
        {"path": "/dev/big", "type": "u", "major": 300, "minor": 70000}, {"path": "/run/f", "type": "p"}]}})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    const PlanStep& null = step_at(plan, find_step(plan, PlanOp::kNode, "/dev/null"));
    CHECK(null.a == (0020000 | 0666));
    CHECK(null.b == 0x103);
    const PlanStep& tty = step_at(plan, find_step(plan, PlanOp::kNode, "/dev/tty"));
    CHECK(tty.a == (0020000 | 0600));
    CHECK(tty.c == (uint64_t{1} << 32 | 5));
    CHECK(plan.text(tty.label) == "linux.devices[0] (/dev/tty)");
    CHECK(step_at(plan, find_step(plan, PlanOp::kNode, "/dev/big")).b ==
          (0x70u | 300u << 8 | 0x11100u << 12));
    CHECK(step_at(plan, find_step(plan, PlanOp::kNode, "/run/f")).a == (0010000 | 0666));
    CHECK(plan.text(step_at(plan, find_step(plan, PlanOp::kSymlink, "/dev/ptmx")).s2) == "pts/ptmx");

    spec = parse_patched(R"({"mounts": [{"destination": "/dev", "type": "bind", "source": "/dev"}]})");
    plan = plan_of(launch_of(spec, facts));
    CHECK(find_step(plan, PlanOp::kNode) == -1);
    CHECK(find_step(plan, PlanOp::kSymlink) == -1);
}

TEST_CASE("stdio: pipes, null, the caller's own, a terminal") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched("{}");
    ContainerLaunch launch = launch_of(spec, facts);
    launch.stdio.streams[0].mode = StdioMode::kNull;
    launch.stdio.streams[2] = {.mode = StdioMode::kPassed, .passed_index = 4};
    launch.stdio.extra = {{.target = 3, .passed_index = 5}};
    LaunchPlan plan = plan_of(launch);
    int stdio = find_step(plan, PlanOp::kStdio);
    CHECK(find_step(plan, PlanOp::kPivotRoot) < stdio);
    CHECK(step_at(plan, stdio).slot == kNoSlot);
    CHECK(plan.fds[static_cast<size_t>(step_at(plan, stdio + 1).slot)].source == FdSource::kStdout);
    const FdRequest& passed = plan.fds[static_cast<size_t>(step_at(plan, stdio + 2).slot)];
    CHECK(passed.source == FdSource::kPassed);
    CHECK(passed.ns_type == 4);
    CHECK(step_at(plan, find_step(plan, PlanOp::kExtraFd)).a == 3);
    CHECK(find_step(plan, PlanOp::kPtyOpen) == -1);

    launch.stdio.extra.push_back({.target = 3, .passed_index = 6});
    CHECK(plan_container(launch).error().message == "extra descriptor 3: given twice");
    launch.stdio.extra = {{.target = 2, .passed_index = 6}};
    CHECK(plan_container(launch).error().message == "extra descriptor 2: must be from 3 to 1023");

    spec = parse_patched(
        R"({"process": {"terminal": true, "consoleSize": {"height": 24, "width": 80}, "user": {"uid": 5}}})");
    plan = plan_of(launch_of(spec, facts));
    const PlanStep& pty = step_at(plan, find_step(plan, PlanOp::kPtyOpen));
    CHECK(pty.a == 24);
    CHECK(pty.b == 80);
    CHECK(pty.c == 5);
    CHECK(pty.flags == 0);
    ContainerLaunch plain = launch_of(spec, facts);
    plain.stdio.plain_newlines = true;
    LaunchPlan plain_plan = plan_of(plain);
    CHECK(step_at(plain_plan, find_step(plain_plan, PlanOp::kPtyOpen)).flags == kPlainNewlines);
    CHECK(find_step(plan, PlanOp::kPtyOpen) < find_step(plan, PlanOp::kTreeTtySlave));
    CHECK(find_step(plan, PlanOp::kTargetLike, "/dev/console") < find_step(plan, PlanOp::kPivotRoot));
    CHECK(find_step(plan, PlanOp::kPtyAttach) >= 0);
    CHECK(find_step(plan, PlanOp::kStdio) == -1);
}

TEST_CASE("the root: where it comes from, and what is done to it last") {
    GuestFacts facts = guest();
    ContainerSpec spec =
        parse_patched(R"({"root": {"path": "img", "readonly": true}, "process": {"cwd": "/w"},
        "linux": {"rootfsPropagation": "rshared", "maskedPaths": ["/proc/kcore"], "readonlyPaths": ["/proc/sys"],
                  "sysctl": {"net.core.somaxconn": "9"}}})");
    ContainerLaunch launch = launch_of(spec, facts);
    launch.source_bundle = "/srv/bundle";
    LaunchPlan plan = plan_of(launch);
    CHECK(find_step(plan, PlanOp::kTreeGuest, "/srv/bundle/img") >= 0);
    CHECK(step_at(plan, find_step(plan, PlanOp::kGuestPropagation)).a == (1u << 19 | 0x4000u));
    int pivot = find_step(plan, PlanOp::kPivotRoot);
    CHECK(find_step(plan, PlanOp::kTargetDir, "/w") < pivot);
    CHECK(step_at(plan, find_step(plan, PlanOp::kRootPropagation)).a == (1u << 20 | 0x4000u));
    CHECK(pivot < find_step(plan, PlanOp::kRootReadonly));
    CHECK(find_step(plan, PlanOp::kSysctl, "net/core/somaxconn") <
          find_step(plan, PlanOp::kReadonlyPath, "/proc/sys"));
    CHECK(find_step(plan, PlanOp::kReadonlyPath, "/proc/sys") <
          find_step(plan, PlanOp::kMask, "/proc/kcore"));

    launch.rootfs = {{.type = "bind", .source = "/srv/image", .target = "", .options = {"rbind"}}};
    CHECK(plan_container(launch).error().message ==
          "root.path: \"img\" is not \"rootfs\", where the rootfs mounts of Create go");
    spec.root_path = "/var/lib/host/rootfs";
    plan = plan_of(launch);
    CHECK(find_step(plan, PlanOp::kTreeGuest, "/srv/image") >= 0);
    CHECK(find_step(plan, PlanOp::kTreeGuest, "/var/lib/host/rootfs") == -1);
}

TEST_CASE("/sys/firmware is hidden wherever it shows, asked or not") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"mounts": [
        {"destination": "/sys", "type": "sysfs"}, {"destination": "/other", "type": "sysfs"},
        {"destination": "/bound", "type": "bind", "source": "/sys/", "options": ["rbind"]}],
        "linux": {"maskedPaths": ["/sys/firmware"]}})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    int masks = 0;
    for (const PlanStep& step : plan.steps()) masks += step.op == PlanOp::kMask ? 1 : 0;
    CHECK(masks == 3);
    for (std::string_view path : {"/sys/firmware", "/other/firmware", "/bound/firmware"})
        CHECK(find_step(plan, PlanOp::kMask, path) > find_step(plan, PlanOp::kPivotRoot));
}

TEST_CASE("the agent's folder is where the facts say") {
    GuestFacts facts = guest();
    facts.agent_dir = "/tmp/agent";
    ContainerSpec spec =
        parse_patched(R"({"mounts": [{"destination": "/a", "type": "bind", "source": "/tmp"}]})");
    CHECK(plan_container(launch_of(spec, facts)).error().message ==
          "mounts[0].source: \"/tmp\" would show the agent's /tmp/agent");
    // A relative source may lie in this container's own bundle, but in no other folder of ours.
    spec = parse_patched(R"({"mounts": [{"destination": "/a", "type": "bind", "source": "vol"}]})");
    ContainerLaunch launch = launch_of(spec, facts);
    launch.bundle_dir = "/tmp/agent/bundles/web";
    CHECK(plan_container(launch).ok());
    launch.source_bundle = "/tmp/agent/state";
    CHECK(plan_container(launch).error().message ==
          "mounts[0].source: \"/tmp/agent/state/vol\" would show the agent's /tmp/agent");
}

TEST_CASE("the guest's disks are listed for a spec that may name one, and for no other") {
    ContainerSpec spec;
    CHECK_FALSE(names_block_devices(spec, {}));
    for (const char* source : {"proc", "tmpfs", "devpts", "/srv/dev", "overlay", ""}) {
        spec.mounts.push_back(MountSpec{"/a", "bind", source, {}});
        INFO(source);
        CHECK_FALSE(names_block_devices(spec, {}));
    }
    for (const char* source : {"serial:data", "/dev/vdb", "//dev/vdb", "/srv/../dev/vdb"}) {
        INFO(source);
        ContainerSpec with = spec;
        with.mounts.push_back(MountSpec{"/b", "ext4", source, {}});
        CHECK(names_block_devices(with, {}));
        RootfsMount root;
        root.source = source;
        CHECK(names_block_devices(spec, std::span<const RootfsMount>(&root, 1)));
    }
}

TEST_CASE("bind sources that are nodes") {
    GuestFacts facts = guest();
    CHECK(check_bind_source("/srv", 0040755, facts).ok());
    CHECK(check_bind_source("/dev/null", 0020666, facts).ok());
    CHECK(check_bind_source("/dev/vda", 0060660, facts).ok());
    Status refused = check_bind_source("/dev/sda", 0060660, facts);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == Code::kPermissionDenied);
    CHECK(refused.error().message == "mounts: \"/dev/sda\" is a block device that the host has not attached");
}

TEST_CASE("a failed step in words") {
    GuestFacts facts = guest();
    ContainerSpec spec = parse_patched(R"({"mounts": [{"destination": "/run", "type": "tmpfs"}]})");
    LaunchPlan plan = plan_of(launch_of(spec, facts));
    auto index = [&](PlanOp op) { return static_cast<uint32_t>(find_step(plan, op)); };
    CHECK(describe_step_error(plan, index(PlanOp::kFsMount), 1, "") ==
          "mount 0 (tmpfs on /run): fsmount: EPERM");
    CHECK(describe_step_error(plan, index(PlanOp::kFsMount), 22, "tmpfs: Unknown parameter 'x'\n") ==
          "mount 0 (tmpfs on /run): fsmount: EINVAL (tmpfs: Unknown parameter 'x')");
    CHECK(describe_step_error(plan, index(PlanOp::kPivotRoot), 22, "") == "pivot_root: EINVAL");
    Error missing = step_error(plan, index(PlanOp::kResolveExe), 2, "");
    CHECK(missing.message == "process.args[0] \"sh\": find executable: ENOENT");
    CHECK(missing.code == Code::kNotFound);
    CHECK(missing.err == 2);
    CHECK(describe_step_error(plan, 9999, 5, "") == "step 9999: EIO");
}
