#include "agent/keeper/cgroups.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/log.h"
#include "agent/sys/small_file.h"

namespace berth::keeper {
namespace {

using core::Status;
using sys::LogLevel;

constexpr size_t kControllersBytes = 4096;
constexpr int kMaxDepth = 32;

Status write_in(const std::string& directory, const char* file, std::string_view text) {
    return sys::write_existing_file((directory + "/" + file).c_str(), text);
}

// One write for all, as it costs a walk of the tree each; one by one when some cannot be had.
Status enable_controllers(const std::string& directory) {
    BERTH_ASSIGN(std::string text,
                 sys::read_small_file((directory + "/cgroup.controllers").c_str(), kControllersBytes));
    std::vector<std::string_view> controllers = core::split(core::trim(text), ' ');
    std::string all;
    for (std::string_view controller : controllers) {
        if (!controller.empty()) all.append(all.empty() ? "+" : " +").append(controller);
    }
    if (all.empty()) return core::ok();
    Status enabled = write_in(directory, "cgroup.subtree_control", all);
    if (enabled.ok()) return enabled;
    std::vector<core::Error> failures;
    for (std::string_view controller : controllers) {
        Status one = write_in(directory, "cgroup.subtree_control", "+" + std::string(controller));
        if (!one.ok()) failures.push_back(std::move(one).error().within(controller));
    }
    bool any = failures.size() < controllers.size();
    for (const core::Error& failure : failures) {
        if (any) sys::log(LogLevel::kWarn, "cgroup.controller", "%s", failure.message.c_str());
    }
    if (any) return core::ok();
    if (enabled.error().err == EBUSY) {
        return core::errno_error(EBUSY,
                                 "no controller can be enabled in " + directory +
                                     ": other processes are in this cgroup; start from an empty one or give "
                                     "--cgroup-parent");
    }
    return enabled;
}

// rmdir of `name` and every cgroup below it.
bool remove_tree(int parent, const char* name, int depth) {
    if (::unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
    if (depth == 0) return false;
    int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR* directory = fd >= 0 ? ::fdopendir(fd) : nullptr;
    if (directory == nullptr) {
        if (fd >= 0) ::close(fd);
        return false;
    }
    while (const dirent* entry = ::readdir(directory)) {
        std::string_view child = entry->d_name;
        if (entry->d_type == DT_DIR && child != "." && child != "..")
            remove_tree(fd, entry->d_name, depth - 1);
    }
    ::closedir(directory);
    return ::unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

// The cgroups below `path` that bear the mark, parents first.
void find_marked(const std::string& path, sys::CgroupMark mark, const std::string& owner, int depth,
                 std::vector<std::string>& found) {
    sys::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid()) return;
    if (sys::has_cgroup_mark(fd, mark, owner)) found.push_back(path);
    DIR* directory = depth > 0 ? ::fdopendir(fd.get()) : nullptr;
    if (directory == nullptr) return;
    (void)fd.release();
    while (const dirent* entry = ::readdir(directory)) {
        std::string_view child = entry->d_name;
        if (entry->d_type == DT_DIR && child != "." && child != "..")
            find_marked(path + "/" + entry->d_name, mark, owner, depth - 1, found);
    }
    ::closedir(directory);
}

}  // namespace

CgroupLayout plan_cgroups(const std::string& mount, const std::string& below) {
    std::string parent = mount + below;
    return {mount, parent, parent + "/berth.agent", parent + "/berth.spawner", parent + "/berth"};
}

Status prepare_cgroups(const CgroupLayout& layout) {
    for (const std::string* directory : {&layout.agent, &layout.spawner, &layout.sandbox}) {
        BERTH_TRY(sys::make_directory(directory->c_str(), 0755));
    }
    BERTH_TRY(write_in(layout.agent, "cgroup.procs", "0"));
    BERTH_TRY(enable_controllers(layout.parent));
    BERTH_TRY(enable_controllers(layout.sandbox));
    Status reserved = write_in(layout.agent, "memory.min", std::to_string(limits::kAgentMemoryMinBytes));
    if (!reserved.ok()) sys::log(LogLevel::kWarn, "cgroup.memory", "%s", reserved.error().message.c_str());
    return core::ok();
}

core::Result<sys::UniqueFd> lock_cgroups(const CgroupLayout& layout) {
    BERTH_TRY(sys::make_directory(layout.agent.c_str(), 0755));
    sys::UniqueFd fd(::open(layout.agent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return core::errno_error(errno, "open " + layout.agent);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
    if (errno != EWOULDBLOCK) return core::errno_error(errno, "lock " + layout.agent);
    return core::make_error(
        core::Code::kAlreadyExists,
        "another berth --helper already uses " + layout.agent + " (--cgroup-parent chooses another)");
}

void remove_cgroups(std::initializer_list<const std::string*> directories, int wait_ms, void (*reap)()) {
    constexpr int kStepMs = 10;
    for (const std::string* directory : directories) {
        Status killed = write_in(*directory, "cgroup.kill", "1");
        if (!killed.ok() && killed.error().err != ENOENT) {
            sys::log(LogLevel::kWarn, "cgroup.kill", "%s", killed.error().message.c_str());
        }
    }
    for (const std::string* directory : directories) {
        bool gone = false;
        while (true) {
            reap();
            gone = remove_tree(AT_FDCWD, directory->c_str(), kMaxDepth);
            if (gone || wait_ms <= 0) break;
            ::usleep(kStepMs * 1000);
            wait_ms -= kStepMs;
        }
        if (!gone) sys::log(LogLevel::kWarn, "cgroup.remove", "%s stays: still in use", directory->c_str());
    }
}

void remove_marked_cgroups(const CgroupLayout& layout, int wait_ms, void (*reap)()) {
    std::vector<std::string> found;
    find_marked(layout.mount, sys::CgroupMark::kContainer, layout.sandbox, kMaxDepth, found);
    for (const std::string& container : found) remove_cgroups({&container}, wait_ms, reap);
    found.clear();
    find_marked(layout.mount, sys::CgroupMark::kAncestor, layout.sandbox, kMaxDepth, found);
    for (auto ancestor = found.rbegin(); ancestor != found.rend(); ++ancestor) ::rmdir(ancestor->c_str());
}

}  // namespace berth::keeper
