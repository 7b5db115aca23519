#include "agent/core/rootfs_plan.h"

#include <algorithm>
#include <optional>

#include "agent/core/limits.h"
#include "agent/core/mount_plan.h"
#include "agent/core/path.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint64_t kAtRecursive = 0x8000;
constexpr uint64_t kNewDirectoryMode = 0755;

struct Directory {
    std::string path;
    uint32_t mode = 0755;
    uint32_t uid = 0;
    uint32_t gid = 0;
};

// One mount after its templates are filled in and its device is found.
struct Prepared {
    std::string json_path;  // "rootfs[2]"
    std::string label;      // "rootfs mount 2 (overlay)"
    std::string place;      // where it is mounted, in the guest; empty: at `target` in root
    std::string target;
    MountOptions options;
    std::string bind_source;                    // of a bind
    std::optional<FilesystemMount> filesystem;  // of anything else
    std::vector<Directory> directories;         // made before
};

class RootfsPlanner {
 public:
    explicit RootfsPlanner(const RootfsPlanInput& input) : input_(input), mounts_(*input.mounts) {}

    Result<std::vector<Prepared>> prepare();

 private:
    Result<Prepared> prepare_one(size_t index);
    Status check_layout();
    Status strip_prefixes(RootfsMount& mount, const std::string& json_path, bool& has_templates, bool& makes);
    Status fill_templates(std::string& text, size_t index, const std::string& json_path) const;
    Result<std::string> template_value(std::string_view body, size_t index,
                                       const std::string& json_path) const;
    Result<Directory> parse_directory(std::string_view text, size_t index,
                                      const std::string& json_path) const;
    Status resolve(Prepared& mount, const RootfsMount& source) const;

    std::string place_of(size_t index) const {
        if (index == root_index_) return input_.bundle_dir + "/rootfs";
        return mounts_[index].target.empty() ? input_.bundle_dir + "/mounts/" + std::to_string(index) : "";
    }

    const RootfsPlanInput& input_;
    const std::vector<RootfsMount>& mounts_;
    std::vector<Prepared> done_;
    size_t root_index_ = 0;
};

Status RootfsPlanner::check_layout() {
    if (mounts_.size() > limits::kRootfsMounts)
        return make_error(Code::kResourceExhausted, format("rootfs: %zu mounts, more than the limit of %zu",
                                                           mounts_.size(), limits::kRootfsMounts));
    bool found = false;
    for (size_t i = 0; i < mounts_.size(); ++i) {
        if (!mounts_[i].target.empty()) continue;
        root_index_ = i;
        found = true;
    }
    if (!found) return invalid("rootfs: no mount without a target, which would be the root");
    for (size_t i = 0; i < mounts_.size(); ++i) {
        const std::string& target = mounts_[i].target;
        std::string json_path = format("rootfs[%zu].target: ", i);
        if (target.empty()) continue;
        if (i < root_index_) return invalid(json_path + "a mount inside the root must come after the root");
        if (target.size() > limits::kPathBytes) return invalid(json_path + "longer than 4095 bytes");
        if (has_dot_dot(target)) return invalid(json_path + "must not contain \"..\"");
        if (target.find('\0') != std::string::npos) return invalid(json_path + "contains a NUL byte");
        if (clean_path(target) == "/") return invalid(json_path + "must not be the root itself");
        if (is_at_or_below(clean_path(target), "/proc")) return invalid(json_path + "must not lie in /proc");
    }
    return ok();
}

Status RootfsPlanner::strip_prefixes(RootfsMount& mount, const std::string& json_path, bool& has_templates,
                                     bool& makes) {
    constexpr std::string_view kFormat = "format/";
    constexpr std::string_view kMkdir = "mkdir/";
    while (true) {
        if (mount.type.starts_with(kFormat) && !has_templates) {
            has_templates = true;
            mount.type.erase(0, kFormat.size());
        } else if (mount.type.starts_with(kMkdir) && !makes) {
            makes = true;
            mount.type.erase(0, kMkdir.size());
        } else {
            break;
        }
    }
    if (mount.type.find('/') != std::string::npos)
        return make_error(Code::kUnimplemented,
                          json_path + ".type: " + quoted(mount.type) + " is not supported");
    return ok();
}

