#include <sys/socket.h>

#include "agent/child/child.h"

namespace berth::child {

int tell_agent(Child& child, core::ChildMessageType type, int err, uint32_t value, int fd) {
    core::ChildMessage message;
    message.type = type;
    message.step_index = child.step_index;
    message.err = err;
    message.value = value;
    copy_bytes(message.text, child.kernel_text, sizeof(message.text));
    long sent = 0;
    if (fd < 0) {
        // write, not sendmsg: the oldest call is the likeliest to be allowed when a filter is loaded.
        do {
            sent = raw::write(child.sync(), &message, sizeof(message));
        } while (sent == -EINTR);
        return sent < 0 ? raw::number(sent) : 0;
    }
    iovec part{&message, sizeof(message)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&packet);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    copy_bytes(reinterpret_cast<char*>(CMSG_DATA(header)), reinterpret_cast<const char*>(&fd), sizeof(fd));
    do {
        sent = raw::syscall(SYS_sendmsg, child.sync(), raw::word(&packet), MSG_NOSIGNAL);
    } while (sent == -EINTR);
    return sent < 0 ? raw::number(sent) : 0;
}

void wait_for_go(int fd) {
    char byte = 0;
    long got = 0;
    do {
        got = raw::read(fd, &byte, 1);
    } while (got == -EINTR);
    if (got != 1 || byte != core::kGoByte) raw::exit_group(core::kExitSetupFailed);
}

int step_hook_point(Child& child, const PlanStep& step) {
    int err = tell_agent(child, core::ChildMessageType::kHook, 0, static_cast<uint32_t>(step.a), -1);
    if (err < 0) return err;
    wait_for_go(child.sync());
    return 0;
}

int step_ready(Child& child, const PlanStep&) {
    int err = tell_agent(child, core::ChildMessageType::kReady, 0, 0, -1);
    if (err < 0) return err;
    wait_for_go(child.sync());
    return 0;
}

}  // namespace berth::child
