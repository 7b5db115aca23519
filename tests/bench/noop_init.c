/* PID 1 that does nothing: the same modules, mounts and listener as the keeper's until it listens, the clock
   on the console; then the rest of what the keeper loads and mounts, and the memory that is left; power off.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kPort = 1023, kCompressed = 4 };

static long long boottime_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static int listen_vsock(void) {
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = kPort};
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr*)&address, sizeof address) < 0) return -1;
    return listen(fd, 128);
}

static void load(char* path) {
    path[strcspn(path, "\n")] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = strlen(path);
    int plain = length > 3 && strcmp(path + length - 3, ".ko") == 0;
    syscall(SYS_finit_module, fd, "", plain ? 0 : kCompressed);
    close(fd);
}

static void mount_rest(void) {
    const unsigned long quiet = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    const char* places[] = {"/dev/pts", "/dev/shm", "/dev/mqueue", "/run", "/tmp", "/sys/fs/cgroup"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) mkdir(places[i], 0755);
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=0620");
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    mount("mqueue", "/dev/mqueue", "mqueue", quiet, NULL);
    mount("tmpfs", "/run", "tmpfs", 0, "mode=0755");
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", quiet, "nsdelegate");
}

static long available_kb(void) {
    char line[256];
    long found = -1;
    FILE* file = fopen("/proc/meminfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %ld kB", &found) == 1) break;
    }
    return found;
}

int main(void) {
    const unsigned long quiet = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    mkdir("/proc", 0555);
    mkdir("/sys", 0555);
    mkdir("/dev", 0755);
    mount("proc", "/proc", "proc", quiet, NULL);
    mount("sysfs", "/sys", "sysfs", quiet, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755");
    int console = open("/dev/console", O_WRONLY | O_CLOEXEC);
    FILE* list = fopen("/lib/modules/berth.modules", "re");
    char path[512];
    while (listen_vsock() < 0 && list != NULL && fgets(path, sizeof path, list) != NULL) load(path);
    int length = snprintf(path, sizeof path, "\nnoop: listening %lld us\n", boottime_us());
    if (write(console, path, (size_t)length) < 0) return 1;
    while (list != NULL && fgets(path, sizeof path, list) != NULL) load(path);
    mount_rest();
    length = snprintf(path, sizeof path, "noop: available %ld kB\n", available_kb());
    if (write(console, path, (size_t)length) < 0) return 1;
    sleep(1);
    reboot(RB_POWER_OFF);
    return 0;
}
