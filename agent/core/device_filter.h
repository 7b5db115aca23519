// The cgroup device program: OCI's rules as BPF instructions.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "agent/core/resources.h"
#include "agent/core/result.h"

namespace berth::core {

struct DeviceNumber {
    uint32_t major = 0;
    uint32_t minor = 0;
    bool operator==(const DeviceNumber&) const = default;
};

// What the program decides, rule by rule. A device starts with nothing; an allowing rule that matches it adds
// its access, a denying one takes it away, so the last rule that speaks of a bit wins; in the end
// (asked & allowed) == asked. access(F_OK) asks for no bit at all: it passes where any bit is left.
//
// The default nodes (device_nodes.h: null, zero, full, random, urandom, tty, console, ptmx, pts) are allowed
// before the first rule, as is the mknod of any character device: a node alone opens nothing. A denying rule
// with wildcard major and minor ("deny all", what every engine begins with) leaves these defaults as they
// are; one that names a number takes what it says. 10:200 (tun) is no default: whoever wants it asks for it.
//
// Block devices are the guest's own, never the host's numbers:
//   - a rule of type "a" reaches character devices and the `attached` block devices, no other;
//   - an allowing "b" rule with a wildcard grants mknod as asked (a node alone opens nothing), and read and
//     write of the matching `attached` devices only;
//   - an allowing "b" rule for one device that is not attached, with read or write, is refused.
// None of that binds the machine's own root (BlockDevices::kEvery), whose numbers are those of this machine:
// rules then mean what they say.
enum class BlockDevices : uint8_t { kAttached, kEvery };

struct FlatDeviceRule {
    enum class Scope : uint8_t { kEvery, kDefaults, kNotDefaults };  // by is_default_device()

    bool allow = false;
    DeviceRuleType type = DeviceRuleType::kAll;
    Scope scope = Scope::kEvery;
    std::optional<uint32_t> major = {};
    std::optional<uint32_t> minor = {};
    uint8_t access = 0;
    bool operator==(const FlatDeviceRule&) const = default;
};

// The rules as the program runs them, defaults included. `attached` are the guest's numbers of block devices
// that the host has attached and declared. PERMISSION_DENIED for an allowing rule of one block device that is
// not among them, named by its index.
Result<std::vector<FlatDeviceRule>> flatten_device_rules(std::span<const DeviceRule> rules,
                                                         std::span<const DeviceNumber> attached,
                                                         BlockDevices blocks = BlockDevices::kAttached);

// The program, for BPF_PROG_TYPE_CGROUP_DEVICE. No rules: defaults only. RESOURCE_EXHAUSTED when it would
// have more than limits::kDeviceProgramInstructions.
Result<std::vector<bpf_insn>> build_device_filter(std::span<const DeviceRule> rules,
                                                  std::span<const DeviceNumber> attached,
                                                  BlockDevices blocks = BlockDevices::kAttached);

}  // namespace berth::core
