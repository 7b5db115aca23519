// What a seccomp program says to a call: the kernel's classic BPF, as far as seccomp takes it.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <optional>
#include <span>

namespace berth::test {

// The verdict (SECCOMP_RET_*), or nothing when the program is one that the kernel would refuse: an unknown
// instruction, a jump or a load out of bounds, no return.
std::optional<uint32_t> evaluate(std::span<const sock_filter> program, const seccomp_data& call);

}  // namespace berth::test
