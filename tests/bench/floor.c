/* The floor under the agent's figures: a bare C program that makes the same system calls, with no checks and
   no parsing, and with the same four round trips over the same kind of socket (create or exec, start, wait,
   delete). What it leaves out is what an agent is for.

   floor lifecycle|exec N ROOTFS vsock|unix   N times; one line of nanoseconds each
   floor stream BYTES vsock|unix direct|pipe  raw write and read of a socket; `pipe`: the bytes come out of a
   pipe floor answer PATH                          a server that answers one byte on a unix socket, then ends
   and what runs in containers: floor true | floor write BYTES | floor sleep | floor oom FILE N |
   floor walk BYTES                                 touches each page of BYTES, for ever */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CGROUP "/sys/fs/cgroup/floor"
#define CONTAINER CGROUP "/c"

enum { kPort = 2345, kMessage = 64, kCreateMessage = 3072, kBlock = 65536 };

static void die(const char* what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    _exit(1);
}
#define TRY(call) \
    if ((call) < 0) die(#call)

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void read_all(int fd, char* data, size_t size) {
    while (size > 0) {
        ssize_t count = read(fd, data, size);
        if (count <= 0) die("read");
        data += count, size -= (size_t)count;
    }
}
static void write_all(int fd, const char* data, size_t size) {
    while (size > 0) {
        ssize_t count = write(fd, data, size);
        if (count <= 0) die("write");
        data += count, size -= (size_t)count;
    }
}
static void put(const char* path, const char* text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
    close(fd);
}

/* ---- the socket ---- */

static int listen_on(int vsock) {
    int fd;
    if (vsock) {
        struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = kPort};
        TRY(fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0));
        TRY(bind(fd, (struct sockaddr*)&address, sizeof address));
    } else {
        struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/floor.sock"};
        unlink(address.sun_path);
        TRY(fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        TRY(bind(fd, (struct sockaddr*)&address, sizeof address));
    }
    TRY(listen(fd, 8));
    return fd;
}
static int dial(int vsock) {
    int fd;
    if (vsock) {
        struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_LOCAL, .svm_port = kPort};
        TRY(fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0));
        TRY(connect(fd, (struct sockaddr*)&address, sizeof address));
    } else {
        struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/floor.sock"};
        TRY(fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        TRY(connect(fd, (struct sockaddr*)&address, sizeof address));
    }
    return fd;
}

/* ---- a container, as runc's default spec has it ---- */

/* No vsock, by either architecture's call, and nothing that goes round the filter: io_uring, x32, socketcall.
 */
