// hung_fs DIR: mounts a file system on DIR as a share is whose host has hung: DIR/bundle/config.json was
// looked up before, and so the kernel knows it; nothing else is answered, not even its open. Prints "mounted"
// and stays; what waits for it goes on with an error when it is killed.
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int answer_lookup(int fd, const struct fuse_in_header* in) {
    const char* name = (const char*)(in + 1);
    struct {
        struct fuse_out_header header;
        struct fuse_entry_out entry;
    } out = {.header = {.len = sizeof out, .unique = in->unique}};
    int is_file = strcmp(name, "config.json") == 0;
    if (!is_file && strcmp(name, "bundle") != 0) return 0;
    out.entry.nodeid = out.entry.attr.ino = is_file ? 3 : 2;
    out.entry.entry_valid = out.entry.attr_valid = 3600;
    out.entry.attr.mode = is_file ? S_IFREG | 0644 : S_IFDIR | 0755;
    out.entry.attr.size = is_file ? 100 : 0;
    out.entry.attr.nlink = 1;
    return write(fd, &out, sizeof out) == (ssize_t)sizeof out ? 0 : -1;
}

int main(int argc, char** argv) {
    static char buffer[1 << 17];
    char options[128];
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (argc < 2 || fd < 0) {
        fprintf(stderr, "hung_fs DIR: /dev/fuse: %s\n", strerror(errno));
        return 1;
    }
    snprintf(options, sizeof options, "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", fd);
    if (mount("hung", argv[1], "fuse", 0, options) != 0) {
        fprintf(stderr, "hung_fs: mount: %s\n", strerror(errno));
        return 1;
    }
    for (;;) {
        ssize_t length = read(fd, buffer, sizeof buffer);
        if (length < 0 && errno == EINTR) continue;
        if (length < (ssize_t)sizeof(struct fuse_in_header)) return 1;
        const struct fuse_in_header* in = (const struct fuse_in_header*)buffer;
        if (in->opcode == FUSE_LOOKUP && answer_lookup(fd, in) != 0) return 1;
        if (in->opcode != FUSE_INIT) continue;
        struct {
            struct fuse_out_header header;
            struct fuse_init_out init;
        } out = {
            .header = {.len = sizeof out, .unique = in->unique},
            .init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = 4096}};
        if (write(fd, &out, sizeof out) != (ssize_t)sizeof out) return 1;
        puts("mounted");
        fflush(stdout);
    }
}
