#include "agent/core/container_plan.h"

#include <algorithm>

#include "agent/core/caps.h"
#include "agent/core/mount_plan.h"
#include "agent/core/path.h"
#include "agent/core/process_plan.h"
#include "agent/core/text.h"
#include "agent/core/user_namespace_plan.h"

namespace berth::core {
namespace {

constexpr uint64_t kMsRec = 0x4000;
constexpr uint64_t kMsSlave = 1 << 19;
constexpr uint64_t kMsPrivate = 1 << 18;
constexpr uint64_t kModeCharacter = 0020000;
constexpr uint64_t kModeFifo = 0010000;
constexpr uint64_t kModeBlock = 0060000;
constexpr uint64_t kModeMask = 0170000;
constexpr uint64_t kNewDirectoryMode = 0755;

constexpr struct {
    std::string_view path;
    uint32_t major;
    uint32_t minor;
} kDefaultDevices[] = {
    {"/dev/null", 1, 3},   {"/dev/zero", 1, 5},    {"/dev/full", 1, 7},
    {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9}, {"/dev/tty", 5, 0},
};

constexpr struct {
    std::string_view path;
    std::string_view target;
} kDefaultLinks[] = {
    {"/dev/fd", "/proc/self/fd"},       {"/dev/stdin", "/proc/self/fd/0"}, {"/dev/stdout", "/proc/self/fd/1"},
    {"/dev/stderr", "/proc/self/fd/2"}, {"/dev/core", "/proc/kcore"},      {"/dev/ptmx", "pts/ptmx"},
};

// As mknodat takes it and fstat gives it on 64-bit kernels (new_encode_dev).
uint64_t kernel_device_number(uint32_t major, uint32_t minor) {
    return (minor & 0xffu) | uint64_t{major} << 8 | uint64_t{minor & ~0xffu} << 12;
}

// New namespaces are the clone's; a pid or time namespace is joined by the spawner, since it takes effect on
// children only; the others by emit_join_by_path.
void emit_namespaces(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    PlanHeader& header = builder.header();
    for (size_t i = 0; i < spec.namespaces.size(); ++i) {
        const NamespaceSpec& entry = spec.namespaces[i];
        if (entry.path.empty()) header.clone_flags |= entry.flag;
        if (!entry.path.empty() && (entry.flag & (kNewPid | kNewTime)) != 0)
            emit_join_by_path(builder, spec, i);
    }
    // One for its mounts alone, which it leaves in the end.
    if (!spec.find_namespace(kNewMount)) header.clone_flags |= kNewMount;
    const NamespaceSpec* user = spec.find_namespace(kNewUser);
    if (user && user->path.empty()) {
        header.uid_map = builder.string(id_map_text(spec.id_map.uids));
        header.gid_map = builder.string(id_map_text(spec.id_map.gids));
    }
    for (const NetDevice& device : spec.net_devices) builder.net_device(device.name, device.new_name);
    const NamespaceSpec* network = spec.find_namespace(kNewNet);
    if (!spec.net_devices.empty() && network && !network->path.empty()) {
        FdRequest request;
        request.source = FdSource::kNamespacePath;
        request.path = network->path;
        request.ns_type = kNewNet;
        request.label = "linux.netDevices: network namespace " + quoted(network->path);
        header.net_namespace_slot = builder.slot(std::move(request));
    }
    std::string offsets;
    auto add = [&](const char* clock, const std::optional<TimeOffset>& offset) {
        if (offset)
            offsets += format("%s %lld %u\n", clock, static_cast<long long>(offset->secs), offset->nanosecs);
    };
    add("monotonic", spec.monotonic_offset);
    add("boottime", spec.boottime_offset);
    if (!offsets.empty()) header.timens_offsets = builder.string(offsets);
}

void emit_nodes(LaunchPlanBuilder& builder, const ContainerSpec& spec, const KeptMounts* kept) {
    if (dev_is_foreign(spec)) return;
    if (kept == nullptr) {
        for (const DeviceSpec& node : device_nodes(spec))
            emit_device_node(builder, device_label(spec, node), node);
        return;
    }
    for (const auto& [path, place] : kept->nodes) {
        std::string label = "device " + path;
        PlanString target = builder.string(path);
        builder.step(PlanOp::kTreeKept, label).a = place;
        PlanStep& step = builder.step(PlanOp::kTargetLike, label);
        step.s1 = target;
        step.a = kNewDirectoryMode;
        builder.step(PlanOp::kAttach, label);
    }
}

void emit_devices(LaunchPlanBuilder& builder, const ContainerSpec& spec, const KeptMounts* kept) {
    if (dev_is_foreign(spec)) return;
    emit_nodes(builder, spec, kept);
    for (const auto& link : kDefaultLinks) {
        PlanString path = builder.string(link.path);
        PlanString target = builder.string(link.target);
        PlanStep& step = builder.step(PlanOp::kSymlink, "link " + std::string(link.path));
        step.s1 = path;
        step.s2 = target;
    }
}

void emit_console(LaunchPlanBuilder& builder) {
    PlanString path = builder.string("/dev/console");
    builder.step(PlanOp::kTreeTtySlave, "/dev/console");
    PlanStep& target = builder.step(PlanOp::kTargetLike, "/dev/console");
    target.s1 = path;
    target.a = kNewDirectoryMode;
    builder.step(PlanOp::kAttach, "/dev/console");
}

// On a root that becomes read-only a missing working directory must be made before (runc).
void emit_early_cwd(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    std::string cwd = clean_path(spec.process.cwd);
    if (!spec.root_readonly || cwd == "/" || is_at_or_below(cwd, "/proc")) return;
    PlanString path = builder.string(cwd);
    PlanStep& step = builder.step(PlanOp::kTargetDir, "process.cwd");
    step.s1 = path;
    step.a = kNewDirectoryMode;
}

// A /dev that is asked for read-only is filled first (mount_plan_spec.cc leaves it writable).
// Null: none is.
const MountSpec* find_readonly_dev(const ContainerSpec& spec) {
    for (const MountSpec& mount : spec.mounts) {
        if (mount.destination != "/dev" || mount.type != "tmpfs" || mount.options.bind) continue;
        bool is_readonly = ((mount.options.top.set | mount.options.recursive.set) & kAttrRdonly) != 0;
        return is_readonly ? &mount : nullptr;
    }
    return nullptr;
}

void emit_root_switch(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    builder.step(PlanOp::kPivotRoot, "pivot_root");
    if (spec.rootfs_propagation != 0)
        builder.step(PlanOp::kRootPropagation, "linux.rootfsPropagation").a = spec.rootfs_propagation;
    if (spec.root_readonly) builder.step(PlanOp::kRootReadonly, "root.readonly").a = kAttrRdonly;
}

void emit_hidden_paths(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    if (const MountSpec* mount = find_readonly_dev(spec); mount != nullptr) {
        PlanString dev = builder.string("/dev");
        PlanStep& step = builder.step(PlanOp::kReadonlyPath, "read-only /dev");
        step.s1 = dev;
        step.a = 1;
        // What is mounted below it (pts, shm) stays as it was asked for.
        step.flags = (mount->options.recursive.set & kAttrRdonly) != 0 ? kRecursive : 0;
    }
    for (const std::string& path : spec.readonly_paths)
        builder.step(PlanOp::kReadonlyPath, "read-only path " + path).s1 = builder.string(path);
    std::vector<std::string> masked = spec.masked_paths;
    // Even when the spec does not ask: uid 0 reads the secret there with no capability at all.
    for (std::string& path : firmware_paths(spec))
        if (std::find(masked.begin(), masked.end(), path) == masked.end()) masked.push_back(std::move(path));
    for (const std::string& path : masked)
        builder.step(PlanOp::kMask, "masked path " + path).s1 = builder.string(path);
}

void emit_sysctls(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    for (const auto& [name, value] : spec.sysctls) {
        PlanString path = builder.string(name);
        PlanString text = builder.string(value);
        PlanStep& step = builder.step(PlanOp::kSysctl, "linux.sysctl " + name);
        step.s1 = path;
        step.s2 = text;
    }
}

Result<std::string> root_path_of(const ContainerLaunch& launch) {
    const std::string& written = launch.spec->root_path;
    const std::string& bundle = launch.source_bundle.empty() ? launch.bundle_dir : launch.source_bundle;
    bool relative = !written.starts_with('/');
    // containerd mounts on BUNDLE/rootfs; an absolute path is the host's name for the same place.
    if (!launch.rootfs.empty() && relative && clean_path(written) != "/rootfs")
        return invalid("root.path: " + quoted(written) +
                       " is not \"rootfs\", where the rootfs mounts of Create go");
    return clean_path(relative ? bundle + "/" + written : written);
}

CapabilitySets sets_of(const ProcessSpec& process) {
    return process.capabilities.value_or(CapabilitySets{});
}

Status check_guest_can(const ContainerSpec& spec, const GuestFacts& facts) {
    if (spec.find_namespace(kNewCgroup) && !facts.cgroup_namespaces)
        return make_error(Code::kFailedPrecondition,
                          "linux.namespaces: the guest's kernel has no cgroup namespaces");
    if (spec.seccomp && spec.seccomp->notifies())
        BERTH_TRY(check_guest_path("linux.seccomp.listenerPath", clean_path(spec.seccomp->listener_path),
                                   facts, ""));
    if (spec.mount_label.empty()) return ok();
    if (!facts.selinux)
        return make_error(Code::kFailedPrecondition, "linux.mountLabel: the guest has no SELinux");
    return make_error(Code::kUnimplemented, "linux.mountLabel: not supported");
}

}  // namespace

void emit_join_by_path(LaunchPlanBuilder& builder, const ContainerSpec& spec, size_t index) {
    const NamespaceSpec& entry = spec.namespaces[index];
    std::string label = format("linux.namespaces[%zu].path %s", index, quoted(entry.path).c_str());
    FdRequest request;
    request.source = FdSource::kNamespacePath;
    request.path = entry.path;
    request.ns_type = entry.flag;
    request.label = label;
    int32_t slot = builder.slot(std::move(request));
    if (entry.flag == kNewPid) {
        builder.header().pid_namespace_slot = slot;
    } else if (entry.flag == kNewTime) {
        builder.header().time_namespace_slot = slot;
    } else {
        PlanStep& step = builder.step(PlanOp::kSetns, label);
        step.slot = slot;
        step.a = entry.flag;
    }
}

void emit_names(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    if (!spec.hostname.empty())
        builder.step(PlanOp::kHostname, "hostname").s1 = builder.string(spec.hostname);
    if (!spec.domainname.empty())
        builder.step(PlanOp::kDomainname, "domainname").s1 = builder.string(spec.domainname);
}

void emit_cut_off(LaunchPlanBuilder& builder, const ContainerSpec& spec) {
    bool is_private = (spec.rootfs_propagation & kMsPrivate) != 0;
    builder.step(PlanOp::kGuestPropagation, "cut off from the guest's mounts").a =
        kMsRec | (is_private ? kMsPrivate : kMsSlave);
}

std::vector<DeviceSpec> device_nodes(const ContainerSpec& spec) {
    std::vector<DeviceSpec> nodes;
    if (dev_is_foreign(spec)) return nodes;
    for (const auto& device : kDefaultDevices) {
        bool replaced = false;
        for (const DeviceSpec& own : spec.devices) replaced = replaced || own.path == device.path;
        if (!replaced)
            nodes.push_back({.path = std::string(device.path), .major = device.major, .minor = device.minor});
    }
    nodes.insert(nodes.end(), spec.devices.begin(), spec.devices.end());
    return nodes;
}

Status refuse_owners_requests(const ContainerSpec& spec) {
    // A chroot holds back only who cannot leave it.
    if (!spec.find_namespace(kNewMount)) {
        return make_error(Code::kUnimplemented,
                          "linux.namespaces: a container without its own mount namespace is not "
                          "supported");
    }
    for (size_t i = 0; i < spec.namespaces.size(); ++i) {
        if (spec.namespaces[i].flag == kNewMount && !spec.namespaces[i].path.empty()) {
            return make_error(
                Code::kUnimplemented,
                format("linux.namespaces[%zu].path: joining a mount namespace is not supported", i));
        }
    }
    for (size_t i = 0; i < spec.mounts.size(); ++i) {
        const MountOptions& options = spec.mounts[i].options;
        if (!options.bind || (options.data.empty() && options.superblock_flags.empty())) continue;
        std::string word(options.data.empty() ? std::string_view(options.superblock_flags[0])
                                              : std::string_view(options.data[0]));
        return invalid(
            format("mounts[%zu].options: a bind mount cannot take %s, which only a filesystem could", i,
                   quoted(word).c_str()));
    }
    for (size_t i = 0; i < spec.devices.size(); ++i) {
        if (spec.devices[i].type == 'b') {
            return make_error(
                Code::kPermissionDenied,
                format("linux.devices[%zu].type: block devices are not given to containers", i));
        }
    }
    return ok();
}

void emit_device_node(LaunchPlanBuilder& builder, const std::string& label, const DeviceSpec& device) {
    PlanString path = builder.string(device.path);
    PlanStep& step = builder.step(PlanOp::kNode, label);
    step.s1 = path;
    uint64_t kind = kModeCharacter;
    if (device.type == 'p') kind = kModeFifo;
    if (device.type == 'b') kind = kModeBlock;
    step.a = kind | device.mode;
    step.b = device.type == 'p' ? 0 : kernel_device_number(device.major, device.minor);
    step.c = uint64_t{device.uid} << 32 | device.gid;
}

Result<std::string> root_place_of(const ContainerLaunch& launch) {
    if (!launch.rootfs.empty()) return launch.bundle_dir + "/rootfs";
    return root_path_of(launch);
}

// The recipe of a container's first process.
Result<LaunchPlan> plan_container(const ContainerLaunch& launch) {
    const ContainerSpec& spec = *launch.spec;
    BERTH_TRY(check_guest_can(spec, *launch.facts));
    BERTH_ASSIGN(std::string root_path, root_path_of(launch));
    const std::string& source_bundle =
        launch.source_bundle.empty() ? launch.bundle_dir : launch.source_bundle;
    ProcessPlanInput process{.process = &spec.process,
                             .facts = launch.facts,
                             .stdio = &launch.stdio,
                             .seccomp = &launch.seccomp,
                             .container_id = launch.id,
                             .capabilities = sets_of(spec.process),
                             .no_new_privileges = spec.process.no_new_privileges,
                             .allow_vsock = spec.berth.allow_vsock,
                             .has_profile = spec.seccomp.has_value(),
                             .make_cwd = true,
                             .personality = spec.personality,
                             .memory_policy = spec.memory_policy ? &*spec.memory_policy : nullptr,
                             .start_hooks = spec.hooks.has(HookKind::kStartContainer)};
    BERTH_TRY(check_process(process));

    LaunchPlanBuilder builder(PlanKind::kContainer);
    emit_namespaces(builder, spec);
    KeptMounts kept;
    const bool staged = has_user_namespace(spec);
    if (staged) {
        BERTH_TRY(emit_stage(builder, launch, root_path, kept));
        emit_after_stage(builder, spec, kept);
    } else {
        for (size_t i = 0; i < spec.namespaces.size(); ++i)
            if (!spec.namespaces[i].path.empty() && (spec.namespaces[i].flag & (kNewPid | kNewTime)) == 0)
                emit_join_by_path(builder, spec, i);
    }
    builder.step(PlanOp::kSetsid, "setsid");
    const NamespaceSpec* network = spec.find_namespace(kNewNet);
    if (network && network->path.empty()) builder.step(PlanOp::kLoopbackUp, "loopback up");
    const NamespaceSpec* uts = spec.find_namespace(kNewUts);
    if (!staged || (uts && uts->path.empty())) emit_names(builder, spec);
    emit_cut_off(builder, spec);
    if (!staged) {
        emit_cgroup_owner(builder, spec, *launch.facts);
        BERTH_TRY(emit_rootfs(builder, {.mounts = &launch.rootfs,
                                        .facts = launch.facts,
                                        .bundle_dir = launch.bundle_dir,
                                        .root_path = root_path,
                                        .root_in_place = spec.hooks.has_create()}));
    }
    BERTH_TRY(emit_spec_mounts(builder, {.spec = &spec,
                                         .facts = launch.facts,
                                         .bundle_dir = launch.bundle_dir,
                                         .source_bundle = source_bundle,
                                         .root_path = launch.rootfs.empty() ? root_path : "",
                                         .kept = staged ? &kept : nullptr}));
    emit_devices(builder, spec, staged ? &kept : nullptr);
    emit_pty(builder, process);
    if (spec.process.terminal) emit_console(builder);
    emit_early_cwd(builder, spec);
    // The old root is there for the hooks, and mounts of theirs on the new one are seen in the container.
    if (spec.hooks.has_create()) builder.step(PlanOp::kHookPoint, "hooks").a = kHookPointCreate;
    emit_root_switch(builder, spec);
    emit_sysctls(builder, spec);
    emit_hidden_paths(builder, spec);
    if (!spec.find_namespace(kNewMount)) emit_leave_mounts(builder).a = 1;
    emit_stdio(builder, process);
    emit_process(builder, process);
    return std::move(builder).finish();
}

bool needs_two_cgroup_levels(const ContainerSpec& spec) {
    // In a user namespace the capability reaches no mount of cgroupfs but the container's own.
    bool admin =
        (sets_of(spec.process).bounding & capability_bit(kCapSysAdmin)) != 0 && !has_user_namespace(spec);
    return admin || has_writable_cgroup_mount(spec);
}

bool names_block_devices(const ContainerSpec& spec, std::span<const RootfsMount> rootfs) {
    auto is_disk = [](std::string_view source) {
        return source.starts_with("serial:") || source.find("/dev/") != std::string_view::npos;
    };
    for (const MountSpec& mount : spec.mounts)
        if (is_disk(mount.source)) return true;
    for (const RootfsMount& mount : rootfs)
        if (is_disk(mount.source)) return true;
    return false;
}

Status check_bind_source(std::string_view source, uint32_t st_mode, const GuestFacts& facts) {
    if ((st_mode & kModeMask) != kModeBlock) return ok();
    for (const BlockDevice& device : facts.block_devices)
        if (device.path == source) return ok();
    return make_error(Code::kPermissionDenied,
                      "mounts: " + quoted(source) + " is a block device that the host has not attached");
}

std::string describe_step_error(const LaunchPlan& plan, uint32_t step_index, int err,
                                std::string_view kernel_text) {
    std::string text = plan.step_label(step_index);
    if (step_index < plan.steps().size()) {
        const PlanStep& step = plan.steps()[step_index];
        std::string_view name = plan_op_name(step.op);
        if (text != name) text.append(": ").append(name);
        // The label says where it would have gone; here it is the source that fails.
        if (step.op == PlanOp::kTreeGuest || step.op == PlanOp::kCopySymlink)
            text.append(" ").append(quoted(plan.text(step.s1)));
    }
    text.append(": ").append(errno_name(err));
    if (!kernel_text.empty()) {
        std::string shown = quoted(trim(kernel_text));
        text.append(" (").append(shown.substr(1, shown.size() - 2)).append(")");
    }
    return text;
}

Error step_error(const LaunchPlan& plan, uint32_t step_index, int err, std::string_view kernel_text) {
    Error error;
    error.code = code_of_errno(err);
    error.err = err;
    error.message = describe_step_error(plan, step_index, err, kernel_text);
    return error;
}

}  // namespace berth::core
