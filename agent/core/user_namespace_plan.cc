#include "agent/core/user_namespace_plan.h"

#include "agent/core/limits.h"
#include "agent/core/mount_plan.h"
#include "agent/core/process_plan.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint64_t kAtRecursive = 0x8000;

void keep(LaunchPlanBuilder& builder, std::string_view label, uint32_t place) {
    builder.step(PlanOp::kKeepMount, label).a = place;
}

// A tmpfs of the stage's own that holds the nodes; the container gets a mount of each.
void emit_nodes(LaunchPlanBuilder& builder, const ContainerLaunch& launch, KeptMounts& kept) {
    const ContainerSpec& spec = *launch.spec;
    std::vector<DeviceSpec> nodes = device_nodes(spec);
    if (nodes.empty()) return;
    constexpr std::string_view kLabel = "device nodes";
    constexpr uint64_t kAttributes = kAttrNosuid | kAttrNoexec;
    PlanString place = builder.string(launch.bundle_dir + "/mounts/nodes");
    builder.step(PlanOp::kFsOpen, kLabel).s1 = builder.string("tmpfs");
    builder.step(PlanOp::kFsMount, kLabel).a = kAttributes;
    builder.step(PlanOp::kTargetGuest, kLabel).s1 = place;
    builder.step(PlanOp::kAttach, kLabel);
    builder.step(PlanOp::kEnterRoot, kLabel);
    for (DeviceSpec& node : nodes) {
        uint32_t at = kept.add();
        kept.nodes.emplace_back(node.path, at);
        std::string label = device_label(spec, node);
        node.path = format("/%u", at);
        node.uid = map_to_host(spec.id_map.uids, node.uid).value_or(0);
        node.gid = map_to_host(spec.id_map.gids, node.gid).value_or(0);
        emit_device_node(builder, label, node);
        PlanString name = builder.string(node.path);
        builder.step(PlanOp::kTreeRoot, label).s1 = name;
        keep(builder, label, at);
    }
}

// What it takes part in comes from outside, so that it is joined from outside. (A pid or time namespace: by
// the spawner's intermediate, before this. A cgroup namespace: after the clone into the cgroup.)
void emit_joins(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    constexpr uint64_t kLater = kNewUser | kNewCgroup | kNewPid | kNewTime;
    for (size_t i = 0; i < spec.namespaces.size(); ++i)
        if (!spec.namespaces[i].path.empty() && (spec.namespaces[i].flag & kLater) == 0)
            emit_join_by_path(builder, spec, i);
    // Of a namespace that belongs to the guest's user namespace, only now.
    const NamespaceSpec* uts = spec.find_namespace(kNewUts);
    if (uts && !uts->path.empty()) emit_names(builder, spec);
}

}  // namespace

std::string device_label(const ContainerSpec& spec, const DeviceSpec& node) {
    for (size_t i = 0; i < spec.devices.size(); ++i)
        if (spec.devices[i].path == node.path) return format("linux.devices[%zu] (%s)", i, node.path.c_str());
    return "device " + node.path;
}

Status emit_stage(LaunchPlanBuilder& builder, const ContainerLaunch& launch, const std::string& root_path,
                  KeptMounts& kept) {
    const ContainerSpec& spec = *launch.spec;
    builder.header().use_intermediate = 1;
    builder.header().stage_flags = kNewMount;
    emit_joins(builder, spec);
    emit_cut_off(builder, spec);
    emit_stdio_owner(builder, spec, spec.process.user, launch.stdio);
    emit_cgroup_owner(builder, spec, *launch.facts);
    emit_nodes(builder, launch, kept);
    BERTH_TRY(emit_rootfs(builder, {.mounts = &launch.rootfs,
                                    .facts = launch.facts,
                                    .bundle_dir = launch.bundle_dir,
                                    .root_path = root_path,
                                    .root_in_place = spec.hooks.has_create()}));
    kept.root = kept.add();
    PlanString slash = builder.string("/");
    PlanStep& tree = builder.step(PlanOp::kTreeRoot, "root.path");
    tree.s1 = slash;
    tree.a = kAtRecursive;
    keep(builder, "root.path", kept.root);
    BERTH_TRY(emit_staged_mounts(
        builder, {.spec = &spec,
                  .facts = launch.facts,
                  .bundle_dir = launch.bundle_dir,
                  .source_bundle = launch.source_bundle.empty() ? launch.bundle_dir : launch.source_bundle,
                  .root_path = launch.rootfs.empty() ? root_path : "",
                  .kept = &kept}));
    if (kept.count > limits::kKeptMounts)
        return make_error(
            Code::kResourceExhausted,
            format("mounts: %u bind mounts and device nodes, more than the limit of %zu in a user "
                   "namespace",
                   kept.count, limits::kKeptMounts));
    builder.step(PlanOp::kChdirRoot, "root.path");
    for (size_t i = 0; i < spec.namespaces.size(); ++i)
        if (spec.namespaces[i].flag == kNewUser && !spec.namespaces[i].path.empty())
            emit_join_by_path(builder, spec, i);
    builder.header().stage_steps = builder.next_step();
    return ok();
}

void emit_after_stage(LaunchPlanBuilder& builder, const ContainerSpec& spec, const KeptMounts& kept) {
    builder.step(PlanOp::kBecomeNsRoot, "user namespace");
    for (size_t i = 0; i < spec.namespaces.size(); ++i)
        if (spec.namespaces[i].flag == kNewCgroup && !spec.namespaces[i].path.empty())
            emit_join_by_path(builder, spec, i);
    // The working directory is the root, in the copy of the stage's mounts. The mount of it there is locked,
    // and cannot become a root; the detached one is not.
    builder.step(PlanOp::kTargetHere, "root.path");
    builder.step(PlanOp::kTreeKept, "root.path").a = kept.root;
    builder.step(PlanOp::kAttach, "root.path");
    builder.step(PlanOp::kEnterRoot, "root.path");
}

void emit_stdio_owner(LaunchPlanBuilder& builder, const ContainerSpec& spec, const UserSpec& user,
                      const StdioLayout& stdio) {
    auto uid = map_to_host(spec.id_map.uids, user.uid);
    auto gid = map_to_host(spec.id_map.gids, user.gid);
    if (!uid || !gid || spec.process.terminal) return;
    for (uint32_t fd = 0; fd < 3; ++fd) {
        const StdioStream& stream = stdio.streams[fd];
        if (stream.mode == StdioMode::kNull) continue;
        PlanStep& step = builder.step(PlanOp::kSlotOwner, "owner of stdio");
        step.a = *uid;
        step.b = *gid;
        step.slot = builder.slot(stdio_request(stream, fd));
    }
}

void emit_cgroup_owner(LaunchPlanBuilder& builder, const ContainerSpec& spec, const GuestFacts& facts) {
    if (!spec.find_namespace(kNewCgroup) || !has_writable_cgroup_mount(spec)) return;
    uint32_t uid = spec.process.user.uid;
    if (has_user_namespace(spec)) {
        auto mapped = map_to_host(spec.id_map.uids, uid);
        if (!mapped) return;
        uid = *mapped;
    }
    if (uid == 0) return;
    PlanString files = builder.string(facts.cgroup_delegate);
    PlanStep& step = builder.step(PlanOp::kCgroupOwner, "owner of the cgroup");
    step.s1 = files;
    step.a = uid;
    step.b = UINT64_MAX;  // the group stays
    step.slot = kSlotCgroup;
}

}  // namespace berth::core