static void own_filter(void) {
    enum { kX32 = 0x40000000, kIoUringSetup = 425, kSocket32 = 359, kSocketcall32 = 102 };
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_I386, 6, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, 11, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kIoUringSetup, 10, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 6, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kIoUringSetup, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kSocketcall32, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kSocket32, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_VSOCK, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    TRY(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static void limit_process(void) {
    struct rlimit files = {1024, 1024};
    TRY(prlimit(0, RLIMIT_NOFILE, &files, NULL));
    const uint64_t caps = 1u << CAP_AUDIT_WRITE | 1u << CAP_KILL | 1u << CAP_NET_BIND_SERVICE;
    for (unsigned long cap = 0; cap <= CAP_LAST_CAP; ++cap)
        if (!(caps >> cap & 1)) prctl(PR_CAPBSET_DROP, cap);
    TRY(syscall(SYS_setgroups, 0, NULL));
    TRY(syscall(SYS_setresgid, 0, 0, 0));
    TRY(syscall(SYS_setresuid, 0, 0, 0));
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    const uint32_t low = (uint32_t)caps;
    struct __user_cap_data_struct data[2] = {{low, low, low}, {0, 0, 0}};
    TRY(syscall(SYS_capset, &header, data));
    TRY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    own_filter();
}

static void mount_all(const char* rootfs) {
    TRY(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL));
    TRY(mount(rootfs, rootfs, NULL, MS_BIND | MS_REC, NULL));
    TRY(chdir(rootfs));
    const unsigned long quiet = MS_NOSUID | MS_NOEXEC | MS_NODEV;
    TRY(mount("proc", "proc", "proc", 0, NULL));
    TRY(mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_STRICTATIME, "mode=755,size=65536k"));
    TRY(mkdir("dev/pts", 0755));
    TRY(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
              "newinstance,ptmxmode=0666,mode=0620,gid=5"));
    TRY(mkdir("dev/shm", 0755));
    TRY(mount("shm", "dev/shm", "tmpfs", quiet, "mode=1777,size=65536k"));
    TRY(mkdir("dev/mqueue", 0755));
    TRY(mount("mqueue", "dev/mqueue", "mqueue", quiet, NULL));
    TRY(mount("sysfs", "sys", "sysfs", quiet | MS_RDONLY, NULL));
    TRY(mount(CONTAINER, "sys/fs/cgroup", NULL, MS_BIND, NULL));
    TRY(mount(NULL, "sys/fs/cgroup", NULL, MS_REMOUNT | MS_BIND | quiet | MS_RELATIME | MS_RDONLY, NULL));
    static const struct {
        const char* path;
        unsigned major, minor;
    } kNodes[] = {{"dev/null", 1, 3},   {"dev/zero", 1, 5},    {"dev/full", 1, 7},
                  {"dev/random", 1, 8}, {"dev/urandom", 1, 9}, {"dev/tty", 5, 0}};
    for (size_t i = 0; i < sizeof kNodes / sizeof kNodes[0]; ++i)
        TRY(mknod(kNodes[i].path, S_IFCHR | 0666, makedev(kNodes[i].major, kNodes[i].minor)));
    TRY(symlink("/proc/self/fd", "dev/fd"));
    TRY(symlink("/proc/self/fd/0", "dev/stdin"));
    TRY(symlink("/proc/self/fd/1", "dev/stdout"));
    TRY(symlink("/proc/self/fd/2", "dev/stderr"));
    TRY(symlink("/proc/kcore", "dev/core"));
    TRY(symlink("pts/ptmx", "dev/ptmx"));
    TRY((int)syscall(SYS_pivot_root, ".", "."));
    TRY(umount2(".", MNT_DETACH));
    TRY(chdir("/"));
    static const char* const kReadOnly[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
                                            "/proc/sysrq-trigger"};
    for (size_t i = 0; i < sizeof kReadOnly / sizeof kReadOnly[0]; ++i) {
        if (mount(kReadOnly[i], kReadOnly[i], NULL, MS_BIND | MS_REC, NULL) < 0) continue;
        TRY(mount(NULL, kReadOnly[i], NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    }
    static const char* const kMasked[] = {
        "/proc/acpi",       "/proc/asound",      "/proc/kcore",       "/proc/keys",    "/proc/latency_stats",
        "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"};
    for (size_t i = 0; i < sizeof kMasked / sizeof kMasked[0]; ++i)
        if (mount("/dev/null", kMasked[i], NULL, MS_BIND, NULL) < 0 && errno == ENOTDIR)
            TRY(mount("tmpfs", kMasked[i], "tmpfs", MS_RDONLY, "size=0k"));
    TRY(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
}

static void null_stdio(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; ++fd) TRY(dup2(null, fd));
}

static pid_t clone_process(uint64_t flags, int cgroup, int* pidfd) {
    struct clone_args arguments = {.flags = flags | CLONE_PIDFD | CLONE_INTO_CGROUP,
                                   .exit_signal = SIGCHLD,
                                   .pidfd = (uintptr_t)pidfd,
                                   .cgroup = (uint64_t)(unsigned)cgroup};
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

static const char* const kArguments[] = {"floor", "true", NULL};
static const char* const kSleep[] = {"floor", "sleep", NULL};
static const char* const kEnvironment[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm", NULL};

/* What an agent keeps of a process. */
struct process {
    int cgroup, events, pidfd, gate;
    pid_t pid;
};

/* Denied unless it is one of the default devices: what runc's rules come to. Loaded once: every container's
 * is the same. */
static int load_device_program(void) {
    enum { kAny = -1 };
    static const int kAllowed[][2] = {{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 2}, {136, kAny}};
    struct bpf_insn code[64];
    int count = 0;
    /* type and access, major, minor */
    code[count++] =
        (struct bpf_insn){.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 0};
    code[count++] =
        (struct bpf_insn){.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 3, .src_reg = 1, .off = 4};
    code[count++] =
        (struct bpf_insn){.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 4, .src_reg = 1, .off = 8};
    code[count++] = (struct bpf_insn){.code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = 2, .imm = 0xffff};
    for (size_t i = 0; i < sizeof kAllowed / sizeof kAllowed[0]; ++i) {
        int has_minor = kAllowed[i][1] != kAny;
        code[count++] = (struct bpf_insn){.code = BPF_JMP | BPF_JNE | BPF_K,
                                          .dst_reg = 2,
                                          .off = (int16_t)(3 + has_minor),
                                          .imm = BPF_DEVCG_DEV_CHAR};
        code[count++] = (struct bpf_insn){.code = BPF_JMP | BPF_JNE | BPF_K,
                                          .dst_reg = 3,
                                          .off = (int16_t)(2 + has_minor),
                                          .imm = kAllowed[i][0]};
        if (has_minor)
            code[count++] = (struct bpf_insn){
                .code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = 4, .off = 2, .imm = kAllowed[i][1]};
        code[count++] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 1};
        code[count++] = (struct bpf_insn){.code = BPF_JMP | BPF_EXIT};
    }
    code[count++] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0};
    code[count++] = (struct bpf_insn){.code = BPF_JMP | BPF_EXIT};
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE,
                           .insn_cnt = (uint32_t)count,
                           .insns = (uintptr_t)code,
                           .license = (uintptr_t) "GPL"};
    int program = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
    if (program < 0) die("bpf load");
    return program;
}

