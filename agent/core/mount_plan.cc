#include "agent/core/mount_plan.h"

#include <algorithm>

#include "agent/core/path.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint64_t kAtRecursive = 0x8000;
constexpr size_t kFsconfigValueBytes = 255;  // fsconfig(2) takes 256 with the NUL

// Filesystems of which the kernel has one instance a namespace: a read-only superblock would be everyone's,
// so "ro" is the mount's alone. tmpfs is here because its root is still filled (tmpcopyup) after the mount
// exists.
constexpr std::string_view kMountReadonlyOnly[] = {"proc", "sysfs", "cgroup2", "mqueue", "devpts", "tmpfs"};

// Known without asking: they may be modules, which /proc/filesystems lists only once loaded.
constexpr std::string_view kNoDevice[] = {"proc",    "sysfs",   "devpts", "tmpfs",   "mqueue",
                                          "cgroup2", "overlay", "ramfs",  "virtiofs"};
constexpr std::string_view kOnDevice[] = {"ext4", "erofs", "squashfs", "xfs"};
constexpr std::string_view kOverlayDirectories[] = {"lowerdir", "upperdir", "workdir", "lowerdir+",
                                                    "datadir+"};

template <typename Range>
bool contains(const Range& range, std::string_view wanted) {
    return std::find(std::begin(range), std::end(range), wanted) != std::end(range);
}

Error refuse(Code code, std::string_view json_path, std::string_view field, std::string problem) {
    return make_error(code, std::string(json_path) + "." + std::string(field) + ": " + std::move(problem));
}

Result<std::string> resolve_device(std::string_view json_path, std::string_view source,
                                   const GuestFacts& facts) {
    constexpr std::string_view kSerial = "serial:";
    if (source.starts_with(kSerial)) {
        std::string_view serial = source.substr(kSerial.size());
        for (const BlockDevice& device : facts.block_devices)
            if (!serial.empty() && device.serial == serial) return device.path;
        return refuse(Code::kNotFound, json_path, "source",
                      "no attached disk has the serial " + quoted(serial));
    }
    for (const BlockDevice& device : facts.block_devices)
        if (device.path == source) return device.path;
    return refuse(Code::kPermissionDenied, json_path, "source",
                  quoted(source) + " is not a block device that the host attached");
}

Status check_overlay(std::string_view json_path, const MountOptions& options, const GuestFacts& facts,
                     std::string_view allowed_dir) {
    for (const std::string& option : options.data) {
        size_t equals = option.find('=');
        if (equals == std::string::npos ||
            !contains(kOverlayDirectories, std::string_view(option).substr(0, equals)))
            continue;
        for (std::string_view directory : split(std::string_view(option).substr(equals + 1), ':')) {
            if (directory.empty()) continue;  // "::" sets data-only layers apart
            std::string field = std::string(json_path) + ".options";
            if (!directory.starts_with('/'))
                return invalid(field + ": overlay directory " + quoted(directory) +
                               " must be an absolute path");
            if (has_dot_dot(directory) || directory.find('\\') != std::string_view::npos)
                return invalid(field + ": overlay directory " + quoted(directory) +
                               " must not contain \"..\" or a backslash");
            BERTH_TRY(check_guest_path(field, clean_path(directory), facts, allowed_dir));
        }
    }
    return ok();
}

void emit_option(LaunchPlanBuilder& builder, std::string_view label, std::string_view option) {
    size_t equals = option.find('=');
    PlanString name = builder.string(option.substr(0, equals));
    if (equals == std::string_view::npos) {
        builder.step(PlanOp::kFsFlag, label).s1 = name;
        return;
    }
    PlanString value = builder.string(option.substr(equals + 1));
    PlanStep& step = builder.step(PlanOp::kFsString, label);
    step.s1 = name;
    step.s2 = value;
}

}  // namespace

Status check_guest_path(std::string_view json_path, std::string_view path, const GuestFacts& facts,
                        std::string_view allowed_dir) {
    constexpr std::string_view kFirmware = "/sys/firmware";
    if (!allowed_dir.empty() && is_at_or_below(path, allowed_dir)) return ok();
    bool shows_agent = is_at_or_below(path, facts.agent_dir) || is_at_or_below(facts.agent_dir, path);
    if (!shows_agent && !is_at_or_below(path, kFirmware)) return ok();
    std::string shown = shows_agent ? "the agent's " + facts.agent_dir : std::string(kFirmware);
    return make_error(Code::kPermissionDenied,
                      std::string(json_path) + ": " + quoted(path) + " would show " + shown);
}

