// The parts of cgroup.h that look at more than one directory.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "agent/core/text.h"
#include "agent/sys/cgroup.h"

namespace berth::sys {
namespace {

using core::errno_error;
using core::Result;

// Levels whose descriptors are kept while going down; below that the walk begins again at the top.
constexpr size_t kKeptLevels = 32;

struct Directory {
    explicit Directory(DIR* stream) : stream_(stream) {}
    Directory(const Directory&) = delete;
    Directory& operator=(const Directory&) = delete;
    ~Directory() { closedir(stream_); }
    DIR* stream_;
};

bool is_directory(int directory, const dirent& entry) {
    if (entry.d_type == DT_DIR) return true;
    if (entry.d_type != DT_UNKNOWN) return false;
    struct stat info {};
    return fstatat(directory, entry.d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

bool is_gone(int err) {
    return err == ENOENT || err == ENODEV;
}

// Calls `each(name, is_directory)` until it returns false.
template <typename Each>
core::Status for_each_entry(FdRef cgroup, Each&& each) {
    // A descriptor of its own: the offset of the caller's is not ours to move.
    UniqueFd own(openat(cgroup.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!own.valid()) return errno_error(errno, "cgroup.list");
    DIR* stream = fdopendir(own.get());
    if (stream == nullptr) return errno_error(errno, "cgroup.list");
    int fd = own.release();
    Directory directory(stream);
    while (true) {
        errno = 0;
        const dirent* entry = readdir(stream);
        if (entry == nullptr) break;
        std::string_view name(entry->d_name);
        if (name == "." || name == "..") continue;
        if (!each(name, is_directory(fd, *entry))) return core::ok();
    }
    if (errno != 0) return errno_error(errno, "cgroup.list");
    return core::ok();
}

// The first child, or empty.
Result<std::string> first_child(FdRef cgroup) {
    std::string child;
    BERTH_TRY(for_each_entry(cgroup, [&](std::string_view name, bool directory) {
        if (directory) child = name;
        return !directory;
    }));
    return child;
}

struct Level {
    UniqueFd fd;
    std::string name;
};

std::string path_of(const std::vector<Level>& levels, std::string_view top) {
    std::string path(top);
    for (const Level& level : levels) path.append("/").append(level.name);
    return path;
}

// Goes down from `top` to a cgroup without children, removing on the way back up as far as the kept levels
// go.
core::Status remove_deepest(FdRef top, std::string_view top_name, size_t& budget) {
    std::vector<Level> levels;
    size_t dropped = 0;
    bool removed = false;
    // At least one is removed whatever the budget: a tree deeper than it would never end otherwise.
    while (budget > 0 || !removed) {
        FdRef here = levels.empty() ? top : FdRef(levels.back().fd);
        if (budget > 0) --budget;
        Result<std::string> child = first_child(here);
        if (!child.ok() && !is_gone(child.error().err)) return std::move(child).error();
        if (child.ok() && !child->empty()) {
            Result<UniqueFd> opened = open_cgroup(here, *child);
            if (!opened.ok() && is_gone(opened.error().err)) continue;
            if (!opened.ok()) return std::move(opened).error();
            if (levels.size() == kKeptLevels) {
                levels.erase(levels.begin());
                ++dropped;
            }
            levels.push_back(Level{std::move(*opened), std::move(*child)});
            continue;
        }
        if (levels.empty() || (levels.size() == 1 && dropped > 0)) return core::ok();
        std::string path = path_of(levels, top_name);
        Level leaf = std::move(levels.back());
        levels.pop_back();
        FdRef parent = levels.empty() ? top : FdRef(levels.back().fd);
        if (unlinkat(parent.get(), leaf.name.c_str(), AT_REMOVEDIR) != 0 && !is_gone(errno)) {
            return errno_error(errno, "cgroup.rmdir " + path);
        }
        removed = true;
    }
    return core::ok();
}

void append_procs(std::string_view text, size_t max, std::vector<pid_t>& out) {
    for (std::string_view line : core::split_lines(text)) {
        std::optional<pid_t> pid = core::parse_number<pid_t>(line);
        // 0 is a process of a namespace that the agent cannot see.
        if (pid && *pid > 0 && out.size() < max) out.push_back(*pid);
    }
}

constexpr size_t kProcsBytes = 1u << 20;

}  // namespace

core::Result<CgroupEntries> list_cgroup(FdRef cgroup, size_t max_children) {
    CgroupEntries entries;
    BERTH_TRY(for_each_entry(cgroup, [&](std::string_view name, bool directory) {
        if (!directory) {
            entries.files.emplace_back(name);
        } else if (entries.children.size() < max_children) {
            entries.children.emplace_back(name);
        }
        return true;
    }));
    return entries;
}

core::Result<RemoveOutcome> remove_cgroup_tree(FdRef parent, std::string_view name, size_t budget) {
    while (budget > 0) {
        // Most have nothing below them, and listing a cgroup costs more than all the rest.
        core::Status empty = remove_cgroup(parent, name);
        if (empty.ok() || is_gone(empty.error().err)) return RemoveOutcome::kRemoved;
        Result<UniqueFd> top = open_cgroup(parent, name);
        if (!top.ok() && is_gone(top.error().err)) return RemoveOutcome::kRemoved;
        if (!top.ok()) return std::move(top).error();
        BERTH_TRY(remove_deepest(*top, name, budget));
        Result<std::string> child = first_child(*top);
        if (child.ok() && !child->empty()) continue;
        core::Status removed = remove_cgroup(parent, name);
        if (removed.ok() || is_gone(removed.error().err)) return RemoveOutcome::kRemoved;
        return std::move(removed).error();
    }
    return RemoveOutcome::kMore;
}

core::Result<std::vector<pid_t>> cgroup_procs(FdRef cgroup, size_t max) {
    BERTH_ASSIGN(std::string text, read_cgroup_file(cgroup, "cgroup.procs", kProcsBytes));
    std::vector<pid_t> pids;
    append_procs(text, max, pids);
    return pids;
}

core::Result<std::vector<pid_t>> cgroup_procs_recursive(FdRef cgroup, size_t max, size_t budget) {
    std::vector<pid_t> pids;
    std::vector<std::string> waiting = {"."};
    while (!waiting.empty() && budget > 0) {
        --budget;
        std::string path = std::move(waiting.back());
        waiting.pop_back();
        Result<UniqueFd> directory = open_cgroup(cgroup, path);
        if (!directory.ok() && is_gone(directory.error().err)) continue;
        if (!directory.ok()) return std::move(directory).error();
        Result<std::string> text = read_cgroup_file(*directory, "cgroup.procs", kProcsBytes);
        // A threaded cgroup answers EOPNOTSUPP; its processes are listed in its domain.
        if (text.ok()) {
            append_procs(*text, max, pids);
        } else if (!is_gone(text.error().err) && text.error().err != EOPNOTSUPP) {
            return std::move(text).error();
        }
        Result<CgroupEntries> entries = list_cgroup(*directory, budget);
        if (!entries.ok()) continue;
        for (const std::string& child : entries->children) waiting.push_back(path + "/" + child);
    }
    std::sort(pids.begin(), pids.end());
    pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
    return pids;
}

}  // namespace berth::sys
