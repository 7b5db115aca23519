// Files in root: nodes, links, sysctls, the copy of a directory into a new tmpfs.
#include <linux/mount.h>

#include "agent/child/child.h"
#include "agent/core/uninitialized.h"

namespace berth::child {

namespace {

// Owner and mode exactly as asked; nothing is written when they are right already, as they are after a plain
// mknod. The owner first: chown clears set-id bits.
int settle(Child& child, int fd, const struct stat& status, uint32_t uid, uint32_t gid, unsigned mode) {
    if (status.st_uid != uid || status.st_gid != gid) {
        long err = raw::syscall(SYS_fchownat, fd, raw::word(""), raw::word(uint64_t{uid}),
                                raw::word(uint64_t{gid}), AT_EMPTY_PATH);
        if (err < 0) return raw::number(err);
    } else if ((status.st_mode & 07777) == mode) {
        return 0;
    }
    return set_mode(child, fd, mode);
}

// The directory of `path`, checked; the register's, not the caller's to close. Nodes and links come one after
// the other in one directory: it is looked up once.
int open_checked_parent(Child& child, const char* path, const char** name) {
    size_t length = length_of(path);
    while (length > 0 && path[length - 1] != '/') --length;
    bool same = child.directory >= 0 && length == child.directory_length;
    for (size_t i = 0; same && i < length; ++i) same = path[i] == child.directory_path[i];
    if (same && is_plain_name(path + length)) {
        *name = path + length;
        return child.directory;
    }
    int parent = open_parent(child, path, name);
    if (parent >= 0 && on_procfs(parent)) {
        raw::close(parent);
        return -EPERM;
    }
    int err = fill(child.directory, parent);
    child.directory_path = path;
    child.directory_length = length;
    return err < 0 ? err : child.directory;
}

int write_all(int fd, const char* text) {
    size_t length = length_of(text);
    long written = raw::write(fd, text, length);
    if (written < 0) return raw::number(written);
    // procfs takes a value in one write or not at all.
    return static_cast<size_t>(written) == length ? 0 : -EIO;
}

// Writes a file of our own procfs, which nobody could mount anything over.
int write_below(int directory, const char* path, const char* value) {
    int fd = raw::openat2(directory, path, O_WRONLY, 0,
                          RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV);
    if (fd < 0) return fd;
    int err = write_all(fd, value);
    raw::close(fd);
    return err;
}

}  // namespace

int step_node(Child& child, const PlanStep& step) {
    const char* name = nullptr;
    int parent = open_checked_parent(child, child.text(step.s1), &name);
    if (parent < 0) return parent;
    auto mode = static_cast<unsigned>(step.a);
    long err = raw::syscall(SYS_mknodat, parent, raw::word(name), static_cast<long>(mode), raw::word(step.b));
    int fd = -1;
    struct stat status;
    if (err == 0 || err == -EEXIST) {
        fd = raw::openat(parent, name, O_PATH | O_NOFOLLOW);
        err = fd < 0 ? fd : stat_of(fd, &status);
    }
    // Whoever may write to the directory could have put something else there, before or after mknod.
    bool node = S_ISCHR(mode) || S_ISBLK(mode);
    if (err == 0 && ((status.st_mode & S_IFMT) != (mode & S_IFMT) || (node && status.st_rdev != step.b))) {
        err = -EEXIST;
    }
    if (err == 0) {
        err = settle(child, fd, status, static_cast<uint32_t>(step.c >> 32), static_cast<uint32_t>(step.c),
                     mode & 07777);
    }
    raw::drop(fd);
    return raw::number(err);
}

int step_symlink(Child& child, const PlanStep& step) {
    const char* name = nullptr;
    int parent = open_checked_parent(child, child.text(step.s1), &name);
    if (parent < 0) return parent;
    int err =
        raw::number(raw::syscall(SYS_symlinkat, raw::word(child.text(step.s2)), parent, raw::word(name)));
    return err == -EEXIST ? 0 : err;
}

int step_copy_symlink(Child& child, const PlanStep& step) {
    BERTH_UNINITIALIZED char wanted[kPathSize];
    BERTH_UNINITIALIZED char there[kPathSize];
    auto read_link = [](int directory, const char* path, char* text) {
        return raw::syscall(SYS_readlinkat, directory, raw::word(path), raw::word(text), kPathSize - 1);
    };
    long length = read_link(AT_FDCWD, child.text(step.s1), wanted);
    if (length == -EINVAL) return 0;
    if (length < 0) return raw::number(length);
    wanted[length] = '\0';
    const char* name = nullptr;
    int parent = open_checked_parent(child, child.text(step.s2), &name);
    if (parent < 0) return parent;
    int err = raw::number(raw::syscall(SYS_symlinkat, raw::word(wanted), parent, raw::word(name)));
    if (err == -EEXIST && read_link(parent, name, there) == length) {
        bool same = true;
        for (long i = 0; i < length; ++i) same = same && there[i] == wanted[i];
        if (same) err = 0;
    }
    if (err < 0) return err;
    return step.b == 1 ? kJump : 0;
}

int step_sysctl(Child& child, const PlanStep& step) {
    int proc = own_procfs(child);
    if (proc < 0) return proc;
    int sys = raw::openat2(proc, "sys", O_PATH | O_DIRECTORY, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (sys < 0) return sys;
    int err = write_below(sys, child.text(step.s1), child.text(step.s2));
    raw::close(sys);
    return err;
}

int step_lsm_label(Child& child, const PlanStep& step) {
    int proc = own_procfs(child);
    if (proc < 0) return proc;
    // "self" is a symlink; our own pid in that procfs is what getpid gives.
    char path[32];
    size_t length = put_decimal(path, static_cast<uint64_t>(raw::syscall(SYS_getpid)));
    copy_bytes(path + length, "/attr", 6);
    int attr = raw::openat2(proc, path, O_PATH | O_DIRECTORY, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (attr < 0) return attr;
    int err = write_below(attr, child.text(step.s2), child.text(step.s1));
    raw::close(attr);
    return err;
}

}  // namespace berth::child
