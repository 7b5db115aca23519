// The mounts of Create's rootfs: templates, places, disks, and what is refused.
#include "agent/core/rootfs_plan.h"

#include <doctest/doctest.h>

#include "../../support/core/specs.h"

using namespace berth::core;
using namespace berth::test;

namespace {

Result<LaunchPlan> plan_rootfs(const std::vector<RootfsMount>& mounts) {
    GuestFacts facts = guest();
    auto spec = parse_container_spec(base_spec());
    REQUIRE(spec.ok());
    ContainerLaunch launch = launch_of(*spec, facts);
    launch.rootfs = mounts;
    return plan_container(launch);
}

// The steps of the rootfs alone.
std::string steps_of(const std::vector<RootfsMount>& mounts) {
    auto plan = plan_rootfs(mounts);
    if (!plan.ok()) return plan.error().message;
    std::string text = plan_text(*plan);
    size_t from = text.find("rootfs mount");
    from = text.rfind('\n', from) + 1;
    size_t to = text.rfind("rootfs mount");
    return text.substr(from, text.find('\n', to) + 1 - from);
}

RootfsMount mount(std::string type, std::string source, std::vector<std::string> options,
                  std::string target = "") {
    return {.type = std::move(type),
            .source = std::move(source),
            .target = std::move(target),
            .options = std::move(options)};
}

}  // namespace

TEST_CASE("one bind is the root") {
    CHECK(steps_of({mount("bind", "/srv/image", {"rbind", "ro"})}) ==
          "open_tree \"/srv/image\" a=0x8000  # rootfs mount 0 (bind)\n"
          "mount_setattr a=0x1 b=0x20000e c=0x20000e  # rootfs mount 0 (bind)\n"
          "open mount target \"/run/berth/bundles/web/rootfs\"  # rootfs mount 0 (bind)\n"
          "move_mount  # rootfs mount 0 (bind)\n"
          "enter root  # rootfs mount 0 (bind)\n");
}

TEST_CASE("a disk by its serial, read-only where it can be nothing else") {
    CHECK(steps_of({mount("erofs", "serial:image", {"loop"})}) ==
          "fsopen \"erofs\"  # rootfs mount 0 (erofs)\n"
          "fsconfig \"source\" \"/dev/vda\"  # rootfs mount 0 (erofs)\n"
          "fsconfig \"ro\"  # rootfs mount 0 (erofs)\n"
          "fsmount a=0x1  # rootfs mount 0 (erofs)\n"
          "open mount target \"/run/berth/bundles/web/rootfs\"  # rootfs mount 0 (erofs)\n"
          "move_mount  # rootfs mount 0 (erofs)\n"
          "enter root  # rootfs mount 0 (erofs)\n");
    CHECK(steps_of({mount("virtiofs", "share", {})})
              .starts_with("fsopen \"virtiofs\"  # rootfs mount 0 (virtiofs)\nfsconfig \"source\" \"share\"  "
                           "# rootfs mount 0 (virtiofs)\nfsmount "));
}