Result<FilesystemMount> resolve_filesystem(std::string_view json_path, std::string_view type,
                                           std::string_view source, const MountOptions& options,
                                           const GuestFacts& facts, std::string_view allowed_dir) {
    FilesystemMount mount;
    mount.type = type == "cgroup" ? "cgroup2" : std::string(type);
    mount.source = source;
    mount.options = options;
    const Filesystem* known = facts.find_filesystem(mount.type);
    bool no_device = contains(kNoDevice, mount.type) || (known && !known->needs_device);
    bool on_device = contains(kOnDevice, mount.type) || (known && known->needs_device);
    if (!no_device && !on_device)
        return refuse(Code::kFailedPrecondition, json_path, "type",
                      "the guest's kernel has no filesystem " + quoted(mount.type));
    if (on_device) {
        BERTH_ASSIGN(mount.source, resolve_device(json_path, source, facts));
        // A disk is a block device already; erofs and squashfs can be nothing but read-only, and opening a
        // read-only disk for writing fails.
        std::erase(mount.options.data, "loop");
        if (mount.type == "erofs" || mount.type == "squashfs") mount.options.top.set |= kAttrRdonly;
    }
    if (mount.type == "overlay") BERTH_TRY(check_overlay(json_path, options, facts, allowed_dir));
    return mount;
}

bool needs_mount_syscall(const FilesystemMount& mount) {
    if (mount.source.size() > kFsconfigValueBytes) return true;
    for (const std::string& option : mount.options.data)
        if (option.size() - std::min(option.size(), option.find('=')) > kFsconfigValueBytes) return true;
    return false;
}

void emit_mount_syscall(LaunchPlanBuilder& builder, std::string_view label, const FilesystemMount& mount,
                        std::string_view place) {
    std::string data;
    for (const std::string& option : mount.options.data) data.append(data.empty() ? "" : ",").append(option);
    std::string packed = mount.type;
    packed.push_back('\0');
    packed.append(mount.source);
    packed.push_back('\0');
    packed.append(data);
    PlanString path = builder.string(place);
    PlanString arguments = builder.bytes(std::as_bytes(std::span(packed)));
    builder.step(PlanOp::kTargetGuest, label).s1 = path;  // makes the directory
    PlanStep& step = builder.step(PlanOp::kMountGuest, label);
    step.s1 = path;
    step.s2 = arguments;
    step.a = mount_flags_of_attributes(mount.options.top.set | mount.options.recursive.set) |
             mount.options.superblock_mask;
}

void emit_filesystem(LaunchPlanBuilder& builder, std::string_view label, const FilesystemMount& mount,
                     std::string_view inherit_mode_of) {
    BERTH_CHECK(!needs_mount_syscall(mount));
    const MountOptions& options = mount.options;
    uint64_t attributes = options.top.set | options.recursive.set;
    builder.step(PlanOp::kFsOpen, label).s1 = builder.string(mount.type);
    if (!mount.source.empty()) emit_option(builder, label, "source=" + mount.source);
    for (const std::string& option : options.data) emit_option(builder, label, option);
    for (const std::string& flag : options.superblock_flags) emit_option(builder, label, flag);
    if ((attributes & kAttrRdonly) && !contains(kMountReadonlyOnly, mount.type))
        emit_option(builder, label, "ro");
    if (!inherit_mode_of.empty()) builder.step(PlanOp::kFsModeOf, label).s1 = builder.string(inherit_mode_of);
    builder.step(PlanOp::kFsMount, label).a = attributes;
}

namespace {

void emit_change(LaunchPlanBuilder& builder, std::string_view label, const MountOptions& options,
                 const BindAttributes& top) {
    if (!top.change.empty()) {
        PlanStep& step = builder.step(PlanOp::kMountSetattr, label);
        step.a = top.change.set;
        step.b = top.change.clear;
        step.c = top.unnamed;
    }
    if (!options.recursive.empty()) {
        PlanStep& step = builder.step(PlanOp::kMountSetattr, label);
        step.a = options.recursive.set;
        step.b = options.recursive.clear;
        step.flags = kRecursive;
    }
}

}  // namespace

void emit_attributes(LaunchPlanBuilder& builder, std::string_view label, const MountOptions& options) {
    emit_change(builder, label, options, {.change = options.top});
}

void emit_bind_attributes(LaunchPlanBuilder& builder, std::string_view label, const MountOptions& options,
                          bool keeps_locked) {
    emit_change(builder, label, options, attributes_of_bind(options, keeps_locked));
}

void emit_bind(LaunchPlanBuilder& builder, std::string_view label, std::string_view source,
               const MountOptions& options, bool keeps_locked) {
    PlanString path = builder.string(source);
    PlanStep& step = builder.step(PlanOp::kTreeGuest, label);
    step.s1 = path;
    step.a = options.bind_recursive ? kAtRecursive : 0;
    emit_bind_attributes(builder, label, options, keeps_locked);
}

void emit_attach(LaunchPlanBuilder& builder, std::string_view label, const MountOptions& options) {
    builder.step(PlanOp::kAttach, label);
    for (const Propagation& propagation : options.propagation) {
        PlanStep& step = builder.step(PlanOp::kSetPropagation, label);
        step.a = propagation.type;
        step.flags = propagation.recursive ? kRecursive : 0;
    }
}

}  // namespace berth::core
