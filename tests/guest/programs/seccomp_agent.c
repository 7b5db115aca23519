// A seccomp agent for tests: seccomp_agent SOCKET FILE waits for one listener, writes the message that came
// with it to FILE, and then answers: mkdir with EXDEV, everything else goes on. Ends with the last process
// that has the filter.
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int fail(const char* what) {
    perror(what);
    return 1;
}

static int receive(int connection, const char* path) {
    static char text[65536];
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {text, sizeof text};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(connection, &message, 0);
    struct cmsghdr* header = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header == NULL || header->cmsg_type != SCM_RIGHTS) return -1;
    int listener = -1;
    memcpy(&listener, CMSG_DATA(header), sizeof listener);
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out < 0 || write(out, text, (size_t)size) != size || close(out) != 0) return -1;
    return listener;
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[1]);
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(server, (struct sockaddr*)&address, sizeof address) != 0 || listen(server, 1) != 0)
        return fail("listen");
    int connection = accept(server, NULL, NULL);
    int listener = receive(connection, argv[2]);
    if (listener < 0) return fail("receive");
    while (1) {
        struct pollfd polled = {.fd = listener, .events = POLLIN};
        if (poll(&polled, 1, -1) < 0) return fail("poll");
        if ((polled.revents & POLLIN) == 0) return 0;
        struct seccomp_notif request;
        memset(&request, 0, sizeof request);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) continue;
        struct seccomp_notif_resp answer = {.id = request.id};
        int is_mkdir = request.data.nr == SYS_mkdirat;
#ifdef SYS_mkdir
        is_mkdir = is_mkdir || request.data.nr == SYS_mkdir;
#endif
        if (is_mkdir)
            answer.error = -EXDEV;
        else
            answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}
