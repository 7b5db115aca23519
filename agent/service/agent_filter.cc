#include "agent/service/agent_filter.h"

#include <linux/audit.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>

#include "agent/core/check.h"

namespace berth::service {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kNative = AUDIT_ARCH_X86_64;
constexpr uint32_t kNumbersEnd = 0x40000000;  // from here on x32's
#elif defined(__aarch64__)
constexpr uint32_t kNative = AUDIT_ARCH_AARCH64;
constexpr uint32_t kNumbersEnd = 0x80000000;
#else
#error "no filter for this architecture"
#endif

enum class Rule : uint8_t {
    kUnknown,
    kAllow,
    kKill,
    kSocket,      // AF_UNIX, AF_VSOCK
    kSocketPair,  // AF_UNIX
    kMemory,      // mmap, mprotect: not executable
    kIoctl,
    kBpf,
    kOwnProcess,  // the first argument is the agent's process id
};

struct Entry {
    uint32_t number;
    Rule rule;
};

constexpr Entry kEntries[] = {
    // Files, pipes, descriptors.
    {SYS_read, Rule::kAllow},
    {SYS_readv, Rule::kAllow},
    {SYS_pread64, Rule::kAllow},
    {SYS_write, Rule::kAllow},
    {SYS_writev, Rule::kAllow},
    {SYS_pwrite64, Rule::kAllow},
    {SYS_close, Rule::kAllow},
    {SYS_close_range, Rule::kAllow},
    {SYS_openat, Rule::kAllow},
    {SYS_openat2, Rule::kAllow},
    {SYS_open_tree, Rule::kAllow},
    {SYS_fstat, Rule::kAllow},
    {SYS_newfstatat, Rule::kAllow},
    {SYS_statx, Rule::kAllow},
    {SYS_statfs, Rule::kAllow},
    {SYS_fstatfs, Rule::kAllow},
    {SYS_lseek, Rule::kAllow},
    {SYS_fcntl, Rule::kAllow},
    {SYS_dup, Rule::kAllow},
    {SYS_dup3, Rule::kAllow},
    {SYS_ftruncate, Rule::kAllow},
    {SYS_fallocate, Rule::kAllow},
    {SYS_faccessat, Rule::kAllow},
    {SYS_faccessat2, Rule::kAllow},
    {SYS_readlinkat, Rule::kAllow},
    {SYS_getdents64, Rule::kAllow},
    {SYS_getcwd, Rule::kAllow},
    {SYS_mkdirat, Rule::kAllow},
    {SYS_fsetxattr, Rule::kAllow},
    {SYS_fgetxattr, Rule::kAllow},
    {SYS_unlinkat, Rule::kAllow},
    {SYS_renameat2, Rule::kAllow},
    {SYS_renameat, Rule::kAllow},
    {SYS_fchmod, Rule::kAllow},
    {SYS_fchmodat, Rule::kAllow},
    {SYS_umask, Rule::kAllow},
    {SYS_pipe2, Rule::kAllow},
    {SYS_splice, Rule::kAllow},
    {SYS_tee, Rule::kAllow},
    {SYS_memfd_create, Rule::kAllow},
    {SYS_ppoll, Rule::kAllow},
    {SYS_ioctl, Rule::kIoctl},
#if defined(__x86_64__)
    {SYS_open, Rule::kAllow},
    {SYS_stat, Rule::kAllow},
    {SYS_lstat, Rule::kAllow},
    {SYS_access, Rule::kAllow},
    {SYS_readlink, Rule::kAllow},
    {SYS_mkdir, Rule::kAllow},
    {SYS_rmdir, Rule::kAllow},
    {SYS_unlink, Rule::kAllow},
    {SYS_rename, Rule::kAllow},
    {SYS_chmod, Rule::kAllow},
    {SYS_poll, Rule::kAllow},
    {SYS_time, Rule::kAllow},
#endif
    // Memory.
    {SYS_mmap, Rule::kMemory},
    {SYS_mprotect, Rule::kMemory},
    {SYS_munmap, Rule::kAllow},
    {SYS_mremap, Rule::kAllow},
    {SYS_madvise, Rule::kAllow},
    {SYS_mlock, Rule::kAllow},
    {SYS_brk, Rule::kAllow},
    // Sockets and the ring.
    {SYS_socket, Rule::kSocket},
    {SYS_socketpair, Rule::kSocketPair},
    {SYS_connect, Rule::kAllow},
    {SYS_accept4, Rule::kAllow},
    {SYS_shutdown, Rule::kAllow},
    {SYS_sendmsg, Rule::kAllow},
    {SYS_sendto, Rule::kAllow},
    {SYS_recvmsg, Rule::kAllow},
    {SYS_recvfrom, Rule::kAllow},
    {SYS_getsockname, Rule::kAllow},
    {SYS_getpeername, Rule::kAllow},
    {SYS_getsockopt, Rule::kAllow},
    {SYS_setsockopt, Rule::kAllow},
    {SYS_io_uring_enter, Rule::kAllow},
    // Processes, signals, time, entropy.
    {SYS_pidfd_open, Rule::kAllow},
    {SYS_pidfd_send_signal, Rule::kAllow},
    {SYS_getpid, Rule::kAllow},
    {SYS_gettid, Rule::kAllow},
    {SYS_getuid, Rule::kAllow},
    {SYS_geteuid, Rule::kAllow},
    {SYS_tgkill, Rule::kOwnProcess},
    {SYS_rt_sigaction, Rule::kAllow},
    {SYS_rt_sigprocmask, Rule::kAllow},
    {SYS_rt_sigreturn, Rule::kAllow},
    {SYS_sigaltstack, Rule::kAllow},
    {SYS_restart_syscall, Rule::kAllow},
    {SYS_futex, Rule::kAllow},
    {SYS_sched_yield, Rule::kAllow},
    {SYS_clock_gettime, Rule::kAllow},
    {SYS_clock_getres, Rule::kAllow},
    {SYS_gettimeofday, Rule::kAllow},
    {SYS_getrandom, Rule::kAllow},
    {SYS_getrusage, Rule::kAllow},
    {SYS_uname, Rule::kAllow},
    {SYS_sysinfo, Rule::kAllow},
    {SYS_exit, Rule::kAllow},
    {SYS_exit_group, Rule::kAllow},
    // The devices of containers; and what libseccomp asks about the kernel (a filter can only take more
    // away).
    {SYS_bpf, Rule::kBpf},
    {SYS_seccomp, Rule::kAllow},

    // Programs and processes of its own.
    {SYS_execve, Rule::kKill},
    {SYS_execveat, Rule::kKill},
    {SYS_clone, Rule::kKill},
    {SYS_clone3, Rule::kKill},
#if defined(__x86_64__)
    {SYS_fork, Rule::kKill},
    {SYS_vfork, Rule::kKill},
    {SYS_modify_ldt, Rule::kKill},
    {SYS_iopl, Rule::kKill},
    {SYS_ioperm, Rule::kKill},
    {SYS_mknod, Rule::kKill},
#endif
    {SYS_personality, Rule::kKill},
    // Other processes' memory and descriptors.
    {SYS_ptrace, Rule::kKill},
    {SYS_process_vm_readv, Rule::kKill},
    {SYS_process_vm_writev, Rule::kKill},
    {SYS_pidfd_getfd, Rule::kKill},
    {SYS_userfaultfd, Rule::kKill},
    {SYS_perf_event_open, Rule::kKill},
    // Mounts, roots, namespaces, devices.
    {SYS_mount, Rule::kKill},
    {SYS_umount2, Rule::kKill},
    {SYS_move_mount, Rule::kKill},
    {SYS_fsopen, Rule::kKill},
    {SYS_fsconfig, Rule::kKill},
    {SYS_fsmount, Rule::kKill},
    {SYS_fspick, Rule::kKill},
    {SYS_mount_setattr, Rule::kKill},
    {SYS_pivot_root, Rule::kKill},
    {SYS_chroot, Rule::kKill},
    {SYS_setns, Rule::kKill},
    {SYS_unshare, Rule::kKill},
    {SYS_mknodat, Rule::kKill},
    {SYS_open_by_handle_at, Rule::kKill},
    // Identities.
    {SYS_setuid, Rule::kKill},
    {SYS_setgid, Rule::kKill},
    {SYS_setreuid, Rule::kKill},
    {SYS_setregid, Rule::kKill},
    {SYS_setresuid, Rule::kKill},
    {SYS_setresgid, Rule::kKill},
    {SYS_setfsuid, Rule::kKill},
    {SYS_setfsgid, Rule::kKill},
    {SYS_setgroups, Rule::kKill},
    {SYS_capset, Rule::kKill},
    {SYS_keyctl, Rule::kKill},
    {SYS_add_key, Rule::kKill},
    {SYS_request_key, Rule::kKill},
    // The kernel and the machine.
    {SYS_init_module, Rule::kKill},
    {SYS_finit_module, Rule::kKill},
    {SYS_delete_module, Rule::kKill},
    {SYS_kexec_load, Rule::kKill},
    {SYS_reboot, Rule::kKill},
    {SYS_swapon, Rule::kKill},
    {SYS_swapoff, Rule::kKill},
    {SYS_settimeofday, Rule::kKill},
    {SYS_clock_settime, Rule::kKill},
    // A second ring, which would not have the first one's restrictions.
    {SYS_io_uring_setup, Rule::kKill},
    {SYS_io_uring_register, Rule::kKill},
};

// TCGETS: whether a terminal reads line by line, before an end of file is typed into it.
constexpr uint32_t kIoctls[] = {TIOCSWINSZ, TIOCGWINSZ, TCGETS, FIONREAD, NS_GET_NSTYPE};
constexpr uint32_t kBpfCommands[] = {BPF_PROG_LOAD,  BPF_PROG_ATTACH,       BPF_PROG_DETACH,
                                     BPF_PROG_QUERY, BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD};
constexpr uint32_t kFamilies[] = {AF_UNIX, AF_VSOCK};
constexpr uint32_t kUnixOnly[] = {AF_UNIX};

using Program = std::vector<sock_filter>;

sock_filter statement(unsigned code, uint32_t value) {
    return {static_cast<uint16_t>(code), 0, 0, value};
}

sock_filter jump(unsigned condition, uint32_t value, size_t if_true, size_t if_false) {
    BERTH_CHECK(if_true <= UINT8_MAX && if_false <= UINT8_MAX);
    return {static_cast<uint16_t>(BPF_JMP | condition | BPF_K), static_cast<uint8_t>(if_true),
            static_cast<uint8_t>(if_false), value};
}

sock_filter answer(uint32_t verdict) {
    return statement(BPF_RET | BPF_K, verdict);
}

uint32_t deny(int err) {
    return SECCOMP_RET_ERRNO | static_cast<uint32_t>(err);
}

// The low half of an argument: all that the kernel takes of a descriptor, a family or a command.
sock_filter load_argument(unsigned index) {
    return statement(BPF_LD | BPF_W | BPF_ABS,
                     static_cast<uint32_t>(offsetof(seccomp_data, args) + index * sizeof(uint64_t)));
}

// Allows when argument `index` is one of `values`.
void one_of(Program& program, unsigned index, std::span<const uint32_t> values, uint32_t otherwise) {
    program.push_back(load_argument(index));
    for (size_t i = 0; i < values.size(); ++i) {
        program.push_back(jump(BPF_JEQ, values[i], values.size() - i, 0));
    }
    program.push_back(answer(otherwise));
    program.push_back(answer(SECCOMP_RET_ALLOW));
}

void append_rule(Program& program, Rule rule, pid_t self) {
    const uint32_t own[] = {static_cast<uint32_t>(self)};
    switch (rule) {
        case Rule::kUnknown: program.push_back(answer(deny(ENOSYS))); break;
        case Rule::kAllow: program.push_back(answer(SECCOMP_RET_ALLOW)); break;
        case Rule::kKill: program.push_back(answer(SECCOMP_RET_KILL_PROCESS)); break;
        case Rule::kSocket: one_of(program, 0, kFamilies, deny(EAFNOSUPPORT)); break;
        case Rule::kSocketPair: one_of(program, 0, kUnixOnly, deny(EAFNOSUPPORT)); break;
        case Rule::kIoctl: one_of(program, 1, kIoctls, deny(ENOTTY)); break;
        case Rule::kBpf: one_of(program, 0, kBpfCommands, deny(EINVAL)); break;
        case Rule::kOwnProcess: one_of(program, 0, own, SECCOMP_RET_KILL_PROCESS); break;
        case Rule::kMemory:
            program.push_back(load_argument(2));
            program.push_back(jump(BPF_JSET, PROT_EXEC, 1, 0));
            program.push_back(answer(SECCOMP_RET_ALLOW));
            program.push_back(answer(SECCOMP_RET_KILL_PROCESS));
            break;
    }
}

// Every number from `first` up to the next range's has the same rule.
struct Range {
    uint32_t first;
    Rule rule;
};

std::vector<Range> ranges_of(std::span<const Entry> entries) {
    std::vector<Entry> sorted(entries.begin(), entries.end());
    std::sort(sorted.begin(), sorted.end(),
              [](const Entry& a, const Entry& b) { return a.number < b.number; });
    std::vector<Range> ranges = {{0, Rule::kUnknown}};
    uint32_t next = 0;
    auto begin = [&ranges](uint32_t first, Rule rule) {
        if (ranges.back().rule == rule) return;
        if (ranges.back().first == first) ranges.pop_back();
        ranges.push_back({first, rule});
    };
    for (const Entry& entry : sorted) {
        BERTH_CHECK(entry.number >= next);  // no number twice
        if (entry.number > next) begin(next, Rule::kUnknown);
        begin(entry.number, entry.rule);
        next = entry.number + 1;
    }
    begin(next, Rule::kUnknown);
    return ranges;
}

// A balanced search: the kernel runs the program over every number when it is installed, to remember what is
// always allowed, and a list would cost it as much as the rest of the agent's start.
void append_search(Program& program, std::span<const Range> ranges, pid_t self) {
    if (ranges.size() == 1) {
        append_rule(program, ranges[0].rule, self);
        return;
    }
    size_t middle = ranges.size() / 2;
    Program lower;
    append_search(lower, ranges.first(middle), self);
    program.push_back(jump(BPF_JGE, ranges[middle].first, lower.size(), 0));
    program.insert(program.end(), lower.begin(), lower.end());
    append_search(program, ranges.subspan(middle), self);
}

core::Status drop_capabilities() {
    constexpr uint32_t kSetPcap = 1U << CAP_SETPCAP;
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[2] = {};
    if (syscall(SYS_capget, &header, sets) != 0) return core::errno_error(errno, "capget");
    if ((sets[0].effective & kSetPcap) != 0) {
        for (int cap = 0; cap < 64; ++cap) {
            if ((agent_capabilities() >> cap & 1) != 0) continue;
            if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0) continue;
            if (errno == EINVAL) break;  // beyond the kernel's last
            return core::errno_error(errno, "PR_CAPBSET_DROP");
        }
    }
    // An older kernel has no ambient set to clear.
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    for (int half = 0; half < 2; ++half) {
        auto kept = static_cast<uint32_t>(agent_capabilities() >> (32 * half)) & sets[half].permitted;
        sets[half] = {kept, kept, 0};
    }
    if (syscall(SYS_capset, &header, sets) != 0) return core::errno_error(errno, "capset");
    return core::ok();
}

}  // namespace

uint64_t agent_capabilities() {
    uint64_t mask = 0;
    for (int cap : {CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN,
                    CAP_SYS_RESOURCE}) {
        mask |= uint64_t{1} << cap;
    }
    return mask;
}

std::vector<sock_filter> agent_filter(pid_t self) {
    Program program = {
        statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
        jump(BPF_JEQ, kNative, 1, 0),
        answer(SECCOMP_RET_KILL_PROCESS),
        statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        jump(BPF_JGE, kNumbersEnd, 0, 1),
        answer(SECCOMP_RET_KILL_PROCESS),
    };
    append_search(program, ranges_of(kEntries), self);
    return program;
}

core::Status confine_agent() {
    BERTH_TRY(drop_capabilities());
    Program program = agent_filter(getpid());
    sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return core::errno_error(errno, "PR_SET_NO_NEW_PRIVS");
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_LOG, &filter) != 0) {
        return core::errno_error(errno, "the agent's own seccomp filter (CONFIG_SECCOMP_FILTER)");
    }
    return core::ok();
}

}  // namespace berth::service
