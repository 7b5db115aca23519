// What each op of a launch plan demands of its operands: one table for the checker.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "agent/core/launch_plan.h"

namespace berth::core {

// The first thing that is wrong with `blob` ("step 7 (mknod): s1 is missing"), or nothing. Never reads
// outside of `blob`; a plan without a flaw can be walked blindly.
std::string launch_plan_flaw(std::span<const std::byte> blob, size_t fd_count);

}  // namespace berth::core
