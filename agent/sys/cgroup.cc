#include "agent/sys/cgroup.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include <algorithm>

#include "agent/core/text.h"

namespace berth::sys {
namespace {

using core::Code;
using core::errno_error;
using core::Result;
using core::Status;

std::string step(const char* name, std::string_view object) {
    std::string text("cgroup.");
    return text.append(name).append(" ").append(object);
}

Result<UniqueFd> open_below(FdRef parent, std::string_view path, const char* name, int flags) {
    open_how how{};
    how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    std::string text(path);
    long fd = -1;
    do {
        fd = syscall(SYS_openat2, parent.get(), text.c_str(), &how, sizeof(how));
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return errno_error(errno, step(name, path));
    return UniqueFd(static_cast<int>(fd));
}

// A path whose directory was checked: mkdirat and unlinkat know no RESOLVE_BENEATH.
struct Place {
    UniqueFd opened;  // the directory, unless it is the parent itself
    int directory = -1;
    std::string name;
};

Result<Place> locate(FdRef parent, std::string_view path, const char* what) {
    size_t slash = path.rfind('/');
    std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
    if (name.empty() || name == "." || name == "..") return errno_error(EINVAL, step(what, path));
    Place place;
    place.name = name;
    place.directory = parent.get();
    if (slash == std::string_view::npos) return place;
    BERTH_ASSIGN(place.opened, open_below(parent, path.substr(0, slash), what, O_RDONLY | O_DIRECTORY));
    place.directory = place.opened.get();
    return place;
}

// Reads to the end or until the buffer is full. Returns the number of bytes or -errno.
ssize_t read_all(int fd, std::span<char> buffer) {
    size_t used = 0;
    while (used < buffer.size()) {
        ssize_t got = read(fd, buffer.data() + used, buffer.size() - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) break;
        used += static_cast<size_t>(got);
    }
    return static_cast<ssize_t>(used);
}

}  // namespace

Result<UniqueFd> open_cgroup(FdRef parent, std::string_view path) {
    return open_below(parent, path, "open", O_RDONLY | O_DIRECTORY);
}

Status create_cgroup(FdRef parent, std::string_view path) {
    BERTH_ASSIGN(Place place, locate(parent, path, "mkdir"));
    // Whoever is in it reads its own limits, root or not: the agent's own mask is not for cgroups.
    mode_t mask = umask(0022);
    int made = mkdirat(place.directory, place.name.c_str(), 0755);
    int err = errno;
    umask(mask);
    if (made != 0) return errno_error(err, step("mkdir", path));
    return core::ok();
}

namespace {
const char* mark_name(CgroupMark mark) {
    return mark == CgroupMark::kContainer ? "trusted.berth.container" : "trusted.berth.ancestor";
}
}  // namespace

Status mark_cgroup(FdRef cgroup, CgroupMark mark, std::string_view owner) {
    if (fsetxattr(cgroup.get(), mark_name(mark), owner.data(), owner.size(), 0) == 0) return core::ok();
    return errno_error(errno, step("setxattr", mark_name(mark)));
}

bool has_cgroup_mark(FdRef cgroup, CgroupMark mark, std::string_view owner) {
    char value[512];
    ssize_t size = fgetxattr(cgroup.get(), mark_name(mark), value, sizeof(value));
    return size >= 0 && std::string_view(value, static_cast<size_t>(size)) == owner;
}

Status remove_cgroup(FdRef parent, std::string_view path) {
    BERTH_ASSIGN(Place place, locate(parent, path, "rmdir"));
    if (unlinkat(place.directory, place.name.c_str(), AT_REMOVEDIR) != 0) {
        return errno_error(errno, step("rmdir", path));
    }
    return core::ok();
}

Result<UniqueFd> open_cgroup_file(FdRef cgroup, const char* file, int flags) {
    int fd = -1;
    do {
        fd = openat(cgroup.get(), file, flags | O_CLOEXEC | O_NOFOLLOW);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return errno_error(errno, step("open", file));
    return UniqueFd(fd);
}

Result<std::string> read_cgroup_file(FdRef cgroup, const char* file, size_t max_bytes) {
    BERTH_ASSIGN(UniqueFd fd, open_cgroup_file(cgroup, file, O_RDONLY));
    std::string text(max_bytes + 1, '\0');
    ssize_t got = read_all(fd.get(), text);
    if (got < 0) return errno_error(static_cast<int>(-got), step("read", file));
    if (static_cast<size_t>(got) > max_bytes) {
        return core::make_error(Code::kResourceExhausted, step("read", file) + ": has more than " +
                                                              std::to_string(max_bytes) + " bytes");
    }
    text.resize(static_cast<size_t>(got));
    text.shrink_to_fit();
    return text;
}

Result<std::string_view> read_cgroup_file_into(FdRef cgroup, const char* file, std::span<char> buffer) {
    int raw = openat(cgroup.get(), file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (raw < 0) return errno_error(errno, step("open", file));
    UniqueFd fd(raw);
    ssize_t got = read_all(fd.get(), buffer);
    if (got < 0) return errno_error(static_cast<int>(-got), step("read", file));
    std::string_view text(buffer.data(), static_cast<size_t>(got));
    if (text.size() == buffer.size()) {
        size_t newline = text.rfind('\n');
        text = text.substr(0, newline == std::string_view::npos ? 0 : newline + 1);
    }
    return text;
}

Status write_cgroup_file(FdRef cgroup, const char* file, std::string_view value) {
    std::string name = step("write", file);
    name.append("=").append(value);
    int raw = openat(cgroup.get(), file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (raw < 0) return errno_error(errno, std::move(name));
    UniqueFd fd(raw);
    ssize_t written = write(fd.get(), value.data(), value.size());
    if (written < 0) return errno_error(errno, std::move(name));
    if (static_cast<size_t>(written) != value.size()) return errno_error(EIO, std::move(name));
    return core::ok();
}

Result<std::vector<std::string>> available_controllers(FdRef cgroup) {
    BERTH_ASSIGN(std::string text, read_cgroup_file(cgroup, "cgroup.controllers"));
    std::vector<std::string> names;
    std::string_view rest = core::trim(text);
    if (rest.empty()) return names;
    for (std::string_view name : core::split(rest, ' ')) names.emplace_back(name);
    return names;
}

Status enable_controllers(FdRef cgroup, std::span<const std::string> controllers) {
    if (controllers.empty()) return core::ok();
    constexpr const char* kFile = "cgroup.subtree_control";
    std::string all;
    for (const std::string& name : controllers) all.append(all.empty() ? "+" : " +").append(name);
    if (write_cgroup_file(cgroup, kFile, all).ok()) return core::ok();
    for (const std::string& name : controllers) BERTH_TRY(write_cgroup_file(cgroup, kFile, "+" + name));
    return core::ok();
}

Status kill_cgroup(FdRef cgroup) {
    return write_cgroup_file(cgroup, "cgroup.kill", "1");
}

Status set_freezer(FdRef cgroup, FreezerState state) {
    return write_cgroup_file(cgroup, "cgroup.freeze", state == FreezerState::kFrozen ? "1" : "0");
}

Result<core::CgroupState> cgroup_state(FdRef cgroup) {
    char buffer[256];
    BERTH_ASSIGN(std::string_view text, read_cgroup_file_into(cgroup, "cgroup.events", buffer));
    return core::parse_cgroup_events(text);
}

}  // namespace berth::sys
