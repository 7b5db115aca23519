#include "agent/service/agent_filter.h"

#include <doctest/doctest.h>
#include <linux/audit.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "agent/loop/loop.h"
#include "tests/support/sys/bpf_eval.h"

using namespace berth;

namespace {

#if defined(__x86_64__)
constexpr uint32_t kNative = AUDIT_ARCH_X86_64;
constexpr uint32_t kForeign = AUDIT_ARCH_I386;
#else
constexpr uint32_t kNative = AUDIT_ARCH_AARCH64;
constexpr uint32_t kForeign = AUDIT_ARCH_ARM;
#endif
constexpr pid_t kSelf = 4711;
constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr uint32_t kKill = SECCOMP_RET_KILL_PROCESS;

constexpr uint32_t err(int number) {
    return SECCOMP_RET_ERRNO | static_cast<uint32_t>(number);
}

uint32_t verdict(long number, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, uint32_t arch = kNative) {
    static const std::vector<sock_filter> program = service::agent_filter(kSelf);
    seccomp_data call{};
    call.arch = arch;
    call.nr = static_cast<int>(number);
    call.args[0] = a;
    call.args[1] = b;
    call.args[2] = c;
    auto result = test::evaluate(program, call);
    REQUIRE(result.has_value());
    return *result;
}

TEST_CASE("What the agent does is allowed") {
    for (int number : {SYS_read,       SYS_write,
                       SYS_close,      SYS_openat,
                       SYS_openat2,    SYS_open_tree,
                       SYS_mkdirat,    SYS_unlinkat,
                       SYS_splice,     SYS_tee,
                       SYS_pipe2,      SYS_memfd_create,
                       SYS_sendmsg,    SYS_recvmsg,
                       SYS_connect,    SYS_io_uring_enter,
                       SYS_pidfd_open, SYS_pidfd_send_signal,
                       SYS_getrandom,  SYS_clock_gettime,
                       SYS_exit_group, SYS_seccomp,
                       SYS_munmap,     SYS_brk}) {
        CAPTURE(number);
        CHECK(verdict(number) == kAllow);
    }
}

TEST_CASE("What only foreign code would do ends the process") {
    for (int number : {SYS_execve,
                       SYS_execveat,
                       SYS_clone,
                       SYS_clone3,
                       SYS_ptrace,
                       SYS_process_vm_readv,
                       SYS_process_vm_writev,
                       SYS_pidfd_getfd,
                       SYS_mount,
                       SYS_umount2,
                       SYS_move_mount,
                       SYS_fsopen,
                       SYS_fsmount,
                       SYS_mount_setattr,
                       SYS_pivot_root,
                       SYS_chroot,
                       SYS_setns,
                       SYS_unshare,
                       SYS_mknodat,
                       SYS_setuid,
                       SYS_setgid,
                       SYS_setresuid,
                       SYS_setgroups,
                       SYS_capset,
                       SYS_init_module,
                       SYS_finit_module,
                       SYS_kexec_load,
                       SYS_reboot,
                       SYS_io_uring_setup,
                       SYS_io_uring_register,
                       SYS_keyctl,
                       SYS_perf_event_open,
                       SYS_userfaultfd,
                       SYS_open_by_handle_at}) {
        CAPTURE(number);
        CHECK(verdict(number) == kKill);
    }
}

TEST_CASE("Other architectures' calls end the process") {
    CHECK(verdict(SYS_read, 0, 0, 0, kForeign) == kKill);
#if defined(__x86_64__)
    CHECK(verdict(SYS_read | 0x40000000) == kKill);
#endif
    CHECK(verdict(-1) == kKill);
}

TEST_CASE("The rest answers as an older kernel") {
    for (int number : {SYS_timer_create, SYS_inotify_init1, SYS_mq_open, SYS_nanosleep, SYS_setxattr, 448,
                       600, 0x3fffffff}) {
        CAPTURE(number);
        CHECK(verdict(number) == err(ENOSYS));
    }
}

TEST_CASE("Every number has exactly one verdict, and never a refusal for want of a rule") {
    for (long number = 0; number < 1024; ++number) {
        uint32_t action = verdict(number) & SECCOMP_RET_ACTION_FULL;
        CHECK((action == kAllow || action == kKill || action == SECCOMP_RET_ERRNO));
    }
}

TEST_CASE("Arguments decide about sockets, memory, ioctl, bpf and signals") {
    CHECK(verdict(SYS_socket, AF_UNIX) == kAllow);
    CHECK(verdict(SYS_socket, AF_VSOCK) == kAllow);
    // The kernel takes the low half.
    CHECK(verdict(SYS_socket, 0x100000000 | AF_VSOCK) == kAllow);
    for (int number : {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_UNSPEC}) {
        auto family = static_cast<uint64_t>(number);
        CHECK(verdict(SYS_socket, family) == err(EAFNOSUPPORT));
        CHECK(verdict(SYS_socket, 0x100000000 | family) == err(EAFNOSUPPORT));
    }
    CHECK(verdict(SYS_socketpair, AF_UNIX) == kAllow);
    CHECK(verdict(SYS_socketpair, AF_VSOCK) == err(EAFNOSUPPORT));
    for (int number : {SYS_mmap, SYS_mprotect}) {
        CHECK(verdict(number, 0, 4096, PROT_READ | PROT_WRITE) == kAllow);
        CHECK(verdict(number, 0, 4096, PROT_READ | PROT_EXEC) == kKill);
        CHECK(verdict(number, 0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) == kKill);
    }
    CHECK(verdict(SYS_ioctl, 0, TIOCSWINSZ) == kAllow);
    CHECK(verdict(SYS_ioctl, 0, FIONREAD) == kAllow);
    CHECK(verdict(SYS_ioctl, 0, TCGETS) == kAllow);
    CHECK(verdict(SYS_ioctl, 0, TIOCSTI) == err(ENOTTY));
    CHECK(verdict(SYS_ioctl, 0, TIOCLINUX) == err(ENOTTY));
    CHECK(verdict(SYS_bpf, BPF_PROG_LOAD) == kAllow);
    CHECK(verdict(SYS_bpf, BPF_OBJ_GET_INFO_BY_FD) == kAllow);
    CHECK(verdict(SYS_bpf, BPF_MAP_CREATE) == err(EINVAL));
    CHECK(verdict(SYS_bpf, 0xffffffff) == err(EINVAL));
    CHECK(verdict(SYS_tgkill, kSelf) == kAllow);
    CHECK(verdict(SYS_tgkill, 1) == kKill);
}

// The status of a child that confines itself and then runs `act`.
int status_of(int (*act)()) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);  // not doctest's handler
        if (!service::confine_agent().ok()) _exit(100);
        _exit(act());
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return status;
}

