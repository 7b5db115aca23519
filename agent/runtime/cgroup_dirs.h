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

// A cgroup by its path below a directory that somebody keeps open.
struct CgroupPlace {
    sys::FdRef base;
    std::string path;
    // Empty: below the sandbox, where every cgroup is the agent's. Else only ancestors with a mark of this
    // owner's are removed.
    std::string owner;
};

}  // namespace berth::runtime
