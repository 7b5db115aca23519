// Terminal, stdio and other descriptors.
#include <asm/termbits.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

#include "agent/child/child.h"

namespace berth::child {

namespace {

int dup_onto(int fd, int place) {
    return raw::number(raw::syscall(SYS_dup3, fd, place, 0));
}

// Moves one of our own descriptors away from the number `place`, which an extra descriptor is to get.
int move_away(int& fd, int place) {
    if (fd != place) return 0;
    int moved = raw::number(raw::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, place + 1));
    if (moved < 0) return moved;
    fd = moved;
    return 0;
}

bool is_devpts(int fd) {
    struct statfs status {};
    return raw::syscall(SYS_fstatfs, fd, raw::word(&status)) == 0 && status.f_type == DEVPTS_SUPER_MAGIC;
}

// Whether a step after the current one uses `slot`, or in any of the ops' own ways the register.
bool slot_needed_later(const Child& child, int slot) {
    for (uint32_t i = child.step_index + 1; i < child.step_count; ++i) {
        if (child.steps[i].slot == slot) return true;
    }
    return false;
}

bool op_comes_later(const Child& child, core::PlanOp op) {
    for (uint32_t i = child.step_index + 1; i < child.step_count; ++i) {
        if (child.steps[i].op == op) return true;
    }
    return false;
}

// The kernel's struct termios, not libc's.
int leave_newlines(int tty) {
    struct termios settings {};
    int err = raw::number(raw::syscall(SYS_ioctl, tty, TCGETS, raw::word(&settings)));
    if (err < 0) return err;
    settings.c_oflag &= ~static_cast<tcflag_t>(ONLCR);
    return raw::number(raw::syscall(SYS_ioctl, tty, TCSETS, raw::word(&settings)));
}

}  // namespace

