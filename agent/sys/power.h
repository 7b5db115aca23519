// Ending the machine. Only PID 1 of the machine calls these.
#pragma once

namespace berth::sys {

enum class PowerAction { kPowerOff, kReboot };

// reboot(2) without a sync; falls back to halting. Returns only where the kernel refuses (no right: a
// container).
void end_machine(PowerAction action);

}  // namespace berth::sys