TEST_CASE("templates and directories of containerd's mount manager") {
    CHECK(
        steps_of({mount("erofs", "serial:image", {"ro"}), mount("ext4", "/dev/vdb", {}),
                  mount("format/mkdir/overlay", "overlay",
                        {"X-containerd.mkdir.path={{ mount 1 }}/upper:0750:10:20",
                         "X-containerd.mkdir.path={{mount 1}}/work", "lowerdir={{ overlay 0 0 }}",
                         "upperdir={{ mount 1 }}/upper", "workdir={{ mount 1 }}/work"})})
            .ends_with(
                "mkdir \"/run/berth/bundles/web/mounts/1/upper\" a=0x1e8 b=0xa c=0x14  # rootfs mount 2 "
                "(overlay)\n"
                "mkdir \"/run/berth/bundles/web/mounts/1/work\" a=0x1ed  # rootfs mount 2 (overlay)\n"
                "fsopen \"overlay\"  # rootfs mount 2 (overlay)\n"
                "fsconfig \"source\" \"overlay\"  # rootfs mount 2 (overlay)\n"
                "fsconfig \"lowerdir\" \"/run/berth/bundles/web/mounts/0\"  # rootfs mount 2 (overlay)\n"
                "fsconfig \"upperdir\" \"/run/berth/bundles/web/mounts/1/upper\"  # rootfs mount 2 "
                "(overlay)\n"
                "fsconfig \"workdir\" \"/run/berth/bundles/web/mounts/1/work\"  # rootfs mount 2 (overlay)\n"
                "fsmount  # rootfs mount 2 (overlay)\n"
                "open mount target \"/run/berth/bundles/web/rootfs\"  # rootfs mount 2 (overlay)\n"
                "move_mount  # rootfs mount 2 (overlay)\n"
                "enter root  # rootfs mount 2 (overlay)\n"));
    // Three layers, downwards: too long for fsconfig, so through mount(2), which puts it on its place at
    // once.
    auto plan = plan_rootfs(
        {mount("bind", "/srv/a", {}), mount("bind", "/srv/b", {}),
         mount("format/bind", "{{ source 0 }}/sub", {}), mount("bind", "/srv/" + std::string(240, 'x'), {}),
         mount("format/overlay", "overlay", {"lowerdir={{ overlay 2 0 }}:{{ source 3 }}"})});
    REQUIRE(plan.ok());
    CHECK(find_step(*plan, PlanOp::kTreeGuest, "/srv/a/sub") >= 0);
    int at = find_step(*plan, PlanOp::kMountGuest, "/run/berth/bundles/web/rootfs");
    REQUIRE(at >= 0);
    std::string_view packed = plan->text(plan->steps()[static_cast<size_t>(at)].s2);
    CHECK(packed.substr(0, 16) == std::string_view("overlay\0overlay\0", 16));
    CHECK(packed.substr(16).starts_with(
        "lowerdir=/run/berth/bundles/web/mounts/2:/run/berth/bundles/web/mounts/1:"
        "/run/berth/bundles/web/mounts/0:/srv/xxx"));
    CHECK(plan->steps()[static_cast<size_t>(at) + 1].op == PlanOp::kTargetGuest);
    CHECK(plan->steps()[static_cast<size_t>(at) + 2].op == PlanOp::kEnterRoot);
}

TEST_CASE("a mount with a target lies in the root") {
    std::string text =
        steps_of({mount("bind", "/srv/image", {}), mount("tmpfs", "tmpfs", {"size=1m"}, "var/tmp/")});
    CHECK(
        text.ends_with("enter root  # rootfs mount 0 (bind)\n"
                       "fsopen \"tmpfs\"  # rootfs mount 1 (tmpfs)\n"
                       "fsconfig \"source\" \"tmpfs\"  # rootfs mount 1 (tmpfs)\n"
                       "fsconfig \"size\" \"1m\"  # rootfs mount 1 (tmpfs)\n"
                       "fsmount  # rootfs mount 1 (tmpfs)\n"
                       "open mount target \"/var/tmp\" a=0x1ed  # rootfs mount 1 (tmpfs)\n"
                       "move_mount  # rootfs mount 1 (tmpfs)\n"));
}

