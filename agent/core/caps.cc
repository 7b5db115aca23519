#include "agent/core/caps.h"

#include <iterator>

namespace berth::core {
namespace {

// Index = number (linux/capability.h).
constexpr std::string_view kNames[] = {
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
};
static_assert(std::size(kNames) == 41);
static_assert(kNames[kCapSysPtrace] == "SYS_PTRACE" && kNames[kCapSysAdmin] == "SYS_ADMIN");

}  // namespace

std::optional<uint32_t> capability_number(std::string_view name) {
    constexpr std::string_view kPrefix = "CAP_";
    if (!name.starts_with(kPrefix)) return std::nullopt;
    name.remove_prefix(kPrefix.size());
    for (uint32_t number = 0; number < std::size(kNames); ++number)
        if (kNames[number] == name) return number;
    return std::nullopt;
}

std::string capability_name(uint32_t number) {
    if (number < std::size(kNames)) return "CAP_" + std::string(kNames[number]);
    return "capability " + std::to_string(number);
}

}  // namespace berth::core
