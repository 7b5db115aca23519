// What a person may tell the agent when it starts: the kernel command line's berth.* keys (as PID 1) or the
// flags of `berth --helper`. Pure parsing; unknown, malformed, repeated or contradictory input is refused by
// name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"

namespace berth::core {

inline constexpr uint32_t kDefaultVsockPort = 1023;

// berth.port=N           vsock port of the listener, 1 to 4294967294
// berth.ready=N          vsock port that the agent dials on the host once it can serve
// berth.auth=secret|host-cid
// berth.log=error|warn|info|debug
// berth.allow_local=0|1  accept CID 1 (tests)
// berth.local=0|1        serve the local socket as PID 1
// berth.hostname=NAME    1 to 64 of [A-Za-z0-9.-], no dot or dash at its ends
struct BootOptions {
    uint32_t port = kDefaultVsockPort;
    uint32_t ready_port = 0;  // 0: none
    bool auth_host_cid = false;
    uint8_t log_level = 2;  // 0 error, 1 warn, 2 info, 3 debug (sys::LogLevel)
    bool allow_local_cid = false;
    bool local_socket = false;
    std::string hostname;  // empty: not given
};

// The text of /proc/cmdline: words separated by white space, with the kernel's double quotes. Words that do
// not begin with "berth." are not ours. `berth.secret` is refused: every container can read the command line.
// The error is INVALID_ARGUMENT with one line that names the key.
Result<BootOptions> parse_kernel_command_line(std::string_view text);

// Whether the command line has a `reboot=` word: the sign that this VMM takes the machine's reset for its
// end, and that there is no power-off (Firecracker). A kernel without a way to power off would stand still
// for ever.
bool ends_by_reset(std::string_view text);

// --port, --ready, --auth, --log, --allow-local mirror the keys; and
// --secret-file FILE     the 32-byte key (never on the command line itself)
// --listen ADDRESS       "vsock" or "unix:///PATH" (repeatable; each kind once). Without it: vsock where
// there is
//                        a device and a way to authenticate. The local socket is always served.
// --run-dir DIR          absolute; the lock, the local socket and the state are below it
// --cgroup-parent PATH   absolute within the cgroup2 hierarchy; default its root
// --cgroups-path local|own|mount
//                        where an absolute cgroupsPath of a container lies: below the helper's own part of
//                        the hierarchy, or where the runtime spec has it, relative to the hierarchy's mount
//                        point. "local" (the default, but "own" with --cgroup-parent): there for root's
//                        containers over the local socket, below its own part for those of hosts
// Values follow as "--flag value" or "--flag=value".
struct HelperOptions {
    BootOptions boot;
    std::string secret_file;
    std::string run_dir = "/run/berth";
    std::string cgroup_parent;  // empty: the hierarchy's root; else begins with '/', no trailing slash
    CgroupsPathFrom cgroups_path_from = CgroupsPathFrom::kLocal;
    bool listen_vsock = false;  // asked for by name: then it must work
    std::string listen_unix;    // empty: none
};
Result<HelperOptions> parse_helper_flags(std::span<const std::string_view> flags);

// /lib/modules/berth.modules: one absolute path a line, in load order; empty lines and lines that begin with
// '#' are skipped. The views point into `text`.
Result<std::vector<std::string_view>> parse_module_list(std::string_view text);

}  // namespace berth::core
