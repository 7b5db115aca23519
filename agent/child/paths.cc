// Paths in root. The container's image, and what other containers share with it, decide what is found there,
// at any moment: nothing is looked up by name twice, and nothing is resolved but by openat2 from root.
#include <linux/magic.h>
#include <linux/mount.h>
#include <sys/vfs.h>

#include "agent/child/child.h"
#include "agent/core/uninitialized.h"

namespace berth::child {

namespace {

constexpr uint64_t kInRoot = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
// openat2 gives EAGAIN when a rename raced with "..": that a neighbour renames all the time must not fail us
// soon, nor hold us for ever.
constexpr int kRaceRetries = 256;
constexpr dev_t kNullDevice = 0x103;  // 1:3 as the kernel encodes it
constexpr int kSymlinksMax = 40;      // the kernel's own limit (MAXSYMLINKS)

// The path that make_in_root() works on: a dangling symlink is replaced by its target as it goes.
struct Walk {
    char path[kPathSize];
    size_t length = 0;
    size_t done = 0;  // path[0, done) exists
    int symlinks = 0;
};

size_t component_end(const Walk& walk) {
    size_t at = walk.done;
    while (at < walk.length && walk.path[at] == '/') ++at;
    while (at < walk.length && walk.path[at] != '/') ++at;
    return at;
}

// Replaces the dangling symlink that is the component [walk.done, end) by its target.
int expand_symlink(Walk& walk, int link_fd, size_t end) {
    if (++walk.symlinks > kSymlinksMax) return -ELOOP;
    BERTH_UNINITIALIZED char target[kPathSize];
    long size = raw::syscall(SYS_readlinkat, link_fd, raw::word(""), raw::word(target), sizeof(target) - 1);
    if (size < 0) return raw::number(size);
    if (size == 0 || size == static_cast<long>(sizeof(target)) - 1) return -ENAMETOOLONG;
    auto target_length = static_cast<size_t>(size);
    size_t rest = walk.length - end;
    size_t head = target[0] == '/' ? 0 : walk.done;
    if (head + 1 + target_length + rest >= kPathSize) return -ENAMETOOLONG;
    BERTH_UNINITIALIZED char tail[kPathSize];
    copy_bytes(tail, walk.path + end, rest);
    size_t at = head;
    walk.path[at++] = '/';
    copy_bytes(walk.path + at, target, target_length);
    at += target_length;
    copy_bytes(walk.path + at, tail, rest);
    walk.length = at + rest;
    walk.path[walk.length] = '\0';
    walk.done = head;
    return 0;
}

int open_prefix(Child& child, Walk& walk, size_t end, uint64_t flags, uint64_t resolve) {
    char saved = walk.path[end];
    walk.path[end] = '\0';
    int fd = open_in_root(child, end == 0 ? "/" : walk.path, flags, resolve);
    walk.path[end] = saved;
    return fd;
}

int make_leaf(int parent, const char* name, Leaf leaf, unsigned mode) {
    if (leaf == Leaf::kDirectory)
        return raw::number(raw::syscall(SYS_mkdirat, parent, raw::word(name), static_cast<long>(mode)));
    int fd = raw::openat(parent, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY, 0644);
    return fd < 0 ? fd : raw::close(fd);
}

// False when it takes more than making one file or directory in one that exists: whatever the reason.
bool make_last_in_root(Child& child, const char* path, Leaf leaf, unsigned mode, uint64_t resolve) {
    size_t slash = length_of(path);
    while (slash > 0 && path[slash - 1] != '/') --slash;
    if (slash == 0 || slash >= kPathSize || !is_plain_name(path + slash)) return false;
    copy_bytes(child.path, path, slash);
    child.path[slash] = '\0';
    int parent = open_in_root(child, child.path, O_PATH | O_DIRECTORY, resolve);
    if (parent < 0) return false;
    int err = make_leaf(parent, path + slash, leaf, mode);
    raw::close(parent);
    return err == 0;
}

// Makes the component [walk.done, end), which does not exist, from the descriptor of its parent.
int make_component(Child& child, Walk& walk, size_t end, Leaf leaf, unsigned mode, uint64_t resolve) {
    int parent = open_prefix(child, walk, walk.done, O_PATH | O_DIRECTORY, resolve);
    if (parent < 0) return parent;
    size_t begin = walk.done;
    while (walk.path[begin] == '/') ++begin;
    char saved = walk.path[end];
    walk.path[end] = '\0';
    const char* name = walk.path + begin;
    int err = make_leaf(parent, name, leaf, mode);
    walk.path[end] = saved;
    raw::close(parent);
    return err == -EEXIST ? 0 : err;
}

}  // namespace

int root_of(Child& child) {
    if (child.at_root && child.root < 0) return AT_FDCWD;
    if (child.root < 0) child.root = raw::openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
    return child.root;
}

int open_in_root(Child& child, const char* path, uint64_t flags, uint64_t resolve) {
    int root = root_of(child);
    if (root < 0 && root != AT_FDCWD) return root;
    int fd = -EAGAIN;
    for (int i = 0; i < kRaceRetries && fd == -EAGAIN; ++i) {
        fd = raw::openat2(root, path, flags, 0, kInRoot | resolve);
    }
    return fd;
}

int make_in_root(Child& child, const char* path, Leaf leaf, unsigned mode, uint64_t resolve) {
    int fd = open_in_root(child, path, O_PATH, resolve);
    if (fd != -ENOENT) return fd;
    // Mostly the last component alone is missing.
    if (make_last_in_root(child, path, leaf, mode, resolve)) {
        fd = open_in_root(child, path, O_PATH, resolve);
        if (fd != -ENOENT) return fd;
    }
    BERTH_UNINITIALIZED Walk walk;
    walk.length = length_of(path);
    if (walk.length >= kPathSize) return -ENAMETOOLONG;
    copy_bytes(walk.path, path, walk.length + 1);
    // "a/b/" names a directory b, and ends like "a/b".
    while (walk.length > 0 && walk.path[walk.length - 1] == '/') walk.path[--walk.length] = '\0';
    int tries = kRaceRetries;
    while (walk.done < walk.length) {
        size_t end = component_end(walk);
        bool last = end == walk.length;
        int found = open_prefix(child, walk, end, last ? O_PATH : O_PATH | O_DIRECTORY, resolve);
        if (found >= 0) {
            raw::close(found);
            walk.done = end;
            continue;
        }
        if (found != -ENOENT || --tries == 0) return found;
        int link = open_prefix(child, walk, end, O_PATH | O_NOFOLLOW, resolve);
        if (link >= 0) {
            struct stat status;
            int err = stat_of(link, &status);
            if (err == 0 && S_ISLNK(status.st_mode)) err = expand_symlink(walk, link, end);
            raw::close(link);
            if (err < 0) return err;
            continue;
        }
        if (link != -ENOENT) return link;
        int err = make_component(child, walk, end, last ? leaf : Leaf::kDirectory,
                                 leaf == Leaf::kDirectory ? mode : 0755, resolve);
        if (err < 0) return err;
    }
    return open_prefix(child, walk, walk.length, O_PATH, resolve);
}

bool is_plain_name(const char* name) {
    bool dots = name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
    return name[0] != '\0' && !dots;
}

int open_parent(Child& child, const char* path, const char** name) {
    size_t length = length_of(path);
    size_t slash = length;
    while (slash > 0 && path[slash - 1] != '/') --slash;
    *name = path + slash;
    if (!is_plain_name(*name)) return -EINVAL;
    if (slash >= kPathSize) return -ENAMETOOLONG;
    BERTH_UNINITIALIZED char parent[kPathSize];
    copy_bytes(parent, path, slash);
    parent[slash] = '\0';
    return make_in_root(child, slash == 0 ? "/" : parent, Leaf::kDirectory, 0755);
}

int make_directories(const char* path, unsigned mode) {
    BERTH_UNINITIALIZED char prefix[kPathSize];
    size_t length = length_of(path);
    if (length >= kPathSize) return -ENAMETOOLONG;
    for (size_t i = 1; i <= length; ++i) {
        if (path[i] != '/' && path[i] != '\0') continue;
        copy_bytes(prefix, path, i);
        prefix[i] = '\0';
        int err =
            raw::number(raw::syscall(SYS_mkdirat, AT_FDCWD, raw::word(prefix), static_cast<long>(mode)));
        if (err < 0 && err != -EEXIST) {
            // A parent that exists may answer EROFS or EACCES instead of EEXIST.
            int fd = raw::openat(AT_FDCWD, prefix, O_PATH | O_DIRECTORY);
            if (fd < 0) return err;
            raw::close(fd);
        }
    }
    return 0;
}

bool on_procfs(int fd) {
    struct statfs status {};
    return raw::syscall(SYS_fstatfs, fd, raw::word(&status)) == 0 && status.f_type == PROC_SUPER_MAGIC;
}

bool is_null_device(const struct stat& status) {
    return S_ISCHR(status.st_mode) && status.st_rdev == kNullDevice;
}

int stat_of(int fd, struct stat* status) {
    // Not newfstatat with an empty path: the kernel takes a page for the name that is not there.
    return raw::number(raw::syscall(SYS_fstat, fd, raw::word(status)));
}

int own_procfs(Child& child) {
    if (child.proc >= 0) return child.proc;
    int fs = raw::number(raw::syscall(SYS_fsopen, raw::word("proc"), FSOPEN_CLOEXEC));
    if (fs < 0) return fs;
    int err = raw::number(raw::syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE));
    if (err == 0) {
        err = raw::number(raw::syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
                                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
    }
    raw::close(fs);
    if (err < 0) return err;
    child.proc = err;
    return child.proc;
}

int set_mode(Child& child, int path_fd, unsigned mode) {
    int err = raw::number(
        raw::syscall(SYS_fchmodat2, path_fd, raw::word(""), static_cast<long>(mode), AT_EMPTY_PATH));
    if (err != -ENOSYS) return err;
    // Before Linux 6.6 only procfs leads from an O_PATH descriptor to its file.
    int proc = own_procfs(child);
    if (proc < 0) return proc;
    char path[32] = "self/fd/";
    put_decimal(path + 8, static_cast<uint64_t>(path_fd));
    return raw::number(raw::syscall(SYS_fchmodat, proc, raw::word(path), static_cast<long>(mode)));
}

}  // namespace berth::child
