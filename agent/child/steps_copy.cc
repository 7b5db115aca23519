// tmpcopyup: the copy of a directory of the image into the tmpfs that is going to cover it.
#include <sys/types.h>

#include "agent/child/child.h"

namespace berth::child {

namespace {

constexpr int kDepthMax = 64;
constexpr size_t kXattrNames = 4096;
constexpr size_t kXattrValue = 4096;
constexpr size_t kCopyChunk = 1u << 20;

struct DirectoryEntry {  // linux_dirent64
    uint64_t inode;
    int64_t offset;
    unsigned short size;
    unsigned char type;
    char name[1];
};

struct Level {
    int from = -1;  // readable
    int to = -1;
};

struct Copy {
    Level levels[kDepthMax];
    int depth = 0;
    alignas(8) char entries[4096];
    char names[kXattrNames];
    char value[kXattrValue];
};

void copy_xattrs(Copy& copy, int from, int to) {
    long size = raw::syscall(SYS_flistxattr, from, raw::word(copy.names), sizeof(copy.names));
    for (long at = 0; at < size; at += static_cast<long>(length_of(copy.names + at)) + 1) {
        const char* name = copy.names + at;
        long length =
            raw::syscall(SYS_fgetxattr, from, raw::word(name), raw::word(copy.value), sizeof(copy.value));
        // Best effort: tmpfs does not take every name ("user." before Linux 6.6).
        if (length >= 0) raw::syscall(SYS_fsetxattr, to, raw::word(name), raw::word(copy.value), length, 0);
    }
}

// Owner, mode and times of `status` onto the open file `to`.
int copy_attributes(Copy& copy, int from, int to, const struct stat& status) {
    long err =
        raw::syscall(SYS_fchown, to, raw::word(uint64_t{status.st_uid}), raw::word(uint64_t{status.st_gid}));
    if (err == 0) err = raw::syscall(SYS_fchmod, to, static_cast<long>(status.st_mode & 07777));
    if (err < 0) return raw::number(err);
    copy_xattrs(copy, from, to);
    const timespec times[2] = {status.st_atim, status.st_mtim};
    raw::syscall(SYS_utimensat, to, 0, raw::word(times), 0);
    return 0;
}

void copy_times(const Level& level, const char* name, const struct stat& status) {
    const timespec times[2] = {status.st_atim, status.st_mtim};
    raw::syscall(SYS_utimensat, level.to, raw::word(name), raw::word(times), AT_SYMLINK_NOFOLLOW);
}

int copy_file(Copy& copy, const Level& level, const char* name, const struct stat& status) {
    int from = raw::openat(level.from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (from < 0) return from;
    int to = raw::openat(level.to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    long err = to;
    while (err >= 0) {
        err = raw::syscall(SYS_sendfile, to, from, 0, kCopyChunk);
        if (err == 0) break;
    }
    if (err == 0) err = copy_attributes(copy, from, to, status);
    raw::drop(to);
    raw::close(from);
    return raw::number(err);
}

int copy_symlink(Child& child, const Level& level, const char* name, const struct stat& status) {
    long size =
        raw::syscall(SYS_readlinkat, level.from, raw::word(name), raw::word(child.path), kPathSize - 1);
    if (size < 0) return raw::number(size);
    child.path[size] = '\0';
    long err = raw::syscall(SYS_symlinkat, raw::word(child.path), level.to, raw::word(name));
    if (err == 0) {
        err = raw::syscall(SYS_fchownat, level.to, raw::word(name), raw::word(uint64_t{status.st_uid}),
                           raw::word(uint64_t{status.st_gid}), AT_SYMLINK_NOFOLLOW);
    }
    copy_times(level, name, status);
    return raw::number(err);
}

int copy_special(Child& child, const Level& level, const char* name, const struct stat& status) {
    long err = raw::syscall(SYS_mknodat, level.to, raw::word(name), static_cast<long>(status.st_mode),
                            raw::word(status.st_rdev));
    if (err < 0) return raw::number(err);
    int fd = raw::openat(level.to, name, O_PATH | O_NOFOLLOW);
    if (fd < 0) return fd;
    err = raw::syscall(SYS_fchownat, fd, raw::word(""), raw::word(uint64_t{status.st_uid}),
                       raw::word(uint64_t{status.st_gid}), AT_EMPTY_PATH);
    if (err == 0) err = set_mode(child, fd, status.st_mode & 07777);
    raw::close(fd);
    copy_times(level, name, status);
    return raw::number(err);
}

int enter_directory(Copy& copy, const Level& level, const char* name) {
    if (copy.depth == kDepthMax) return -ELOOP;
    Level next;
    next.from = raw::openat(level.from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (next.from < 0) return next.from;
    long err = raw::syscall(SYS_mkdirat, level.to, raw::word(name), 0700);
    if (err == 0) {
        next.to = raw::openat(level.to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        err = next.to < 0 ? next.to : 0;
    }
    if (err < 0) {
        raw::close(next.from);
        return raw::number(err);
    }
    copy.levels[copy.depth++] = next;
    return 0;
}

// The attributes of a directory come last: its times change with every entry.
int leave_directory(Copy& copy) {
    Level& level = copy.levels[copy.depth - 1];
    struct stat status;
    int err = stat_of(level.from, &status);
    if (err == 0) err = copy_attributes(copy, level.from, level.to, status);
    raw::drop(level.from);
    raw::drop(level.to);
    --copy.depth;
    return err;
}

// Copies entries of the innermost directory until one is a directory itself (entered; the position after it
// is kept) or all are done (left).
int copy_some(Child& child, Copy& copy) {
    Level& level = copy.levels[copy.depth - 1];
    long size = raw::syscall(SYS_getdents64, level.from, raw::word(copy.entries), sizeof(copy.entries));
    if (size < 0) return raw::number(size);
    if (size == 0) return leave_directory(copy);
    for (long at = 0; at < size;) {
        auto* entry = reinterpret_cast<DirectoryEntry*>(copy.entries + at);
        at += entry->size;
        const char* name = entry->name;
        if (name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'))) continue;
        struct stat status {};
        int err = raw::number(raw::syscall(SYS_newfstatat, level.from, raw::word(name), raw::word(&status),
                                           AT_SYMLINK_NOFOLLOW));
        if (err < 0) return err;
        if (S_ISDIR(status.st_mode)) {
            long seek = raw::syscall(SYS_lseek, level.from, entry->offset, 0);
            if (seek < 0) return raw::number(seek);
            return enter_directory(copy, level, name);
        }
        if (S_ISREG(status.st_mode)) {
            err = copy_file(copy, level, name, status);
        } else if (S_ISLNK(status.st_mode)) {
            err = copy_symlink(child, level, name, status);
        } else {
            err = copy_special(child, level, name, status);
        }
        if (err < 0) return err;
    }
    return 0;
}

}  // namespace

int step_tmp_copy_up(Child& child, const PlanStep& step) {
    int from = open_in_root(child, child.text(step.s1), O_RDONLY | O_DIRECTORY);
    if (from == -ENOENT) return 0;
    if (from < 0) return from;
    Copy copy;
    copy.levels[0].from = from;
    copy.levels[0].to = raw::openat(child.mount, ".", O_RDONLY | O_DIRECTORY);
    int err = copy.levels[0].to < 0 ? copy.levels[0].to : 0;
    copy.depth = 1;
    while (err == 0 && copy.depth > 0) err = copy_some(child, copy);
    for (; copy.depth > 0; --copy.depth) {
        raw::drop(copy.levels[copy.depth - 1].from);
        raw::drop(copy.levels[copy.depth - 1].to);
    }
    return err;
}

}  // namespace berth::child
