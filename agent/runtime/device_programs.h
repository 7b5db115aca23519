// The device programs that the kernel has verified and compiled, by their instructions: most containers of a
// guest ask for the same one, and loading it is the dearest step of a create.
#pragma once

#include <linux/bpf.h>

#include <memory>
#include <span>
#include <vector>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

struct DeviceProgram {
    std::vector<bpf_insn> instructions;
    sys::UniqueFd fd;  // attached to any number of cgroups
};

class DevicePrograms {
 public:
    // A kept program with these instructions, or one that is loaded now and not kept: a request that is
    // refused leaves no descriptor behind. Errors as sys::load_device_program's.
    core::Result<std::shared_ptr<const DeviceProgram>> get(std::vector<bpf_insn> instructions);

    // Of a create that succeeded. At most limits::kDeviceProgramsKept, and none that is longer than
    // limits::kDeviceProgramKeptInstructions; the oldest gives way.
    void keep(std::shared_ptr<const DeviceProgram> program);

 private:
    std::vector<std::shared_ptr<const DeviceProgram>> kept_;  // the newest last
};

}  // namespace berth::runtime
