// The kernel's random numbers, early at boot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "agent/core/result.h"

namespace berth::sys {

// True when getrandom gives good bytes without waiting.
bool is_random_ready();

enum class EntropyCredit { kNone, kFull };

// Mixes up to 64 bytes of /dev/hwrng into the kernel's pool; with kFull they are counted as entropy, which is
// what makes a guest's getrandom ready (the VMM's virtio-rng is trusted like the VMM). Returns how many; 0
// when there is no such device. Never blocks.
size_t mix_hardware_random(EntropyCredit credit);

// Fills `into`; waits until the pool is ready.
core::Status fill_random(std::span<uint8_t> into);

}  // namespace berth::sys
