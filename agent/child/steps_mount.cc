// Mounts: made detached, attached onto a checked descriptor.
#include <linux/mount.h>
#include <linux/sched.h>

#include "agent/child/child.h"

namespace berth::child {

namespace {

// umount2's flag; <sys/mount.h> and <linux/mount.h> cannot both be included with this glibc.
constexpr long kMntDetach = 2;

// Keeps the kernel's own words about a failed fsconfig or fsmount for the report ("tmpfs: Unknown parameter
// 'x'"): the log is read until it is empty, the last line says most.
int with_kernel_text(Child& child, int err) {
    if (err >= 0 || child.fs < 0) return err;
    char line[sizeof(child.kernel_text) + 2];
    while (true) {
        long size = raw::read(child.fs, line, sizeof(line) - 1);
        if (size <= 2) return err;
        // "e ", "w " or "i " comes first, and a newline last.
        size_t text = static_cast<size_t>(size) - 2;
        if (line[1 + text] == '\n') --text;
        if (text >= sizeof(child.kernel_text)) text = sizeof(child.kernel_text) - 1;
        copy_bytes(child.kernel_text, line + 2, text);
        child.kernel_text[text] = '\0';
    }
}

int fsconfig(Child& child, unsigned command, const char* key, const char* value) {
    long err = raw::syscall(SYS_fsconfig, child.fs, command, raw::word(key), raw::word(value), 0);
    return with_kernel_text(child, raw::number(err));
}

int open_tree(int directory, const char* path, uint64_t flags) {
    return raw::number(raw::syscall(SYS_open_tree, directory, raw::word(path),
                                    raw::word(flags | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
}

int clone_of(int fd, uint64_t flags) {
    return open_tree(fd, "", AT_EMPTY_PATH | flags);
}

int move_mount(int from, int onto) {
    return raw::number(raw::syscall(SYS_move_mount, from, raw::word(""), onto, raw::word(""),
                                    MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH));
}

int setattr(int fd, const char* path, uint64_t flags, const mount_attr& attributes) {
    return raw::number(raw::syscall(SYS_mount_setattr, fd, raw::word(path), raw::word(flags),
                                    raw::word(&attributes), sizeof(attributes)));
}

uint64_t recursive(const PlanStep& step) {
    return (step.flags & core::kRecursive) != 0 ? AT_RECURSIVE : 0;
}

bool is_missing(int err) {
    return err == -ENOENT || err == -ENOTDIR;
}

// Mounts `tree` over `onto`: the first time the tree itself, then clones of it. (A detached tree cannot be
// cloned before it is attached.)
int attach_shared(int tree, bool& attached, int onto) {
    if (!attached) {
        int err = move_mount(tree, onto);
        attached = err == 0;
        return err;
    }
    int copy = clone_of(tree, 0);
    if (copy < 0) return copy;
    int err = move_mount(copy, onto);
    raw::close(copy);
    return err;
}

int prepare_mask_mount(Child& child) {
    if (child.mask_mount >= 0) return 0;
    int fs = raw::number(raw::syscall(SYS_fsopen, raw::word("tmpfs"), FSOPEN_CLOEXEC));
    if (fs < 0) return fs;
    const char* const options[][2] = {{"nr_blocks", "1"}, {"nr_inodes", "1"}, {"mode", "0755"}};
    int err = 0;
    for (const auto& option : options) {
        if (err < 0) break;
        err = raw::number(raw::syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, raw::word(option[0]),
                                       raw::word(option[1]), 0));
    }
    if (err == 0) err = raw::number(raw::syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE));
    if (err == 0) {
        err = raw::number(
            raw::syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
                         MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
    }
    raw::close(fs);
    return fill(child.mask_mount, err);
}

int refuse_procfs(int& fd) {
    if (fd >= 0 && on_procfs(fd)) {
        raw::drop(fd);
        return -EPERM;
    }
    return 0;
}

// Nobody but whoever has a descriptor keeps a mount namespace without processes, and what is mounted in it.
int send_mounts(Child& child) {
    int proc = own_procfs(child);
    if (proc < 0) return proc;
    char path[32];
    size_t length = put_decimal(path, static_cast<uint64_t>(raw::syscall(SYS_getpid)));
    copy_bytes(path + length, "/ns/mnt", 8);
    int fd = raw::openat(proc, path, O_RDONLY);
    if (fd < 0) return fd;
    int err = tell_agent(child, core::ChildMessageType::kMounts, 0, 0, fd);
    raw::close(fd);
    return err;
}

}  // namespace

int step_fs_open(Child& child, const PlanStep& step) {
    return fill(child.fs,
                raw::number(raw::syscall(SYS_fsopen, raw::word(child.text(step.s1)), FSOPEN_CLOEXEC)));
}

int step_fs_string(Child& child, const PlanStep& step) {
    return fsconfig(child, FSCONFIG_SET_STRING, child.text(step.s1), child.text(step.s2));
}

int step_fs_flag(Child& child, const PlanStep& step) {
    return fsconfig(child, FSCONFIG_SET_FLAG, child.text(step.s1), nullptr);
}

int step_fs_mode_of(Child& child, const PlanStep& step) {
    int fd = open_in_root(child, child.text(step.s1), O_PATH | O_DIRECTORY);
    if (is_missing(fd)) return 0;
    if (fd < 0) return fd;
    struct stat status;
    int err = stat_of(fd, &status);
    raw::close(fd);
    if (err < 0) return err;
    char octal[5];
    for (int i = 0; i < 4; ++i) octal[i] = static_cast<char>('0' + ((status.st_mode >> (9 - 3 * i)) & 7));
    octal[4] = '\0';
    return fsconfig(child, FSCONFIG_SET_STRING, "mode", octal);
}

int step_fs_mount(Child& child, const PlanStep& step) {
    int err = fsconfig(child, FSCONFIG_CMD_CREATE, nullptr, nullptr);
    if (err < 0) return err;
    int fd = raw::number(raw::syscall(SYS_fsmount, child.fs, FSMOUNT_CLOEXEC, raw::word(step.a)));
    if (fd < 0) return with_kernel_text(child, fd);
    raw::drop(child.fs);
    return fill(child.mount, fd);
}

int step_mount_guest(Child& child, const PlanStep& step) {
    const char* type = child.text(step.s2);
    const char* source = type + length_of(type) + 1;
    const char* data = source + length_of(source) + 1;
    return raw::number(raw::syscall(SYS_mount, raw::word(source), raw::word(child.text(step.s1)),
                                    raw::word(type), raw::word(step.a), raw::word(data)));
}

int step_tree_guest(Child& child, const PlanStep& step) {
    uint64_t flags = step.b == 1 ? O_PATH | O_NOFOLLOW : O_PATH;
    int fd = raw::openat2(AT_FDCWD, child.text(step.s1), flags, 0, RESOLVE_NO_MAGICLINKS);
    if (fd < 0) return fd;
    int tree = clone_of(fd, step.a);
    raw::close(fd);
    return fill(child.mount, tree);
}

int step_tree_slot(Child& child, const PlanStep& step) {
    return fill(child.mount, raw::number(raw::syscall(SYS_fcntl, child.slot(step), F_DUPFD_CLOEXEC, 3)));
}

int step_tree_root(Child& child, const PlanStep& step) {
    int fd = open_in_root(child, child.text(step.s1), O_PATH);
    if (is_missing(fd) && step.b == 1) return kJump;
    if (fd < 0) return fd;
    int tree = clone_of(fd, step.a);
    raw::close(fd);
    return fill(child.mount, tree);
}

int step_tree_tty_slave(Child& child, const PlanStep&) {
    return fill(child.mount, clone_of(child.tty, 0));
}

int step_keep_mount(Child& child, const PlanStep& step) {
    int err = fill(child.kept[step.a], child.mount);
    child.mount = -1;
    return err;
}

int step_tree_kept(Child& child, const PlanStep& step) {
    int err = fill(child.mount, child.kept[step.a]);
    child.kept[step.a] = -1;
    return err < 0 ? -EBADF : 0;
}

int step_chdir_root(Child& child, const PlanStep&) {
    int root = root_of(child);
    return root < 0 ? root : raw::number(raw::syscall(SYS_fchdir, root));
}

int step_target_here(Child& child, const PlanStep&) {
    return fill(child.target, raw::openat(AT_FDCWD, ".", O_PATH | O_DIRECTORY));
}

int step_mount_setattr(Child& child, const PlanStep& step) {
    mount_attr attributes{};
    attributes.attr_set = step.a;
    attributes.attr_clr = step.b;
    int err = setattr(child.mount, "", AT_EMPTY_PATH | recursive(step), attributes);
    if (err != -EPERM || step.c == 0) return err;
    attributes.attr_clr &= ~step.c;
    return setattr(child.mount, "", AT_EMPTY_PATH | recursive(step), attributes);
}

int step_mount_idmap(Child& child, const PlanStep& step) {
    mount_attr attributes{};
    attributes.attr_set = MOUNT_ATTR_IDMAP;
    attributes.userns_fd = static_cast<uint64_t>(child.slot(step));
    return setattr(child.mount, "", AT_EMPTY_PATH | recursive(step), attributes);
}

int step_target_guest(Child& child, const PlanStep& step) {
    const char* path = child.text(step.s1);
    int fd = raw::openat(AT_FDCWD, path, O_PATH);
    if (fd == -ENOENT) {
        int err = make_directories(path, 0755);
        fd = err < 0 ? err : raw::openat(AT_FDCWD, path, O_PATH);
    }
    return fill(child.target, fd);
}

int step_target_dir(Child& child, const PlanStep& step) {
    uint64_t resolve = step.b == 1 ? RESOLVE_NO_SYMLINKS : 0;
    int fd =
        make_in_root(child, child.text(step.s1), Leaf::kDirectory, static_cast<unsigned>(step.a), resolve);
    if (fd < 0) return fd;
    struct stat status;
    int err = stat_of(fd, &status);
    if (err == 0 && !S_ISDIR(status.st_mode)) err = -ENOTDIR;
    if (err == 0) err = refuse_procfs(fd);
    if (err < 0) {
        raw::drop(fd);
        return err;
    }
    return fill(child.target, fd);
}

int step_target_like(Child& child, const PlanStep& step) {
    struct stat status;
    int err = stat_of(child.mount, &status);
    if (err < 0) return err;
    Leaf leaf = S_ISDIR(status.st_mode) ? Leaf::kDirectory : Leaf::kFile;
    int fd = make_in_root(child, child.text(step.s1), leaf, 0755);
    if (fd >= 0 && step.c != 1) err = refuse_procfs(fd);
    return err < 0 ? err : fill(child.target, fd);
}

int step_target_existing(Child& child, const PlanStep& step) {
    int fd = open_in_root(child, child.text(step.s1), O_PATH);
    if (is_missing(fd) && step.b == 1) return kJump;
    int err = refuse_procfs(fd);
    return err < 0 ? err : fill(child.target, fd);
}

int step_mkdir_guest(Child& child, const PlanStep& step) {
    // The path may lie in a filesystem whose content is foreign: no symlink is followed on the way.
    constexpr uint64_t kPlain = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    const char* path = child.text(step.s1);
    size_t length = length_of(path);
    if (length >= kPathSize) return -ENAMETOOLONG;
    int directory = raw::openat(AT_FDCWD, path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY);
    bool made = false;
    for (size_t begin = 0; directory >= 0 && begin < length;) {
        while (path[begin] == '/') ++begin;
        size_t end = begin;
        while (end < length && path[end] != '/') ++end;
        if (end == begin) break;
        copy_bytes(child.path, path + begin, end - begin);
        child.path[end - begin] = '\0';
        long err = raw::syscall(SYS_mkdirat, directory, raw::word(child.path), raw::word(step.a));
        made = err == 0;
        int next = raw::openat2(directory, child.path, O_PATH | O_DIRECTORY, 0, kPlain);
        // Why it could not be made says more than that it is missing.
        if (next == -ENOENT && err < 0) next = raw::number(err);
        raw::close(directory);
        directory = next;
        begin = end;
    }
    if (directory < 0) return directory;
    long err = 0;
    if (made) {
        err = raw::syscall(SYS_fchownat, directory, raw::word(""), raw::word(step.b), raw::word(step.c),
                           AT_EMPTY_PATH);
    }
    raw::close(directory);
    return raw::number(err);
}

int step_attach(Child& child, const PlanStep&) {
    int err = move_mount(child.mount, child.target);
    if (err < 0) return err;
    // The descriptor of a mount stays that of the mount: later steps on `target` must not reach below it.
    raw::drop(child.target);
    child.target = child.mount;
    child.mount = -1;
    return 0;
}

int step_set_propagation(Child& child, const PlanStep& step) {
    mount_attr attributes{};
    attributes.propagation = step.a;
    return setattr(child.target, "", AT_EMPTY_PATH | recursive(step), attributes);
}

int step_enter_root(Child& child, const PlanStep&) {
    return fill(child.root, raw::openat(child.target, ".", O_PATH | O_DIRECTORY));
}

int step_guest_propagation(Child&, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_mount, 0, raw::word("/"), 0, raw::word(step.a), 0));
}

int prepare_null_mount(Child& child) {
    if (child.null_mount >= 0) return 0;
    // Before pivot_root "/dev" is the guest's own. What is checked is what is cloned: the same descriptor.
    int fd = raw::openat2(AT_FDCWD, "/dev/null", O_PATH | O_NOFOLLOW, 0, RESOLVE_NO_MAGICLINKS);
    if (fd < 0) return fd;
    struct stat status;
    int err = stat_of(fd, &status);
    if (err == 0 && !is_null_device(status)) err = -ENODEV;
    if (err == 0) err = clone_of(fd, 0);
    raw::close(fd);
    return fill(child.null_mount, err);
}

int step_mask(Child& child, const PlanStep& step) {
    int fd = open_in_root(child, child.text(step.s1), O_PATH);
    if (is_missing(fd)) return 0;
    if (fd < 0) return fd;
    struct stat status;
    int err = stat_of(fd, &status);
    if (err == 0 && S_ISDIR(status.st_mode)) {
        err = prepare_mask_mount(child);
        if (err == 0) err = attach_shared(child.mask_mount, child.mask_attached, fd);
    } else if (err == 0) {
        err = child.root_switched ? 0 : prepare_null_mount(child);
        if (err == 0) err = attach_shared(child.null_mount, child.null_attached, fd);
    }
    raw::close(fd);
    return err;
}

int step_readonly_path(Child& child, const PlanStep& step) {
    int fd = open_in_root(child, child.text(step.s1), O_PATH);
    if (is_missing(fd)) return 0;
    if (fd < 0) return fd;
    mount_attr attributes{};
    attributes.attr_set = MOUNT_ATTR_RDONLY;
    if (step.a == 1) {
        int err = setattr(fd, "", AT_EMPTY_PATH | recursive(step), attributes);
        raw::close(fd);
        return err;
    }
    int tree = clone_of(fd, AT_RECURSIVE);
    int err = tree < 0 ? tree : 0;
    if (err == 0) err = setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, attributes);
    if (err == 0) err = move_mount(tree, fd);
    raw::drop(tree);
    raw::close(fd);
    return err;
}