static void attach_device_program(int cgroup, int program) {
    union bpf_attr attach = {.target_fd = (uint32_t)cgroup,
                             .attach_bpf_fd = (uint32_t)program,
                             .attach_type = BPF_CGROUP_DEVICE,
                             .attach_flags = BPF_F_ALLOW_MULTI};
    TRY((int)syscall(SYS_bpf, BPF_PROG_ATTACH, &attach, sizeof attach));
}

static void loopback_up(void) {
    int fd;
    struct ifreq request = {.ifr_name = "lo"};
    TRY(fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    TRY(ioctl(fd, SIOCGIFFLAGS, &request));
    request.ifr_flags |= IFF_UP;
    TRY(ioctl(fd, SIOCSIFFLAGS, &request));
    close(fd);
}

static void wait_child(int gate) {
    char byte;
    read_all(gate, &byte, 1);
}

static struct process create(const char* rootfs, const char* const* argv, int devices) {
    struct process made;
    TRY(mkdir(CONTAINER, 0755));
    TRY(made.cgroup = open(CONTAINER, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    put(CONTAINER "/cgroup.max.descendants", "16384");
    put(CONTAINER "/cgroup.max.depth", "32");
    char counters[4096];
    TRY(made.events = openat(made.cgroup, "memory.events", O_RDONLY | O_CLOEXEC));
    TRY((int)pread(made.events, counters, sizeof counters, 0));
    int gate[2];
    TRY(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, gate));
    made.pid = clone_process(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS,
                             made.cgroup, &made.pidfd);
    if (made.pid < 0) die("clone3");
    if (made.pid == 0) {
        TRY(dup2(gate[1], 3));
        TRY((int)syscall(SYS_close_range, 4, ~0u, 0));
        TRY(fcntl(3, F_SETFD, FD_CLOEXEC));
        TRY(setsid());
        TRY((int)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL));
        loopback_up();
        TRY(sethostname("runc", 4));
        mount_all(rootfs);
        null_stdio();
        limit_process();
        write_all(3, "R", 1);
        wait_child(3);
        execve("/bin/floor", (char**)argv, (char**)kEnvironment);
        _exit(127);
    }
    close(gate[1]);
    made.gate = gate[0];
    wait_child(made.gate);
    attach_device_program(made.cgroup, devices);
    return made;
}

static void start(struct process* process) {
    char byte;
    write_all(process->gate, "G", 1);
    while (read(process->gate, &byte, 1) > 0) { /* to the end of file, which is the execve */
    }
    close(process->gate);
}

static void reap(struct process* process) {
    siginfo_t info;
    TRY(waitid(P_PIDFD, (id_t)process->pidfd, &info, WEXITED | __WALL));
    close(process->pidfd);
}

static void delete (struct process* process) {
    close(process->events);
    close(process->cgroup);
    while (rmdir(CONTAINER) < 0) {
        if (errno != EBUSY) die("rmdir");
        usleep(100);
    }
}

static struct process exec_into(const struct process* init) {
    struct process made = {.cgroup = -1, .events = -1};
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", init->pid);
    int pid_namespace, own, gate[2];
    TRY(pid_namespace = open(path, O_RDONLY | O_CLOEXEC));
    TRY(own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
    TRY(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, gate));
    TRY(setns(pid_namespace, CLONE_NEWPID));
    made.pid = clone_process(0, init->cgroup, &made.pidfd);
    if (made.pid < 0) die("clone3");
    if (made.pid == 0) {
        TRY(setns(init->pidfd, CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS));
        TRY(dup2(gate[1], 3));
        TRY((int)syscall(SYS_close_range, 4, ~0u, 0));
        TRY(fcntl(3, F_SETFD, FD_CLOEXEC));
        wait_child(3);
        TRY(setsid());
        TRY((int)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL));
        TRY(chdir("/"));
        null_stdio();
        limit_process();
        execve("/bin/floor", (char**)kArguments, (char**)kEnvironment);
        _exit(127);
    }
    TRY(setns(own, CLONE_NEWPID));
    close(own);
    close(pid_namespace);
    close(gate[1]);
    made.gate = gate[0];
    return made;
}

