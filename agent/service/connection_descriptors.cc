#include "agent/service/connection_descriptors.h"

#include <cstring>

namespace berth::service {

msghdr* DescriptorMessage::prepare(std::byte* into, size_t bytes) {
    piece_ = {.iov_base = into, .iov_len = bytes};
    message_ = msghdr{};
    message_.msg_iov = &piece_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_;
    message_.msg_controllen = sizeof control_;
    return &message_;
}

bool DescriptorMessage::take(std::vector<sys::UniqueFd>& into) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&message_); part != nullptr; part = CMSG_NXTHDR(&message_, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
            into.emplace_back(fd);
        }
    }
    return (message_.msg_flags & MSG_CTRUNC) == 0;
}

}  // namespace berth::service
