// console_socket SOCKET: what a caller of `create --console-socket` is: takes one descriptor from whoever
// connects to the unix socket that it makes, says its kind, and copies what comes out of it until its end.
// With `pidfd`: says whether the process behind it is alive.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void give_up(const char* what) {
    perror(what);
    exit(1);
}

static int take_descriptor(int connection) {
    char text[64] = {0};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec piece = {.iov_base = text, .iov_len = sizeof text - 1};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (recvmsg(connection, &message, 0) <= 0) give_up("recvmsg");
    struct cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
        fprintf(stderr, "no descriptor came\n");
        exit(1);
    }
    int fd = -1;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    printf("text %s\n", text);
    return fd;
}

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr*)&address, sizeof address) != 0 || listen(listener, 1) != 0)
        give_up(argv[1]);
    int connection = accept(listener, NULL, NULL);
    if (connection < 0) give_up("accept");
    int fd = take_descriptor(connection);
    if (argc > 2) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        printf("%s\n", poll(&item, 1, 0) == 0 ? "alive" : "ended");
        return 0;
    }
    printf("%s\n", isatty(fd) ? "terminal" : "no terminal");
    fflush(stdout);
    char buffer[4096];
    for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) {
        if (write(STDOUT_FILENO, buffer, (size_t)count) != count) give_up("write");
    }
    return 0;
}
