// Booting a guest as its PID 1.
#pragma once

namespace berth::keeper {

// From the kernel's first instruction in user space to the power-off. Order: leave the initramfs; /proc,
// /sys, /dev; the console; the command line; the vsock listener (after the modules that it needs, and before
// anything slow); everything else; agent and spawner. What cannot be done stops the boot with one line on the
// console.
//
// An image may carry an executable /berth/rc: it is run once, when the first agent serves, as an ordinary
// process with the console as its stdin, stdout and stderr, PATH, HOME and TERM set, in a session of its own
// and in the root cgroup. Nothing follows from its end.
[[noreturn]] void run_boot(const char* argv0, char** envp);

}  // namespace berth::keeper
