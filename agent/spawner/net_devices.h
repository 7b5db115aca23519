// linux.netDevices: interfaces of the guest's that move into a container's
// network namespace.
#pragma once

#include <cstddef>
#include <span>

#include "agent/core/launch_plan.h"
#include "agent/spawner/launch.h"

namespace berth::spawner {

// Moves each device into the network namespace `target` under its new name,
// gives it back its permanent addresses of global scope (a move loses them),
// and sets it up. The process is in its own network namespace afterwards, or
// exits. On failure what was moved before is moved back as far as that goes,
// and the step names the device.
Outcome move_net_devices(const std::byte* plan, std::span<const core::PlanNetDevice> devices, int target);

}  // namespace berth::spawner