Result<std::string> RootfsPlanner::template_value(std::string_view body, size_t index,
                                                  const std::string& json_path) const {
    std::vector<std::string_view> words;
    for (std::string_view word : split(body, ' '))
        if (!word.empty()) words.push_back(word);
    std::vector<size_t> numbers;
    for (size_t i = 1; i < words.size(); ++i) {
        auto number = parse_number<size_t>(words[i]);
        if (!number || *number >= index)
            return invalid(json_path + ": {{" + std::string(body) + "}} must name an earlier mount");
        numbers.push_back(*number);
    }
    auto place = [&](size_t number) { return done_[number].place; };
    bool wants_place = !words.empty() && (words[0] == "mount" || words[0] == "overlay");
    for (size_t number : numbers)
        if (wants_place && place(number).empty())
            return invalid(json_path + ": {{" + std::string(body) + "}} names a mount that lies in the root");
    if (words.size() == 2 && words[0] == "mount") return place(numbers[0]);
    if (words.size() == 2 && words[0] == "target") return mounts_[numbers[0]].target;
    if (words.size() == 2 && words[0] == "source") {
        const Prepared& earlier = done_[numbers[0]];
        return earlier.filesystem ? earlier.filesystem->source : earlier.bind_source;
    }
    if (words.size() == 3 && words[0] == "overlay") {
        std::string joined = place(numbers[0]);
        for (size_t at = numbers[0]; at != numbers[1];) {
            at = numbers[1] > at ? at + 1 : at - 1;
            joined += ":" + place(at);
        }
        return joined;
    }
    return invalid(json_path + ": unknown template {{" + std::string(body) + "}}");
}

Status RootfsPlanner::fill_templates(std::string& text, size_t index, const std::string& json_path) const {
    size_t from = 0;
    while (true) {
        size_t open = text.find("{{", from);
        if (open == std::string::npos) return ok();
        size_t close = text.find("}}", open);
        if (close == std::string::npos)
            return invalid(json_path + ": a template without its end: " + quoted(text));
        BERTH_ASSIGN(
            std::string value,
            template_value(std::string_view(text).substr(open + 2, close - open - 2), index, json_path));
        text.replace(open, close + 2 - open, value);
        from = open + value.size();
        if (text.size() > limits::kMountDataBytes)
            return invalid(json_path + ": longer than 4095 bytes when filled in");
    }
}

// PATH[:MODE[:UID:GID]], the path below a mount that this container made before.
Result<Directory> RootfsPlanner::parse_directory(std::string_view text, size_t index,
                                                 const std::string& json_path) const {
    std::vector<std::string_view> parts = split(text, ':');
    Directory directory;
    Error malformed = invalid(json_path + ": " + quoted(text) + " is not PATH[:MODE[:UID:GID]]");
    if (parts.size() == 3 || parts.size() > 4 || parts[0].empty()) return malformed;
    if (parts.size() > 1) {
        auto mode = parse_number<uint32_t>(parts[1], 8);
        if (!mode || *mode > 07777) return malformed;
        directory.mode = *mode;
    }
    if (parts.size() == 4) {
        auto uid = parse_number<uint32_t>(parts[2]);
        auto gid = parse_number<uint32_t>(parts[3]);
        if (!uid || !gid || *uid == UINT32_MAX || *gid == UINT32_MAX) return malformed;
        directory.uid = *uid;
        directory.gid = *gid;
    }
    directory.path = clean_path(parts[0]);
    bool below = false;
    for (size_t i = 0; i < index; ++i)
        below = below || (!done_[i].place.empty() && directory.path != done_[i].place &&
                          is_at_or_below(directory.path, done_[i].place));
    if (below && !has_dot_dot(parts[0]) && parts[0].starts_with('/')) return directory;
    return make_error(Code::kPermissionDenied,
                      json_path + ": " + quoted(parts[0]) + " is not below an earlier mount of this rootfs");
}