/* ---- measured over a socket ---- */

static void serve(int listener, const char* rootfs, int exec) {
    int fd;
    TRY(fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    struct process init = {0}, process = {0};
    const int devices = load_device_program();
    if (exec) {
        init = create(rootfs, kSleep, devices);
        start(&init);
    }
    char message[kCreateMessage];
    for (;;) {
        ssize_t count = read(fd, message, 1);
        if (count <= 0) break;
        char what = message[0];
        read_all(fd, message, (what == 'c' ? kCreateMessage : kMessage) - 1);
        if (what == 'c' && !exec) process = create(rootfs, kArguments, devices);
        if (what == 's' && exec) process = exec_into(&init);
        if (what == 's') start(&process);
        if (what == 'w') reap(&process);
        if (what == 'd' && !exec) delete (&process);
        write_all(fd, message, kMessage);
    }
    if (exec) {
        kill(init.pid, SIGKILL);
        reap(&init);
        delete (&init);
    }
    _exit(0);
}

/* As the agent does for its sandbox: each costs something for every cgroup. */
static void enable_all_controllers(void) {
    char names[256], all[512] = "";
    int fd = open(CGROUP "/cgroup.controllers", O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : read(fd, names, sizeof names - 1);
    if (count < 0) die("cgroup.controllers");
    close(fd);
    names[count] = '\0';
    for (char* name = strtok(names, " \n"); name != NULL; name = strtok(NULL, " \n")) {
        strcat(all, "+");
        strcat(all, name);
        strcat(all, " ");
    }
    put(CGROUP "/cgroup.subtree_control", all);
}

static void measure(const char* rootfs, long runs, int vsock, int exec) {
    mkdir(CGROUP, 0755);
    enable_all_controllers();
    int listener = listen_on(vsock);
    pid_t server = fork();
    if (server == 0) serve(listener, rootfs, exec);
    int fd = dial(vsock);
    char message[kCreateMessage] = {0};
    for (long i = 0; i < runs; ++i) {
        int64_t begun = now_ns();
        for (const char* what = "cswd"; *what != 0; ++what) {
            message[0] = *what;
            write_all(fd, message, *what == 'c' ? kCreateMessage : kMessage);
            read_all(fd, message, kMessage);
        }
        printf("%lld\n", (long long)(now_ns() - begun));
    }
    close(fd);
    waitpid(server, NULL, 0);
    rmdir(CGROUP);
}

/* ---- streams ---- */

static void write_bytes(int fd, long long bytes) {
    static char block[kBlock];
    memset(block, 'x', sizeof block);
    for (; bytes > 0; bytes -= kBlock) write_all(fd, block, bytes < kBlock ? (size_t)bytes : kBlock);
}

static void relay(int from, int to) {
    static char block[kBlock];
    ssize_t count;
    while ((count = read(from, block, sizeof block)) > 0) write_all(to, block, (size_t)count);
}

static void stream(long long bytes, int vsock, int through_pipe) {
    static char block[2 * kBlock];
    int listener = listen_on(vsock);
    if (fork() == 0) {
        int fd = accept(listener, NULL, NULL), ends[2];
        if (!through_pipe) {
            write_bytes(fd, bytes);
            _exit(0);
        }
        TRY(pipe2(ends, O_CLOEXEC));
        TRY(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20));
        if (fork() == 0) {
            write_bytes(ends[1], bytes);
            _exit(0);
        }
        close(ends[1]);
        relay(ends[0], fd);
        _exit(0);
    }
    int fd = dial(vsock);
    int64_t begun = now_ns();
    long long left = bytes;
    while (left > 0) {
        ssize_t count = read(fd, block, sizeof block);
        if (count <= 0) die("read");
        left -= count;
    }
    printf("%lld\n", (long long)(now_ns() - begun));
    close(fd);
    while (wait(NULL) > 0) {
    }
}

/* ---- in containers ---- */

/* The n-th child notes the time before it touches each page, and is killed for it: slot n of the file then
   holds the time of the touch that was one too many. */
static void run_out_of_memory(const char* path, long kills) {
    int fd;
    TRY(fd = open(path, O_RDWR | O_CLOEXEC));
    volatile int64_t* slots = mmap(NULL, (size_t)kills * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (slots == MAP_FAILED) die("mmap");
    for (long i = 0; i < kills; ++i) {
        pid_t pid = fork();
        if (pid == 0) {
            put("/proc/self/oom_score_adj", "1000");
            const size_t size = 256u << 20;
            char* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t at = 0; at < size; at += 4096) {
                slots[i] = now_ns();
                memory[at] = 1;
            }
            _exit(0);
        }
        int status;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status)) die("not killed");
        usleep(12000); /* the kernel tells of a file at most once in 10 ms: one event a kill */
    }
}

