// try_devices: reads lines "c|b MAJOR MINOR" and prints for each "TYPE MAJOR:MINOR" with the letters of what
// this process may do: m (a node can be made), r and w (it can be opened; a device that is not there counts:
// the answer is then not EPERM).
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int may_open(const char* path, int flags) {
    int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) close(fd);
    return fd >= 0 || errno != EPERM;
}

int main(int argc, char** argv) {
    // Nodes that were made before (outside, where the program does not bind) are opened instead of made anew.
    const char* folder = argc > 1 ? argv[1] : "/tmp";
    char type = 0;
    unsigned major_number = 0, minor_number = 0;
    while (scanf(" %c %u %u", &type, &major_number, &minor_number) == 3) {
        char made[128], given[128];
        snprintf(made, sizeof made, "/tmp/made-%c-%u-%u", type, major_number, minor_number);
        snprintf(given, sizeof given, "%s/%c-%u-%u", folder, type, major_number, minor_number);
        mode_t mode = (type == 'b' ? S_IFBLK : S_IFCHR) | 0600;
        char may[4] = "";
        if (mknod(made, mode, makedev(major_number, minor_number)) == 0) {
            strcat(may, "m");
            unlink(made);
        }
        if (may_open(given, O_RDONLY)) strcat(may, "r");
        if (may_open(given, O_WRONLY)) strcat(may, "w");
        printf("%c %u:%u %s\n", type, major_number, minor_number, may[0] ? may : "-");
    }
    return 0;
}
