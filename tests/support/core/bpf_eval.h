// Runs a cgroup device program as the kernel would.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <span>

namespace berth::test {

struct BpfOutcome {
    bool valid = false;  // false: an instruction that no device program uses, a jump or read out of bounds
    bool allowed = false;
};

// `type` is 'c' or 'b'; `access` any of "rwm", or "" for access(F_OK).
BpfOutcome run_device_program(std::span<const bpf_insn> program, char type, uint32_t major, uint32_t minor,
                              const char* access);

}  // namespace berth::test
