// A container's place in the cgroup tree, by directory descriptor.
#pragma once

#include <string>

#include "agent/sys/fd.h"

namespace berth::runtime {

// `outer` holds the limits and the device program. `inner` is where the processes live and where the
// container's cgroup namespace has its root: a directory below outer for a container that could otherwise
// undo its own limits, else invalid (outer is both).
struct CgroupDirs {
    sys::UniqueFd outer;
    sys::UniqueFd inner;
    bool valid() const { return outer.valid(); }
    bool two_levels() const { return inner.valid(); }
    sys::FdRef leaf() const { return inner.valid() ? sys::FdRef(inner) : sys::FdRef(outer); }
};

}  // namespace berth::runtime