Status RootfsPlanner::resolve(Prepared& mount, const RootfsMount& source) const {
    if (source.source.size() > limits::kPathBytes)
        return invalid(mount.json_path + ".source: longer than 4095 bytes");
    if (!mount.options.bind && source.type != "bind") {
        BERTH_ASSIGN(mount.filesystem,
                     resolve_filesystem(mount.json_path, source.type, source.source, mount.options,
                                        *input_.facts, input_.bundle_dir + "/mounts"));
        mount.options = mount.filesystem->options;
        return ok();
    }
    std::string field = mount.json_path + ".source";
    if (!source.source.starts_with('/') || has_dot_dot(source.source))
        return invalid(field + ": " + quoted(source.source) + " must be an absolute path without \"..\"");
    if (!mount.options.data.empty())
        return invalid(mount.json_path + ".options: a bind mount cannot take " +
                       quoted(mount.options.data[0]));
    mount.options.bind = true;
    mount.bind_source = clean_path(source.source);
    return check_guest_path(field, mount.bind_source, *input_.facts, input_.bundle_dir + "/mounts");
}

Result<Prepared> RootfsPlanner::prepare_one(size_t index) {
    constexpr std::string_view kMkdirOption = "X-containerd.mkdir.path=";
    RootfsMount source = mounts_[index];
    Prepared mount;
    mount.json_path = format("rootfs[%zu]", index);
    mount.place = place_of(index);
    mount.target = mounts_[index].target;
    bool has_templates = false;
    bool makes = false;
    BERTH_TRY(strip_prefixes(source, mount.json_path, has_templates, makes));
    if (source.options.size() > limits::kMountOptions)
        return make_error(Code::kResourceExhausted, mount.json_path + ".options: too many");
    std::string options_path = mount.json_path + ".options";
    if (has_templates) {
        BERTH_TRY(fill_templates(source.source, index, mount.json_path + ".source"));
        for (std::string& option : source.options) BERTH_TRY(fill_templates(option, index, options_path));
    }
    std::vector<std::string> words;
    for (std::string& option : source.options) {
        if (option.find('\0') != std::string::npos) return invalid(options_path + ": contains a NUL byte");
        if (!option.starts_with("X-containerd.")) {
            words.push_back(std::move(option));
        } else if (makes && option.starts_with(kMkdirOption)) {
            BERTH_ASSIGN(
                Directory directory,
                parse_directory(std::string_view(option).substr(kMkdirOption.size()), index, options_path));
            mount.directories.push_back(std::move(directory));
        } else {
            return make_error(Code::kUnimplemented,
                              options_path + ": " + quoted(option) + " is not supported");
        }
    }
    auto options = parse_mount_options(words);
    if (!options.ok()) return std::move(options.error()).within(options_path);
    mount.options = std::move(*options);
    if (source.source.find('\0') != std::string::npos)
        return invalid(mount.json_path + ".source: contains a NUL byte");
    if (mount.options.idmap)
        return make_error(Code::kUnimplemented, options_path + ": \"idmap\" is not supported");
    if (mount.options.copy_symlink)
        return make_error(Code::kUnimplemented, options_path + ": \"copy-symlink\" is not supported");
    if (mount.options.tmpcopyup)
        return make_error(Code::kUnimplemented, options_path + ": \"tmpcopyup\" is not supported");
    BERTH_TRY(resolve(mount, source));
    mount.label =
        format("rootfs mount %zu (%s)", index, mount.filesystem ? mount.filesystem->type.c_str() : "bind");
    return mount;
}

