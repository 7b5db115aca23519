// The end that must not come: what the keeper does when it cannot go on.
#pragma once

#include <string_view>

namespace berth::keeper {

// A broken invariant, a failed allocation or a fatal signal writes one line to `fd` (borrowed) and then
// powers the machine off (`is_init`: PID 1 that dies is a kernel panic) or ends the process. Nothing in it
// allocates.
struct FatalSetup {
    int fd = 2;
    bool is_init = false;
};
void install_fatal_handlers(FatalSetup setup);

// "berth: boot stopped: REASON; powering off" on the console, then power-off. Never a half-secure guest.
[[noreturn]] void stop_boot(std::string_view reason);

// From now on the machine ends by its reset (core::ends_by_reset).
void power_off_by_reset();

// Waits until the console's line is out, then ends the machine.
[[noreturn]] void power_off_now();

}  // namespace berth::keeper