TEST_CASE("refused rootfs mounts change nothing and name what is wrong") {
    RootfsMount root = mount("bind", "/srv/image", {});
    const struct {
        std::vector<RootfsMount> mounts;
        std::string_view error;
        Code code = Code::kInvalidArgument;
    } rows[] = {
        {{mount("bind", "/srv", {}, "/sub")}, "rootfs: no mount without a target, which would be the root"},
        {{mount("tmpfs", "t", {}, "/sub"), root},
         "rootfs[0].target: a mount inside the root must come after the root"},
        {{root, mount("tmpfs", "t", {}, "/a/../b")}, "rootfs[1].target: must not contain \"..\""},
        {{root, mount("tmpfs", "t", {}, "/./")}, "rootfs[1].target: must not be the root itself"},
        {{root, mount("tmpfs", "t", {}, "/proc/sys")}, "rootfs[1].target: must not lie in /proc"},
        {{mount("zfs", "pool", {})},
         "rootfs[0].type: the guest's kernel has no filesystem \"zfs\"",
         Code::kFailedPrecondition},
        {{mount("loop/ext4", "x", {})},
         "rootfs[0].type: \"loop/ext4\" is not supported",
         Code::kUnimplemented},
        {{mount("format/format/bind", "/x", {})},
         "rootfs[0].type: \"format/bind\" is not supported",
         Code::kUnimplemented},
        {{mount("ext4", "/dev/sda", {})},
         "rootfs[0].source: \"/dev/sda\" is not a block device that the host attached",
         Code::kPermissionDenied},
        {{mount("ext4", "serial:nope", {})},
         "rootfs[0].source: no attached disk has the serial \"nope\"",
         Code::kNotFound},
        {{mount("bind", "srv", {})}, "rootfs[0].source: \"srv\" must be an absolute path without \"..\""},
        {{mount("bind", "/srv/../run/berth", {})},
         "rootfs[0].source: \"/srv/../run/berth\" must be an absolute path without \"..\""},
        {{mount("bind", "/run/berth/state", {})},
         "rootfs[0].source: \"/run/berth/state\" would show the agent's /run/berth",
         Code::kPermissionDenied},
        {{mount("bind", "/", {})},
         "rootfs[0].source: \"/\" would show the agent's /run/berth",
         Code::kPermissionDenied},
        {{mount("bind", "/run/berth/bundles/other/mounts/0", {})},
         "rootfs[0].source: \"/run/berth/bundles/other/mounts/0\" would show the agent's /run/berth",
         Code::kPermissionDenied},
        {{mount("bind", "/srv", {"mode=1"})}, "rootfs[0].options: a bind mount cannot take \"mode=1\""},
        {{mount("bind", "/srv", {"remount"})},
         "rootfs[0].options: \"remount\" is not supported",
         Code::kUnimplemented},
        {{mount("bind", "/srv", {"ridmap"})},
         "rootfs[0].options: \"idmap\" is not supported",
         Code::kUnimplemented},
        {{mount("overlay", "overlay", {"lowerdir=/run/berth/bundles/web/x"})},
         "rootfs[0].options: \"/run/berth/bundles/web/x\" would show the agent's /run/berth",
         Code::kPermissionDenied},
        {{mount("bind", "/t", {"copy-symlink"})},
         "rootfs[0].options: \"copy-symlink\" is not supported",
         Code::kUnimplemented},
        {{mount("tmpfs", "t", {"tmpcopyup"})},
         "rootfs[0].options: \"tmpcopyup\" is not supported",
         Code::kUnimplemented},
        {{mount("tmpfs", std::string("a\0b", 3), {})}, "rootfs[0].source: contains a NUL byte"},
        {{mount("tmpfs", "t", {std::string("a\0b", 3)})}, "rootfs[0].options: contains a NUL byte"},
        {{mount("format/bind", "{{ mount 0 }}", {})},
         "rootfs[0].source: {{ mount 0 }} must name an earlier mount"},
        {{root, mount("format/bind", "{{ mount x }}", {})},
         "rootfs[1].source: {{ mount x }} must name an earlier mount"},
        {{root, mount("format/bind", "{{ mount }}", {})}, "rootfs[1].source: unknown template {{ mount }}"},
        {{root, mount("format/bind", "{{ exec 0 }}", {})}, "rootfs[1].source: unknown template {{ exec 0 }}"},
        {{root, mount("format/bind", "{{ mount 0", {})},
         "rootfs[1].source: a template without its end: \"{{ mount 0\""},
        {{root, mount("format/bind", "{{}}", {})}, "rootfs[1].source: unknown template {{}}"},
        {{root, mount("mkdir/tmpfs", "t", {"X-containerd.mkdir.path=/srv/x"})},
         "rootfs[1].options: \"/srv/x\" is not below an earlier mount of this rootfs",
         Code::kPermissionDenied},
        {{root,
          mount("mkdir/tmpfs", "t", {"X-containerd.mkdir.path=/run/berth/bundles/web/mounts/0/../../x"})},
         "rootfs[1].options: \"/run/berth/bundles/web/mounts/0/../../x\" is not below an earlier mount of "
         "this rootfs",
         Code::kPermissionDenied},
        {{root, mount("format/mkdir/tmpfs", "t", {"X-containerd.mkdir.path={{ mount 0 }}/a:999"})},
         "rootfs[1].options: \"/run/berth/bundles/web/mounts/0/a:999\" is not PATH[:MODE[:UID:GID]]"},
        {{root, mount("format/mkdir/tmpfs", "t", {"X-containerd.mkdir.path={{ mount 0 }}/a:755:0"})},
         "rootfs[1].options: \"/run/berth/bundles/web/mounts/0/a:755:0\" is not PATH[:MODE[:UID:GID]]"},
        {{root, mount("tmpfs", "t", {"X-containerd.mkdir.path=/a"})},
         "rootfs[1].options: \"X-containerd.mkdir.path=/a\" is not supported",
         Code::kUnimplemented},
        {std::vector<RootfsMount>(129, root), "rootfs: 129 mounts, more than the limit of 128",
         Code::kResourceExhausted},
    };
    for (const auto& row : rows) {
        CAPTURE(row.error);
        auto plan = plan_rootfs(row.mounts);
        REQUIRE_FALSE(plan.ok());
        CHECK(plan.error().message == row.error);
        CHECK(plan.error().code == row.code);
    }
}