Result<std::vector<Prepared>> RootfsPlanner::prepare() {
    BERTH_TRY(check_layout());
    for (size_t i = 0; i < mounts_.size(); ++i) {
        BERTH_ASSIGN(Prepared mount, prepare_one(i));
        done_.push_back(std::move(mount));
    }
    return std::move(done_);
}

void emit_directories(LaunchPlanBuilder& builder, const Prepared& mount) {
    for (const Directory& directory : mount.directories) {
        PlanString path = builder.string(directory.path);
        PlanStep& step = builder.step(PlanOp::kMkdirGuest, mount.label);
        step.s1 = path;
        step.a = directory.mode;
        step.b = directory.uid;
        step.c = directory.gid;
    }
}

void emit_in_root(LaunchPlanBuilder& builder, const Prepared& mount) {
    PlanString path = builder.string(clean_path(mount.target));
    PlanStep& step = builder.step(PlanOp::kTargetLike, mount.label);
    step.s1 = path;
    step.a = kNewDirectoryMode;
    emit_attach(builder, mount.label, mount.options);
}

void emit_prepared(LaunchPlanBuilder& builder, const Prepared& mount, const std::string& bundle_dir,
                   size_t index) {
    emit_directories(builder, mount);
    if (mount.filesystem && needs_mount_syscall(*mount.filesystem)) {
        // mount(2) puts it on a path at once; one that belongs into the root is taken there from a place of
        // its own.
        std::string place =
            mount.place.empty() ? bundle_dir + "/mounts/" + std::to_string(index) : mount.place;
        emit_mount_syscall(builder, mount.label, *mount.filesystem, place);
        PlanString path = builder.string(place);
        builder.step(mount.place.empty() ? PlanOp::kTreeGuest : PlanOp::kTargetGuest, mount.label).s1 = path;
        if (mount.place.empty()) emit_in_root(builder, mount);
        return;
    }
    if (mount.filesystem)
        emit_filesystem(builder, mount.label, *mount.filesystem, "");
    else
        emit_bind(builder, mount.label, mount.bind_source, mount.options, false);
    if (mount.place.empty()) return emit_in_root(builder, mount);
    builder.step(PlanOp::kTargetGuest, mount.label).s1 = builder.string(mount.place);
    emit_attach(builder, mount.label, mount.options);
}

void emit_plain_root(LaunchPlanBuilder& builder, const RootfsPlanInput& input) {
    // Bound onto a place of ours, so that the root is a mount of its own, as pivot_root demands.
    constexpr std::string_view kLabel = "root.path";
    PlanString source = builder.string(input.root_path);
    PlanString place = builder.string(input.root_in_place ? input.root_path : input.bundle_dir + "/rootfs");
    PlanStep& tree = builder.step(PlanOp::kTreeGuest, kLabel);
    tree.s1 = source;
    tree.a = kAtRecursive;
    builder.step(PlanOp::kTargetGuest, kLabel).s1 = place;
    builder.step(PlanOp::kAttach, kLabel);
    builder.step(PlanOp::kEnterRoot, kLabel);
}

}  // namespace

Status emit_rootfs(LaunchPlanBuilder& builder, const RootfsPlanInput& input) {
    if (input.mounts->empty()) {
        BERTH_TRY(check_guest_path("root.path", input.root_path, *input.facts, input.bundle_dir));
        emit_plain_root(builder, input);
        return ok();
    }
    RootfsPlanner planner(input);
    BERTH_ASSIGN(std::vector<Prepared> mounts, planner.prepare());
    std::string root_place = input.bundle_dir + "/rootfs";
    for (size_t i = 0; i < mounts.size(); ++i) {
        emit_prepared(builder, mounts[i], input.bundle_dir, i);
        if (mounts[i].place == root_place) builder.step(PlanOp::kEnterRoot, mounts[i].label);
    }
    return ok();
}

}  // namespace berth::core
