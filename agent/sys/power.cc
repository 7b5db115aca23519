#include "agent/sys/power.h"

#include <sys/reboot.h>

namespace berth::sys {

void end_machine(PowerAction action) {
    ::reboot(action == PowerAction::kReboot ? RB_AUTOBOOT : RB_POWER_OFF);
    ::reboot(static_cast<int>(RB_HALT_SYSTEM));
}

}  // namespace berth::sys
