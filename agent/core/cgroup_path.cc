#include "agent/core/cgroup_path.h"

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

// Names that the kernel's own files have, or may come to have: CONTROLLER.NAME and cgroup.NAME.
bool looks_like_kernel_file(std::string_view name) {
    constexpr std::string_view kPrefixes[] = {
        "cgroup", "cpu", "cpuset",     "io",    "memory",  "hugetlb",  "pids",    "rdma",    "misc",
        "dmem",   "irq", "perf_event", "debug", "net_cls", "net_prio", "freezer", "devices", "blkio"};
    size_t dot = name.find('.');
    if (dot == std::string_view::npos) return false;
    for (std::string_view prefix : kPrefixes) {
        if (name.substr(0, dot) == prefix) return true;
    }
    return false;
}

Error refused(std::string_view cgroups_path, std::string_view why) {
    return invalid("cgroupsPath " + quoted(cgroups_path) + ": " + std::string(why));
}

Status check_component(std::string_view cgroups_path, std::string_view name) {
    if (name == "..") return refused(cgroups_path, "contains \"..\"");
    if (name.size() > limits::kCgroupNameBytes) {
        return refused(cgroups_path, format("a component has %zu bytes, more than %zu", name.size(),
                                            limits::kCgroupNameBytes));
    }
    for (char c : name) {
        auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) return refused(cgroups_path, "contains a control character");
    }
    if (name == kInnerCgroup) return refused(cgroups_path, quoted(name) + " is a name of the agent's own");
    if (looks_like_kernel_file(name)) {
        return refused(cgroups_path, quoted(name) + " looks like a file of the kernel's");
    }
    return ok();
}

// "slice:prefix:name" as systemd would name the directories.
Result<std::string> from_systemd_form(std::string_view cgroups_path) {
    std::vector<std::string_view> parts = split(cgroups_path, ':');
    if (parts.size() != 3) return refused(cgroups_path, "is neither a path nor slice:prefix:name");
    std::string_view slice = parts[0];
    std::string_view prefix = parts[1];
    std::string_view name = parts[2];
    if (name.empty()) return refused(cgroups_path, "names no cgroup");
    std::string path;
    if (!slice.empty()) path.append(slice).push_back('/');
    if (!prefix.empty()) path.append(prefix).push_back('-');
    path.append(name);
    if (!name.ends_with(".slice") && !name.ends_with(".scope")) path.append(".scope");
    return path;
}

Result<std::string> from_cgroups_path(std::string_view cgroups_path) {
    if (cgroups_path.size() > limits::kPathBytes) {
        return refused(cgroups_path.substr(0, 64),
                       format("has %zu bytes, more than %zu", cgroups_path.size(), limits::kPathBytes));
    }
    std::string text(cgroups_path);
    if (text.find('/') == std::string::npos && text.find(':') != std::string::npos) {
        BERTH_ASSIGN(text, from_systemd_form(cgroups_path));
    }
    std::string clean;
    size_t depth = 0;
    for (std::string_view name : split(text, '/')) {
        if (name.empty() || name == ".") continue;
        BERTH_TRY(check_component(cgroups_path, name));
        if (++depth > limits::kCgroupDepth) {
            return refused(cgroups_path, format("is deeper than %zu levels", limits::kCgroupDepth));
        }
        if (!clean.empty()) clean.push_back('/');
        clean.append(name);
    }
    if (clean.empty()) return refused(cgroups_path, "names no cgroup");
    return clean;
}

bool lies_below(std::string_view path, std::string_view ancestor) {
    return path.size() > ancestor.size() && path.starts_with(ancestor) && path[ancestor.size()] == '/';
}

}  // namespace

Result<CgroupLayout> plan_cgroup_layout(std::string_view cgroups_path, const ContainerId& id,
                                        const CgroupPowers& powers, AbsoluteCgroups absolute) {
    CgroupLayout layout;
    if (cgroups_path.empty()) {
        bool taken = looks_like_kernel_file(id.view()) || id.view() == kInnerCgroup;
        layout.path = (taken ? "_" : "") + id.text();
    } else {
        BERTH_ASSIGN(layout.path, from_cgroups_path(cgroups_path));
        if (absolute == AbsoluteCgroups::kFromMount && cgroups_path.front() == '/')
            layout.path.insert(0, "/");
    }
    for (size_t slash = layout.path.find('/', 1); slash != std::string::npos;
         slash = layout.path.find('/', slash + 1)) {
        layout.directories.push_back(layout.path.substr(0, slash));
    }
    layout.directories.push_back(layout.path);
    layout.two_levels = (powers.sys_admin && !powers.user_namespace) || powers.writable_cgroup_mount;
    layout.process_path = layout.path;
    if (layout.two_levels) {
        layout.process_path.append("/").append(kInnerCgroup);
        layout.directories.push_back(layout.process_path);
    }
    return layout;
}

Status check_own_cgroups(std::string_view path, std::span<const std::string> own) {
    for (const std::string& mine : own) {
        if (path != mine && !lies_below(path, mine) && !lies_below(mine, path)) continue;
        return make_error(Code::kPermissionDenied,
                          "cgroupsPath " + quoted(path) + ": " + quoted(mine) + " is the agent's own");
    }
    return ok();
}

Status check_cgroup_collision(std::string_view path, std::span<const std::string_view> existing) {
    for (std::string_view other : existing) {
        if (path == other) {
            return make_error(Code::kAlreadyExists, "cgroup " + quoted(path) + ": is another container's");
        }
        if (lies_below(path, other)) {
            return make_error(Code::kFailedPrecondition, "cgroup " + quoted(path) + ": lies below " +
                                                             quoted(other) + ", another container's");
        }
        if (lies_below(other, path)) {
            return make_error(Code::kFailedPrecondition, "cgroup " + quoted(path) + ": lies above " +
                                                             quoted(other) + ", another container's");
        }
    }
    return ok();
}

}  // namespace berth::core
