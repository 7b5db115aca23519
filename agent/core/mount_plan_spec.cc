// spec.mounts as steps.
#include "agent/core/mount_plan.h"
#include "agent/core/path.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint64_t kNewDirectoryMode = 0755;

struct SpecMount {
    const MountSpec* spec = nullptr;
    size_t index = 0;
    std::string json_path;  // "mounts[3]"
    std::string label;      // "mount 3 (tmpfs on /run)"
};

bool has_option(const MountOptions& options, std::string_view name) {
    for (const std::string& option : options.data)
        if (option.starts_with(name)) return true;
    return false;
}

void emit_target(LaunchPlanBuilder& builder, const SpecMount& mount) {
    const std::string& destination = mount.spec->destination;
    PlanString path = builder.string(destination);
    // procfs and sysfs decide what later writes hit: their place must be what its name says.
    bool exact = mount.spec->type == "proc" || mount.spec->type == "sysfs" || destination == "/proc";
    PlanStep& step = builder.step(exact ? PlanOp::kTargetDir : PlanOp::kTargetLike, mount.label);
    step.s1 = path;
    step.a = kNewDirectoryMode;
    if (exact) step.b = 1;
    if (!exact && is_at_or_below(destination, "/proc")) step.c = 1;
}

Status emit_bind_mount(LaunchPlanBuilder& builder, const MountPlanInput& input, const SpecMount& mount) {
    bool relative = !mount.spec->source.starts_with('/');
    std::string source =
        clean_path(relative ? input.source_bundle + "/" + mount.spec->source : mount.spec->source);
    // A relative source lies in the bundle, which may be a folder of ours.
    BERTH_TRY(check_guest_path(mount.json_path + ".source", source, *input.facts,
                               relative ? input.bundle_dir : ""));
    emit_bind(builder, mount.label, source, mount.spec->options);
    emit_target(builder, mount);
    emit_attach(builder, mount.label, mount.spec->options);
    return ok();
}

// The container's own cgroup: as the root of its cgroup namespace, or without one as a bind of its directory,
// which shows no parents and is read-only unless "rw" was written out.
Status emit_cgroup_mount(LaunchPlanBuilder& builder, const MountPlanInput& input, const SpecMount& mount) {
    MountOptions options = mount.spec->options;
    if (input.spec->find_namespace(kNewCgroup)) {
        FilesystemMount filesystem{.type = "cgroup2", .source = mount.spec->source, .options = options};
        emit_filesystem(builder, mount.label, filesystem, "");
    } else {
        FdRequest request;
        request.source = FdSource::kCgroupNamespaceRoot;
        request.label = mount.json_path;
        int32_t slot = builder.slot(std::move(request));
        builder.step(PlanOp::kTreeSlot, mount.label).slot = slot;
        if (!options.rw_asked) {
            options.top.set |= kAttrRdonly;
            options.top.clear &= ~kAttrRdonly;
        }
        emit_attributes(builder, mount.label, options);
    }
    emit_target(builder, mount);
    emit_attach(builder, mount.label, options);
    return ok();
}

void emit_tmpfs(LaunchPlanBuilder& builder, const SpecMount& mount, FilesystemMount filesystem) {
    MountOptions& options = filesystem.options;
    // Filled first, read-only after: copied-up content, and the nodes in /dev (container_plan.cc).
    bool later = options.tmpcopyup || mount.spec->destination == "/dev";
    bool readonly = ((options.top.set | options.recursive.set) & kAttrRdonly) != 0;
    if (later) {
        options.top.set &= ~kAttrRdonly;
        options.recursive.set &= ~kAttrRdonly;
    }
    emit_filesystem(builder, mount.label, filesystem,
                    has_option(options, "mode=") ? "" : mount.spec->destination);
    if (options.tmpcopyup)
        builder.step(PlanOp::kTmpCopyUp, mount.label).s1 = builder.string(mount.spec->destination);
    if (options.tmpcopyup && readonly && mount.spec->destination != "/dev")
        builder.step(PlanOp::kMountSetattr, mount.label).a = kAttrRdonly;
    emit_target(builder, mount);
    emit_attach(builder, mount.label, options);
}

Status emit_filesystem_mount(LaunchPlanBuilder& builder, const MountPlanInput& input,
                             const SpecMount& mount) {
    BERTH_ASSIGN(FilesystemMount filesystem,
                 resolve_filesystem(mount.json_path, mount.spec->type, mount.spec->source,
                                    mount.spec->options, *input.facts, ""));
    if (filesystem.type == "tmpfs" && !needs_mount_syscall(filesystem)) {
        emit_tmpfs(builder, mount, std::move(filesystem));
        return ok();
    }
    if (needs_mount_syscall(filesystem)) {
        std::string place = input.bundle_dir + "/mounts/spec-" + std::to_string(mount.index);
        emit_mount_syscall(builder, mount.label, filesystem, place);
        builder.step(PlanOp::kTreeGuest, mount.label).s1 = builder.string(place);
    } else {
        emit_filesystem(builder, mount.label, filesystem, "");
    }
    emit_target(builder, mount);
    emit_attach(builder, mount.label, mount.spec->options);
    return ok();
}

}  // namespace

std::vector<std::string> firmware_paths(const ContainerSpec& spec) {
    std::vector<std::string> paths;
    for (const MountSpec& mount : spec.mounts) {
        bool shows = mount.options.bind ? clean_path(mount.source) == "/sys" : mount.type == "sysfs";
        if (shows) paths.push_back(mount.destination + "/firmware");
    }
    return paths;
}

bool dev_is_foreign(const ContainerSpec& spec) {
    bool foreign = false;
    for (const MountSpec& mount : spec.mounts)
        if (mount.destination == "/dev") foreign = mount.options.bind;
    return foreign;
}

Status emit_spec_mounts(LaunchPlanBuilder& builder, const MountPlanInput& input) {
    for (size_t i = 0; i < input.spec->mounts.size(); ++i) {
        const MountSpec& spec = input.spec->mounts[i];
        const std::string kind = spec.options.bind ? "bind" : spec.type;
        SpecMount mount{.spec = &spec,
                        .index = i,
                        .json_path = format("mounts[%zu]", i),
                        .label = format("mount %zu (%s on %s)", i, kind.c_str(), spec.destination.c_str())};
        if (spec.options.bind)
            BERTH_TRY(emit_bind_mount(builder, input, mount));
        else if (spec.type == "cgroup" || spec.type == "cgroup2")
            BERTH_TRY(emit_cgroup_mount(builder, input, mount));
        else
            BERTH_TRY(emit_filesystem_mount(builder, input, mount));
    }
    return ok();
}

}  // namespace berth::core
