// The device programs that the kernel has verified and compiled, by their instructions: most containers of a
// guest ask for the same one, and loading it is the dearest step of a create.
#pragma once

#include <linux/bpf.h>

#include <span>
#include <vector>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class DevicePrograms {
 public:
    // A descriptor of the loaded program, the caller's. A program may be attached to any number of cgroups.
    // Errors as sys::load_device_program's.
    core::Result<sys::UniqueFd> get(std::span<const bpf_insn> instructions);

 private:
    struct Loaded {
        std::vector<bpf_insn> instructions;
        sys::UniqueFd program;
    };
    std::vector<Loaded> loaded_;  // a few, the newest last
};

}  // namespace berth::runtime