int step_leave_mounts(Child& child, const PlanStep& step) {
    int root = raw::openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
    if (root < 0) return root;
    int err = step.a == 1 ? send_mounts(child) : 0;
    if (err == 0) err = raw::number(raw::syscall(SYS_setns, child.slot(step), CLONE_NEWNS));
    if (err == 0) err = raw::number(raw::syscall(SYS_fchdir, root));
    if (err == 0) err = raw::number(raw::syscall(SYS_chroot, raw::word(".")));
    raw::close(root);
    return err;
}

int step_pivot_root(Child& child, const PlanStep&) {
    for (uint32_t i = child.step_index; i < child.step_count; ++i) {
        if (child.steps[i].op != core::PlanOp::kMask) continue;
        int err = prepare_null_mount(child);
        if (err < 0) return err;
        break;
    }
    int root = root_of(child);
    if (root < 0) return root;
    int old_root = raw::openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
    if (old_root < 0) return old_root;
    int err = raw::number(raw::syscall(SYS_fchdir, root));
    // The old root lands on top of the new one; nothing of its unmounting may reach the guest's namespace.
    if (err == 0) err = raw::number(raw::syscall(SYS_pivot_root, raw::word("."), raw::word(".")));
    if (err == 0) err = raw::number(raw::syscall(SYS_fchdir, old_root));
    if (err == 0) err = raw::number(raw::syscall(SYS_mount, 0, raw::word("."), 0, MS_SLAVE | MS_REC, 0));
    if (err == 0) err = raw::number(raw::syscall(SYS_umount2, raw::word("."), kMntDetach));
    if (err == 0) err = raw::number(raw::syscall(SYS_chdir, raw::word("/")));
    raw::close(old_root);
    if (err < 0) return err;
    child.root_switched = true;
    // It was opened before the switch, on what is "/" now: the same place, but let later steps see what is on
    // top.
    raw::drop(child.root);
    root = root_of(child);
    return root < 0 ? root : 0;
}

int step_root_readonly(Child&, const PlanStep& step) {
    mount_attr attributes{};
    attributes.attr_set = step.a;
    attributes.attr_clr = step.b;
    return setattr(AT_FDCWD, "/", 0, attributes);
}

int step_root_propagation(Child&, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_mount, 0, raw::word("/"), 0, raw::word(step.a), 0));
}

}  // namespace berth::child
