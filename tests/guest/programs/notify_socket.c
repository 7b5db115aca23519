// notify_socket SOCKET: what a service manager is to sd_notify(3): prints each message that comes to the
// socket that it makes, one a line, with the sender's process, and lets go of descriptors. notify_socket -s
// TEXT: sends that to $NOTIFY_SOCKET.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int give_up(const char* what) {
    perror(what);
    return 1;
}

static void close_descriptors(const struct cmsghdr* header) {
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
        close(fd);
    }
}

static int print_one(int listener) {
    char text[4096] = {0};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(3 * sizeof(int))];
    } control;
    struct iovec piece = {.iov_base = text, .iov_len = sizeof text - 1};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(listener, &message, 0) < 0) return give_up("recvmsg");
    int sender = 0;
    for (struct cmsghdr* header = CMSG_FIRSTHDR(&message); header != NULL;
         header = CMSG_NXTHDR(&message, header)) {
        // struct ucred begins with the pid.
        if (header->cmsg_type == SCM_CREDENTIALS) memcpy(&sender, CMSG_DATA(header), sizeof sender);
        if (header->cmsg_type == SCM_RIGHTS) close_descriptors(header);
    }
    printf("%d %s\n", sender, text);
    return fflush(stdout);
}

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    int is_sender = strcmp(argv[1], "-s") == 0;
    const char* path = is_sender ? getenv("NOTIFY_SOCKET") : argv[1];
    if (path == NULL || (is_sender && argc < 3)) return 2;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (is_sender) {
        ssize_t sent = sendto(fd, argv[2], strlen(argv[2]), 0, (struct sockaddr*)&address, sizeof address);
        return sent < 0 ? give_up(path) : 0;
    }
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr*)&address, sizeof address) != 0)
        return give_up(path);
    while (print_one(fd) == 0) {
    }
    return 1;
}