/* More than memory.high allows, again and again: the kernel reclaims at each round. */
static void walk(long long bytes) {
    for (;;) {
        char* memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) die("mmap");
        for (long long at = 0; at < bytes; at += 4096) memory[at] = 1;
        munmap(memory, (size_t)bytes);
    }
}

static void answer(const char* path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int listener, fd;
    char byte;
    TRY(listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    TRY(bind(listener, (struct sockaddr*)&address, sizeof address));
    TRY(listen(listener, 1));
    TRY(fd = accept(listener, NULL, NULL));
    read_all(fd, &byte, 1);
    write_all(fd, &byte, 1);
    unlink(path);
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "true") == 0) return 0;
    if (strcmp(what, "sleep") == 0) {
        for (;;) pause();
    }
    if (strcmp(what, "write") == 0 && argc == 3) {
        write_bytes(1, atoll(argv[2]));
    } else if (strcmp(what, "oom") == 0 && argc == 4) {
        run_out_of_memory(argv[2], atol(argv[3]));
    } else if (strcmp(what, "walk") == 0 && argc == 3) {
        walk(atoll(argv[2]));
    } else if (strcmp(what, "answer") == 0 && argc == 3) {
        answer(argv[2]);
    } else if (strcmp(what, "stream") == 0 && argc == 5) {
        stream(atoll(argv[2]), strcmp(argv[3], "vsock") == 0, strcmp(argv[4], "pipe") == 0);
    } else if (argc == 5) {
        measure(argv[3], atol(argv[2]), strcmp(argv[4], "vsock") == 0, strcmp(what, "exec") == 0);
    } else {
        fprintf(stderr, "floor: see the head of floor.c\n");
        return 2;
    }
    return 0;
}
