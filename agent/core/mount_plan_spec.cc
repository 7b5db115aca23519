// spec.mounts as steps.
#include "agent/core/mount_plan.h"
#include "agent/core/path.h"
#include "agent/core/text.h"
#include "agent/core/user_namespace_plan.h"

namespace berth::core {
namespace {

constexpr uint64_t kNewDirectoryMode = 0755;
constexpr uint64_t kAtRecursive = 0x8000;

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

// The user namespace whose maps an id-mapped mount has.
int32_t id_map_slot_of(LaunchPlanBuilder& builder, const ContainerSpec& spec, const MountSpec& mount) {
    const IdMap& map = mount.id_map.empty() ? spec.id_map : mount.id_map;
    if (!map.empty()) return builder.id_map_slot(id_map_text(map.uids), id_map_text(map.gids));
    const NamespaceSpec* user = spec.find_namespace(kNewUser);
    BERTH_CHECK(user != nullptr);
    FdRequest request;
    request.source = FdSource::kNamespacePath;
    request.path = user->path;
    request.ns_type = kNewUser;
    request.label = "user namespace of an id-mapped mount";
    return builder.slot(std::move(request));
}

Result<std::string> source_of_bind(const MountPlanInput& input, const SpecMount& mount) {
    bool relative = !mount.spec->source.starts_with('/');
    std::string source =
        clean_path(relative ? input.source_bundle + "/" + mount.spec->source : mount.spec->source);
    // A relative source lies in the bundle, which may be a folder of ours.
    BERTH_TRY(check_guest_path(mount.json_path + ".source", source, *input.facts,
                               relative ? input.bundle_dir : ""));
    return source;
}

// The source as a path in the container; empty when it does not lie below the root file system. Neither what
// only the guest's root can do (an id map), nor a link that is copied, which is the guest's.
std::string source_in_root(const MountPlanInput& input, const MountSpec& mount, const std::string& source) {
    const MountOptions& options = mount.options;
    bool may_be = !input.root_path.empty() && !options.idmap && !options.copy_symlink;
    if (!may_be || !source.starts_with(input.root_path + "/")) return {};
    return source.substr(input.root_path.size());
}

// The tree of a bind mount in the register `mount`.
Status emit_bind_tree(LaunchPlanBuilder& builder, const MountPlanInput& input, const SpecMount& mount) {
    BERTH_ASSIGN(std::string source, source_of_bind(input, mount));
    bool keeps_locked = has_user_namespace(*input.spec);
    if (std::string inside = source_in_root(input, *mount.spec, source); !inside.empty()) {
        PlanString path = builder.string(inside);
        PlanStep& step = builder.step(PlanOp::kTreeRoot, mount.label);
        step.s1 = path;
        step.a = mount.spec->options.bind_recursive ? kAtRecursive : 0;
        emit_bind_attributes(builder, mount.label, mount.spec->options, keeps_locked);
        return ok();
    }
    emit_bind(builder, mount.label, source, mount.spec->options, keeps_locked);
    if (!mount.spec->options.idmap) return ok();
    int32_t slot = id_map_slot_of(builder, *input.spec, *mount.spec);
    PlanStep& step = builder.step(PlanOp::kMountIdmap, mount.label);
    step.slot = slot;
    step.flags = mount.spec->options.idmap_recursive ? kRecursive : 0;
    return ok();
}

Status emit_bind_mount(LaunchPlanBuilder& builder, const MountPlanInput& input, const SpecMount& mount) {
    if (!mount.spec->options.copy_symlink) {
        BERTH_TRY(emit_bind_tree(builder, input, mount));
        emit_target(builder, mount);
        emit_attach(builder, mount.label, mount.spec->options);
        return ok();
    }
    BERTH_ASSIGN(std::string source, source_of_bind(input, mount));
    PlanString from = builder.string(source);
    PlanString to = builder.string(mount.spec->destination);
    uint32_t copy = builder.next_step();
    PlanStep& step = builder.step(PlanOp::kCopySymlink, mount.label);
    step.s1 = from;
    step.s2 = to;
    step.b = 1;
    BERTH_TRY(emit_bind_tree(builder, input, mount));
    emit_target(builder, mount);
    emit_attach(builder, mount.label, mount.spec->options);
    builder.land_here(copy);
    return ok();
}

// The container's own cgroup: as the root of its cgroup namespace, or without one as a bind of its directory,
// which shows no parents and is read-only unless "rw" was written out.
Status emit_cgroup_mount(LaunchPlanBuilder& builder, const MountPlanInput& input, const SpecMount& mount) {
    MountOptions options = mount.spec->options;
    if (input.spec->find_namespace(kNewCgroup)) {
        FilesystemMount filesystem{.type = "cgroup2", .source = mount.spec->source, .options = options};
        // mount(2), which takes more, would make it in the guest's cgroup namespace.
        if (needs_mount_syscall(filesystem))
            return invalid(mount.json_path +
                           ": source or an option of a cgroup mount is longer than 255 bytes");
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

// A filesystem in the register `mount`, made where anything may be.
Status emit_filesystem_tree(LaunchPlanBuilder& builder, const MountPlanInput& input, const SpecMount& mount) {
    BERTH_ASSIGN(FilesystemMount filesystem,
                 resolve_filesystem(mount.json_path, mount.spec->type, mount.spec->source,
                                    mount.spec->options, *input.facts, ""));
    if (needs_mount_syscall(filesystem)) {
        std::string place = input.bundle_dir + "/mounts/spec-" + std::to_string(mount.index);
        emit_mount_syscall(builder, mount.label, filesystem, place);
        builder.step(PlanOp::kTreeGuest, mount.label).s1 = builder.string(place);
    } else {
        emit_filesystem(builder, mount.label, filesystem, "");
    }
    return ok();
}

Status emit_filesystem_mount(LaunchPlanBuilder& builder, const MountPlanInput& input,
                             const SpecMount& mount) {
    if (mount.spec->type == "tmpfs") {
        BERTH_ASSIGN(FilesystemMount filesystem,
                     resolve_filesystem(mount.json_path, mount.spec->type, mount.spec->source,
                                        mount.spec->options, *input.facts, ""));
        if (!needs_mount_syscall(filesystem)) {
            emit_tmpfs(builder, mount, std::move(filesystem));
            return ok();
        }
    }
    BERTH_TRY(emit_filesystem_tree(builder, input, mount));
    emit_target(builder, mount);
    emit_attach(builder, mount.label, mount.spec->options);
    return ok();
}

// What a user namespace's root may mount by itself, and belongs to it then.
constexpr std::string_view kOfUserNamespace[] = {"proc",   "sysfs",  "devpts",  "tmpfs",
                                                 "mqueue", "cgroup", "cgroup2", "ramfs"};

// sysfs shows a network namespace, and is its owner's to mount. For a namespace of the guest's, runc and crun
// bind the guest's.
bool is_guests_sysfs(const ContainerSpec& spec, const MountSpec& mount) {
    const NamespaceSpec* network = spec.find_namespace(kNewNet);
    const NamespaceSpec* user = spec.find_namespace(kNewUser);
    return mount.type == "sysfs" && (!network || (!network->path.empty() && user && user->path.empty()));
}

SpecMount spec_mount_at(const ContainerSpec& spec, size_t index) {
    const MountSpec& mount = spec.mounts[index];
    const std::string kind = mount.options.bind ? "bind" : mount.type;
    return {.spec = &mount,
            .index = index,
            .json_path = format("mounts[%zu]", index),
            .label = format("mount %zu (%s on %s)", index, kind.c_str(), mount.destination.c_str())};
}

}  // namespace

Status emit_staged_mounts(LaunchPlanBuilder& builder, const MountPlanInput& input) {
    const ContainerSpec& spec = *input.spec;
    input.kept->mounts.assign(spec.mounts.size(), -1);
    for (size_t i = 0; i < spec.mounts.size(); ++i) {
        SpecMount mount = spec_mount_at(spec, i);
        bool by_namespace = false;
        for (std::string_view type : kOfUserNamespace)
            by_namespace = by_namespace || mount.spec->type == type;
        if (mount.spec->options.copy_symlink) {
            // Its place may lie in a mount that only the namespace's own root makes.
            return make_error(
                Code::kUnimplemented,
                mount.json_path + ".options: \"copy-symlink\" is not supported with a user namespace");
        }
        if (mount.spec->options.bind) {
            BERTH_ASSIGN(std::string source, source_of_bind(input, mount));
            if (!source_in_root(input, *mount.spec, source).empty())
                continue;  // what mounts make is not there yet
            BERTH_TRY(emit_bind_tree(builder, input, mount));
        } else if (is_guests_sysfs(spec, *mount.spec)) {
            MountOptions options = mount.spec->options;
            options.bind_recursive = true;
            emit_bind(builder, mount.label, "/sys", options, true);
        } else if (!by_namespace) {
            BERTH_TRY(emit_filesystem_tree(builder, input, mount));
        } else {
            continue;
        }
        uint32_t place = input.kept->add();
        builder.step(PlanOp::kKeepMount, mount.label).a = place;
        input.kept->mounts[i] = static_cast<int>(place);
    }
    return ok();
}

bool has_writable_cgroup_mount(const ContainerSpec& spec) {
    for (const MountSpec& mount : spec.mounts) {
        if (mount.options.bind || (mount.type != "cgroup" && mount.type != "cgroup2")) continue;
        bool readonly = ((mount.options.top.set | mount.options.recursive.set) & kAttrRdonly) != 0;
        bool in_namespace = spec.find_namespace(kNewCgroup) != nullptr;
        if (in_namespace ? !readonly : mount.options.rw_asked) return true;
    }
    return false;
}

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
        SpecMount mount = spec_mount_at(*input.spec, i);
        if (input.kept && input.kept->mounts[i] >= 0) {
            builder.step(PlanOp::kTreeKept, mount.label).a = static_cast<uint64_t>(input.kept->mounts[i]);
            emit_target(builder, mount);
            emit_attach(builder, mount.label, spec.options);
        } else if (spec.options.bind)
            BERTH_TRY(emit_bind_mount(builder, input, mount));
        else if (spec.type == "cgroup" || spec.type == "cgroup2")
            BERTH_TRY(emit_cgroup_mount(builder, input, mount));
        else
            BERTH_TRY(emit_filesystem_mount(builder, input, mount));
    }
    return ok();
}

}  // namespace berth::core
