#include "agent/keeper/leave_initramfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/auxv.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "agent/sys/fd.h"
#include "agent/sys/small_file.h"

namespace berth::keeper {
namespace {

using core::errno_error;
using core::Result;
using core::Status;
using sys::UniqueFd;

constexpr char kNewRoot[] = "/.berth-root";
constexpr int kMaxDepth = 64;

// Names first, then work: entries are unlinked meanwhile.
Result<std::vector<std::string>> list_names(int directory) {
    int copy = ::fcntl(directory, F_DUPFD_CLOEXEC, 0);
    DIR* stream = copy >= 0 ? ::fdopendir(copy) : nullptr;
    if (stream == nullptr) {
        int err = errno;
        if (copy >= 0) ::close(copy);
        return errno_error(err, "fdopendir");
    }
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(stream)) {
        std::string_view name = entry->d_name;
        if (name != "." && name != "..") names.emplace_back(name);
    }
    ::closedir(stream);
    return names;
}

Status copy_content(int from, int to, off_t bytes) {
    while (bytes > 0) {
        ssize_t sent = ::sendfile(to, from, nullptr, static_cast<size_t>(bytes));
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno_error(errno, "sendfile");
        if (sent == 0) return errno_error(EIO, "sendfile");
        bytes -= sent;
    }
    return core::ok();
}

Status move_file(int from_dir, int to_dir, const char* name, const struct stat& status) {
    UniqueFd from(::openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    UniqueFd to(::openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!from.valid() || !to.valid()) return errno_error(errno, "open");
    BERTH_TRY(copy_content(from.get(), to.get(), status.st_size));
    if (::fchown(to.get(), status.st_uid, status.st_gid) != 0) return errno_error(errno, "fchown");
    if (::fchmod(to.get(), status.st_mode & 07777) != 0) return errno_error(errno, "fchmod");
    return core::ok();
}

Status move_link(int from_dir, int to_dir, const char* name) {
    char target[4096];
    ssize_t bytes = ::readlinkat(from_dir, name, target, sizeof target - 1);
    if (bytes < 0) return errno_error(errno, "readlink");
    target[bytes] = '\0';
    if (::symlinkat(target, to_dir, name) != 0) return errno_error(errno, "symlink");
    return core::ok();
}

Status move_children(int from, int to, dev_t device, int depth);

Status move_directory(int from_dir, int to_dir, const char* name, const struct stat& status, int depth) {
    if (::mkdirat(to_dir, name, 0700) != 0 && errno != EEXIST) return errno_error(errno, "mkdir");
    UniqueFd from(::openat(from_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    UniqueFd to(::openat(to_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!from.valid() || !to.valid()) return errno_error(errno, "open");
    if (::fchown(to.get(), status.st_uid, status.st_gid) != 0) return errno_error(errno, "fchown");
    if (::fchmod(to.get(), status.st_mode & 07777) != 0) return errno_error(errno, "fchmod");
    if (depth == 0) return errno_error(ELOOP, "directories nested too deep");
    return move_children(from.get(), to.get(), status.st_dev, depth - 1);
}

Status move_entry(int from_dir, int to_dir, const char* name, const struct stat& status, int depth) {
    switch (status.st_mode & S_IFMT) {
        case S_IFDIR: return move_directory(from_dir, to_dir, name, status, depth);
        case S_IFREG: return move_file(from_dir, to_dir, name, status);
        case S_IFLNK: return move_link(from_dir, to_dir, name);
        default:
            if (::mknodat(to_dir, name, status.st_mode, status.st_rdev) != 0)
                return errno_error(errno, "mknod");
            if (::fchmodat(to_dir, name, status.st_mode & 07777, 0) != 0) return errno_error(errno, "chmod");
            return core::ok();
    }
}

Status move_children(int from, int to, dev_t device, int depth) {
    BERTH_ASSIGN(std::vector<std::string> names, list_names(from));
    for (const std::string& name : names) {
        struct stat status {};
        if (::fstatat(from, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return errno_error(errno, name);
        if (status.st_dev != device) continue;
        Status moved = move_entry(from, to, name.c_str(), status, depth);
        if (!moved.ok()) return std::move(moved).error().within(name);
        int flags = S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0;
        if (::unlinkat(from, name.c_str(), flags) != 0 && errno != ENOTEMPTY) {
            return errno_error(errno, "unlink " + name);
        }
    }
    return core::ok();
}

}  // namespace

bool is_on_initramfs() {
    struct statfs status {};
    if (::statfs("/", &status) != 0) return false;
    return static_cast<unsigned long>(status.f_type) == RAMFS_MAGIC ||
           static_cast<unsigned long>(status.f_type) == TMPFS_MAGIC;
}

Status move_tree(const char* source, const char* target) {
    UniqueFd from(::open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    UniqueFd to(::open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat status {};
    if (!from.valid() || !to.valid() || ::fstat(from.get(), &status) != 0) return errno_error(errno, "open");
    return move_children(from.get(), to.get(), status.st_dev, kMaxDepth);
}

core::Error leave_initramfs(char** envp) {
    BERTH_TRY(sys::make_directory(kNewRoot, 0755));
    if (::mount("tmpfs", kNewRoot, "tmpfs", 0, "mode=0755") != 0)
        return errno_error(errno, "mount tmpfs as new root");
    Status moved = move_tree("/", kNewRoot);
    if (!moved.ok()) return std::move(moved).error().within("move the image to the new root");
    if (::chdir(kNewRoot) != 0) return errno_error(errno, "chdir to the new root");
    if (::mount(".", "/", nullptr, MS_MOVE, nullptr) != 0)
        return errno_error(errno, "move the new root to /");
    if (::chroot(".") != 0 || ::chdir("/") != 0) return errno_error(errno, "chroot to the new root");
    // The path by which the kernel started us ("/init"); there is no /proc yet.
    const auto* program = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
    char name[sizeof kSecondStageName] = "";
    for (size_t i = 0; i < sizeof name; ++i) name[i] = kSecondStageName[i];
    char* argv[] = {name, nullptr};
    ::execve(program, argv, envp);
    return errno_error(errno, std::string("execute ") + program + " from the new root");
}

}  // namespace berth::keeper
