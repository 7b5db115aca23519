// Compiled seccomp filters, kept while a container uses them: the second container with a profile pays
// nothing.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "agent/core/container_plan.h"
#include "agent/core/result.h"

namespace berth::runtime {

class SeccompCache {
 public:
    // The filter that every container gets (sys::compile_own_filter).
    core::SeccompProgram own();

    // The compiled profile of `spec`; null when it has none.
    core::Result<std::shared_ptr<const core::SeccompProgram>> profile(const core::ContainerSpec& spec);

 private:
    std::shared_ptr<const core::SeccompProgram> own_;
    // By the profile's canonical text: two profiles never share a filter by a collision of hashes. The newest
    // few stay, used or not, so that containers that come and go one at a time find theirs.
    struct Entry {
        std::shared_ptr<const core::SeccompProgram> program;
        uint64_t last_use = 0;
    };
    void make_room();
    std::map<std::string, Entry> profiles_;
    uint64_t uses_ = 0;
};

}  // namespace berth::runtime