int step_pty_open(Child& child, const PlanStep& step) {
    int fd = open_in_root(child, "/dev/pts/ptmx", O_RDWR | O_NOCTTY);
    if (fd < 0) return fd;
    // A plain file or another device of that name would answer the ioctls in its own way.
    long err = is_devpts(fd) ? 0 : -ENODEV;
    const int unlock = 0;
    if (err == 0) err = raw::syscall(SYS_ioctl, fd, TIOCSPTLCK, raw::word(&unlock));
    if (err == 0 && (step.a != 0 || step.b != 0)) {
        winsize size{};
        size.ws_row = static_cast<unsigned short>(step.a);
        size.ws_col = static_cast<unsigned short>(step.b);
        err = raw::syscall(SYS_ioctl, fd, TIOCSWINSZ, raw::word(&size));
    }
    // By descriptor: what lies at /dev/pts/N is the container's to choose.
    if (err == 0) err = raw::syscall(SYS_ioctl, fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (err >= 0) err = fill(child.tty, raw::number(err));
    if (err == 0) err = raw::syscall(SYS_fchown, child.tty, raw::word(step.c), -1);
    if (err == 0 && (step.flags & core::kPlainNewlines) != 0) err = leave_newlines(child.tty);
    if (err == 0) err = tell_agent(child, core::ChildMessageType::kPty, 0, 0, fd);
    raw::close(fd);
    return raw::number(err);
}

int step_pty_attach(Child& child, const PlanStep&) {
    child.null_stdio = -1;
    int err = raw::number(raw::syscall(SYS_ioctl, child.tty, TIOCSCTTY, 0));
    for (int place = 0; err >= 0 && place <= 2; ++place) err = dup_onto(child.tty, place);
    raw::drop(child.tty);
    return err < 0 ? err : 0;
}

int step_stdio(Child& child, const PlanStep& step) {
    auto place = static_cast<int>(step.a);
    if (step.slot != core::kNoSlot) {
        int err = dup_onto(child.slot(step), place);
        return err < 0 ? err : 0;
    }
    if (child.null_stdio >= 0) {
        int err = dup_onto(child.null_stdio, place);
        return err < 0 ? err : 0;
    }
    int fd = open_in_root(child, "/dev/null", O_RDWR | O_NOCTTY | O_NONBLOCK);
    // The spawner's own 0 to 2 are the guest's /dev/null.
    if (fd == -ENOENT || fd == -ENOTDIR) return 0;
    if (fd < 0) return fd;
    struct stat status;
    int err = stat_of(fd, &status);
    if (err == 0 && !is_null_device(status)) err = -ENODEV;
    if (err == 0) err = dup_onto(fd, place);
    raw::close(fd);
    if (err < 0) return err;
    child.null_stdio = place;
    return 0;
}

int step_stdio_owner(Child&, const PlanStep& step) {
    for (int fd = 0; fd <= 2; ++fd) {
        struct stat status;
        if (stat_of(fd, &status) < 0 || is_null_device(status) || status.st_uid == step.a) continue;
        long err = raw::syscall(SYS_fchown, fd, raw::word(step.a), -1);
        // A file that came from elsewhere may well not be ours to give away.
        if (err < 0 && err != -EROFS && err != -EPERM && err != -EINVAL) return raw::number(err);
    }
    return 0;
}

int step_slot_owner(Child& child, const PlanStep& step) {
    struct stat status;
    int err = stat_of(child.slot(step), &status);
    if (err < 0 || (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) || is_null_device(status))
        return err;
    long changed = raw::syscall(SYS_fchown, child.slot(step), raw::word(step.a), raw::word(step.b));
    return changed == -EROFS || changed == -EPERM || changed == -EINVAL ? 0 : raw::number(changed);
}

int step_cgroup_owner(Child& child, const PlanStep& step) {
    int directory = child.slot(step);
    long err = raw::syscall(SYS_fchownat, directory, raw::word(""), raw::word(step.a), raw::word(step.b),
                            AT_EMPTY_PATH);
    for (const char* name = child.text(step.s1); err == 0 && *name != '\0';) {
        size_t length = 0;
        while (name[length] != '\0' && name[length] != '\n') ++length;
        if (length >= kPathSize) return -ENAMETOOLONG;
        copy_bytes(child.path, name, length);
        child.path[length] = '\0';
        err = raw::syscall(SYS_fchownat, directory, raw::word(child.path), raw::word(step.a),
                           raw::word(step.b), AT_SYMLINK_NOFOLLOW);
        if (err == -ENOENT) err = 0;
        name += length;
        if (*name == '\n') ++name;
    }
    return raw::number(err);
}

int step_extra_fd(Child& child, const PlanStep& step) {
    auto place = static_cast<int>(step.a);
    int* const registers[] = {&child.mount, &child.target, &child.root,       &child.fs,
                              &child.tty,   &child.proc,   &child.null_mount, &child.mask_mount};
    int err = 0;
    for (int* fd : registers) {
        if (err == 0) err = move_away(*fd, place);
    }
    for (int i = 0; err == 0 && i < child.slot_count; ++i) err = move_away(child.slots[i], place);
    if (err == 0) err = dup_onto(child.slot(step), place);
    return err < 0 ? err : 0;
}

int step_close_fds(Child& child, const PlanStep&) {
    // All that is open is known, since run_child() closed the rest: close() alone, which every filter allows.
    for (int slot = 1; slot < child.slot_count; ++slot) {
        if (child.slots[slot] >= 0 && !slot_needed_later(child, slot)) raw::drop(child.slots[slot]);
    }
    for (int& fd : child.kept) raw::drop(fd);
    raw::drop(child.mount);
    raw::drop(child.target);
    raw::drop(child.fs);
    raw::drop(child.proc);
    raw::drop(child.null_mount);
    raw::drop(child.mask_mount);
    if (!op_comes_later(child, core::PlanOp::kPtyAttach)) raw::drop(child.tty);
    if (child.root_switched) raw::drop(child.root);
    return 0;
}

}  // namespace berth::child