TEST_CASE("A confined process on this kernel") {
    if (geteuid() != 0) {
        MESSAGE("not root: not run");
        return;
    }
    auto signal_of = [](int (*act)()) {
        int status = status_of(act);
        CHECK(WIFSIGNALED(status));
        return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    };
    auto exit_of = [](int (*act)()) {
        int status = status_of(act);
        CHECK(WIFEXITED(status));
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    };
    CHECK(signal_of([] { return execl("/bin/true", "true", nullptr); }) == SIGSYS);
    CHECK(signal_of([] { return static_cast<int>(fork()); }) == SIGSYS);
    CHECK(signal_of([] { return setuid(1); }) == SIGSYS);
    CHECK(exit_of([] { return socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0; }) == EAFNOSUPPORT);
    CHECK(exit_of([] { return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? errno : 0; }) == 0);
    CHECK(exit_of([] { return syscall(SYS_inotify_init1, 0) < 0 ? errno : 0; }) == ENOSYS);
    // abort() still aborts.
    CHECK(signal_of([]() -> int { abort(); }) == SIGABRT);
    CHECK(exit_of([] {
              __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
              __user_cap_data_struct sets[2] = {};
              if (syscall(SYS_capget, &header, sets) == 0) return 1;  // not one of the allowed calls
              return errno == ENOSYS ? 0 : 2;
          }) == 0);
}

TEST_CASE("The ring does the loop's operations only") {
    auto made = loop::Loop::create(8);
    if (!made.ok()) {
        MESSAGE(made.error().message);
        REQUIRE(made.ok());
    }
    // Its descriptor: the one that links to io_uring.
    int ring = -1;
    for (int fd = 3; fd < 64 && ring < 0; ++fd) {
        char target[64] = {};
        std::string link = "/proc/self/fd/" + std::to_string(fd);
        if (readlink(link.c_str(), target, sizeof target - 1) > 0 &&
            std::string(target) == "anon_inode:[io_uring]")
            ring = fd;
    }
    REQUIRE(ring >= 0);
    io_uring_probe probe{};
    CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_PROBE, &probe, 0) == -1);
    CHECK(errno == EACCES);
}

}  // namespace
