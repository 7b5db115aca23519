// The last steps: working directory, HOME, the executable, the filter, execve.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include "agent/child/child.h"

namespace berth::child {

namespace {

constexpr unsigned kDefaultUmask = 0022;
constexpr long kExecutable = 1;  // X_OK
constexpr size_t kPasswdBytesMax = 8u << 20;

const char* variable(const Child& child, const char* name_and_equals) {
    const char* found = nullptr;
    for (char** entry = child.envp; *entry != nullptr; ++entry) {
        // The last of several wins.
        if (starts_with(*entry, name_and_equals)) found = *entry + length_of(name_and_equals);
    }
    return found;
}

// The home directory of `uid` in one line of passwd: name:password:uid:gid:gecos:home:shell.
bool home_in_line(const char* line, size_t length, uint64_t uid, const char** home, size_t* home_length) {
    size_t field = 0;
    size_t begin = 0;
    uint64_t id = 0;
    bool id_ok = false;
    for (size_t i = 0; i <= length; ++i) {
        if (i < length && line[i] != ':') {
            if (field == 2) {
                bool digit = line[i] >= '0' && line[i] <= '9';
                if (i == begin) id_ok = digit;
                if (!digit || id > UINT32_MAX) id_ok = false;
                id = id * 10 + static_cast<uint64_t>(line[i] - '0');
            }
            continue;
        }
        if (field == 2 && (!id_ok || id != uid)) return false;
        if (field == 5) {
            *home = line + begin;
            *home_length = i - begin;
            return true;
        }
        ++field;
        begin = i + 1;
    }
    return false;
}

// Fills child.home with "HOME=..." from etc/passwd in root, "/" when it does not say.
void find_home(Child& child, uint64_t uid) {
    copy_bytes(child.home, "HOME=/", 7);
    // Not blocking: an image may hold a FIFO of that name.
    int fd = open_in_root(child, "/etc/passwd", O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return;
    struct stat status;
    bool regular = stat_of(fd, &status) == 0 && S_ISREG(status.st_mode);
    char* const buffer = child.path;
    size_t have = 0;
    bool skipping = false;  // a line longer than the buffer
    for (size_t total = 0; regular && total < kPasswdBytesMax;) {
        long got = raw::read(fd, buffer + have, kPathSize - 1 - have);
        if (got < 0 && got != -EINTR) break;
        bool end = got == 0;
        have += got > 0 ? static_cast<size_t>(got) : 0;
        total += got > 0 ? static_cast<size_t>(got) : 0;
        if (end && have > 0) buffer[have++] = '\n';
        size_t begin = 0;
        for (size_t i = 0; i < have; ++i) {
            if (buffer[i] != '\n') continue;
            const char* home = nullptr;
            size_t length = 0;
            if (!skipping && home_in_line(buffer + begin, i - begin, uid, &home, &length)) {
                raw::close(fd);
                if (length == 0 || home[0] != '/') return;
                copy_bytes(child.home + 5, home, length);
                child.home[5 + length] = '\0';
                return;
            }
            skipping = false;
            begin = i + 1;
        }
        copy_bytes(buffer, buffer + begin, have - begin);
        have -= begin;
        if (have >= kPathSize - 1) {
            skipping = true;
            have = 0;
        }
        if (end) break;
    }
    raw::close(fd);
}

// 0 or -EACCES and the like. faccessat goes by the real ids, and forgets the capabilities of who is not root:
// CAP_DAC_OVERRIDE counts for execve. Only then the newer call, which an older profile may not know.
int check_permission(const char* path) {
    int err = raw::number(raw::syscall(SYS_faccessat, AT_FDCWD, raw::word(path), kExecutable));
    if (err != -EACCES) return err;
    return raw::syscall(SYS_faccessat2, AT_FDCWD, raw::word(path), kExecutable, AT_EACCESS) == 0 ? 0 : err;
}

constexpr unsigned kByAll = S_IXUSR | S_IXGRP | S_IXOTH;

// Whether nobody is kept from executing the open file, as far as one look tells.
bool is_plain_executable(int fd) {
    struct stat status;
    if (stat_of(fd, &status) < 0 || !S_ISREG(status.st_mode) || (status.st_mode & kByAll) != kByAll)
        return false;
    struct statfs mount {};
    return raw::syscall(SYS_fstatfs, fd, raw::word(&mount)) == 0 && (mount.f_flags & ST_NOEXEC) == 0;
}

// 0 when `path` may be executed by who we are; ENOENT, EACCES or ELOOP.
int check_executable(const Child& child, const char* path) {
    if (!child.filtered) {
        int plain = raw::openat2(AT_FDCWD, path, O_PATH, 0, RESOLVE_NO_MAGICLINKS);
        bool is_plain = plain >= 0 && is_plain_executable(plain);
        if (plain >= 0) raw::close(plain);
        if (is_plain) return 0;
    }
    struct stat status {};
    int err = raw::number(raw::syscall(SYS_newfstatat, AT_FDCWD, raw::word(path), raw::word(&status), 0));
    if (err < 0) return err;
    if (!S_ISREG(status.st_mode)) return -EACCES;
    err = check_permission(path);
    if (err < 0 || child.filtered) return err;
    // /proc/self/exe is the agent's own binary still: it must not be run, and so be held open, in here.
    int fd = raw::openat2(AT_FDCWD, path, O_PATH, 0, RESOLVE_NO_MAGICLINKS);
    if (fd < 0) return fd;
    raw::close(fd);
    return 0;
}

int search_path(Child& child, const char* name, const char* path) {
    size_t name_length = length_of(name);
    int result = -ENOENT;
    while (true) {
        size_t length = 0;
        while (path[length] != '\0' && path[length] != ':') ++length;
        if (length + name_length + 2 <= kPathSize) {
            char* out = child.executable_path;
            copy_bytes(out, path, length);
            // An empty element is the working directory.
            if (length > 0) out[length++] = '/';
            copy_bytes(out + length, name, name_length + 1);
            int err = check_executable(child, out);
            if (err == 0) return 0;
            if (err == -EACCES || err == -ELOOP) result = err;
            if (length > 0) --length;
        }
        if (path[length] == '\0') return result;
        path += length + 1;
    }
}

}  // namespace

int step_cwd(Child& child, const PlanStep& step) {
    const char* path = child.text(step.s1);
    if (child.at_root && path[0] == '/' && path[1] == '\0') return 0;
    // No magic links: /proc/self/fd/N is a descriptor of the set-up's here, and leads where the program has
    // no business.
    int fd = open_in_root(child, path, O_PATH | O_DIRECTORY);
    if (fd == -ENOENT && step.b == 1) fd = make_in_root(child, path, Leaf::kDirectory, 0755);
    if (fd < 0) return fd;
    child.at_root = false;
    long err = raw::syscall(SYS_fchdir, fd);
    raw::close(fd);
    if (err < 0) return raw::number(err);
    // What is not below the root gives "(unreachable)".
    long size = raw::syscall(SYS_getcwd, raw::word(child.path), kPathSize);
    if (size < 0) return raw::number(size);
    return child.path[0] == '/' ? 0 : -ENOENT;
}

int step_home(Child& child, const PlanStep& step) {
    const char* value = variable(child, "HOME=");
    if (value != nullptr && value[0] != '\0') return 0;
    find_home(child, step.a);
    for (char** entry = child.envp; *entry != nullptr; ++entry) {
        if (starts_with(*entry, "HOME=")) *entry = child.home;
    }
    // The plan keeps one place free for it.
    if (value == nullptr) child.envp[child.header->envp.count] = child.home;
    return 0;
}

int step_resolve_exe(Child& child, const PlanStep& step) {
    const char* name = step.s1.offset == 0 ? child.argv[0] : child.text(step.s1);
    if (name[0] == '\0') return -ENOENT;
    for (const char* at = name; *at != '\0'; ++at) {
        if (*at != '/') continue;
        child.executable = name;
        int err = check_executable(child, name);
        return err == -ENOTDIR ? -ENOENT : err;
    }
    if (length_of(name) >= kPathSize) return -ENAMETOOLONG;
    const char* path = variable(child, "PATH=");
    child.executable = child.executable_path;
    return search_path(child, name, path == nullptr ? "/bin:/usr/bin" : path);
}

int step_seccomp(Child& child, const PlanStep& step) {
    struct Program {
        unsigned short length;
        const sock_filter* filter;
    };
    Program program{static_cast<unsigned short>(step.s1.length / sizeof(sock_filter)),
                    reinterpret_cast<const sock_filter*>(child.bytes(step.s1))};
    uint64_t flags = step.a;
    // One thread alone: nothing to synchronize, and the kernel does not take
    // both.
    if (step.slot != core::kNoSlot)
        flags = (flags & ~uint64_t{SECCOMP_FILTER_FLAG_TSYNC}) | SECCOMP_FILTER_FLAG_NEW_LISTENER;
    long result = raw::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, raw::word(flags), raw::word(&program));
    if (result < 0) return raw::number(result);
    child.filtered = true;
    if (step.slot == core::kNoSlot) return 0;
    auto listener = static_cast<int>(result);
    int err = tell_agent(child, core::ChildMessageType::kSeccompNotify, 0, 0, listener);
    raw::close(listener);
    return err;
}

int step_exec(Child& child, const PlanStep&) {
    if (!child.umask_set) raw::syscall(SYS_umask, kDefaultUmask);
    const uint64_t limit[2] = {child.nofile_soft, child.nofile_hard};
    if (child.nofile_set) {
        long err = raw::syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, raw::word(limit), 0);
        if (err < 0) return raw::number(err);
    }
    const char* path = child.executable == nullptr ? child.argv[0] : child.executable;
    return raw::number(
        raw::syscall(SYS_execve, raw::word(path), raw::word(child.argv), raw::word(child.envp)));
}

}  // namespace berth::child
