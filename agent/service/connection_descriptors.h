// Descriptors that come with bytes on the local socket (SCM_RIGHTS).
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <vector>

#include "agent/core/limits.h"
#include "agent/sys/fd.h"

namespace berth::service {

// One recvmsg of bytes and descriptors. Must stay where it is while the operation is pending.
class DescriptorMessage {
 public:
    // For Loop::recvmsg. `into` must outlive the operation.
    msghdr* prepare(std::byte* into, size_t bytes);

    // After the completion: appends the descriptors, now owned. False when the kernel dropped some (its
    // control message was cut short): those that came are appended all the same.
    bool take(std::vector<sys::UniqueFd>& into);

 private:
    iovec piece_{};
    msghdr message_{};
    alignas(cmsghdr) std::byte control_[CMSG_SPACE(sizeof(int) * limits::kMessageDescriptors)];
};

}  // namespace berth::service
