// Which device nodes a container may have: decided by number, never by path.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "agent/core/result.h"

namespace berth::core {

// One entry of linux.devices, as far as the decision needs it.
struct DeviceNodeRequest {
    std::string path;
    char type = 'c';  // 'c', 'u', 'b', 'p'
    int64_t major = 0;
    int64_t minor = 0;
};

// A device that every container has.
struct DefaultDevice {
    const char* path;  // "/dev/null"
    uint32_t major = 0;
    uint32_t minor = 0;
};

// The six nodes that the spec demands, in its order.
std::span<const DefaultDevice> default_device_nodes();

// True for the default nodes, the console, ptmx, and devpts' majors 136 to 143: these exist without an entry
// in /sys/dev/char, or are always made by us.
bool is_default_device(uint32_t major, uint32_t minor);

inline constexpr uint32_t kPtsMajorFirst = 136;
inline constexpr uint32_t kPtsMajorLast = 143;

// Checks every node. INVALID_ARGUMENT: an unknown type, a number outside dev_t. FAILED_PRECONDITION: a
// character device that this guest's kernel does not have. PERMISSION_DENIED: a block device (until the host
// can declare one). The error names `json_path`[index], the path and the numbers. `char_device_exists` is
// called as char_device_exists(major, minor) -> bool and answers from /sys/dev/char.
template <typename Predicate>
Status check_device_nodes(std::span<const DeviceNodeRequest> nodes, std::string_view json_path,
                          Predicate&& char_device_exists);

// As above for a request of the machine's own root, which could make any node itself: types and numbers only.
Status check_node_numbers(const DeviceNodeRequest& node, std::string_view where);

// One node; `exists` says whether /sys/dev/char has it.
Status check_device_node(const DeviceNodeRequest& node, std::string_view where, bool exists);
// Whether check_device_node() will look at `exists`.
bool needs_existence(const DeviceNodeRequest& node);

template <typename Predicate>
Status check_device_nodes(std::span<const DeviceNodeRequest> nodes, std::string_view json_path,
                          Predicate&& char_device_exists) {
    for (size_t i = 0; i < nodes.size(); ++i) {
        const DeviceNodeRequest& node = nodes[i];
        bool exists = needs_existence(node) && char_device_exists(static_cast<uint32_t>(node.major),
                                                                  static_cast<uint32_t>(node.minor));
        std::string where(json_path);
        where.append("[").append(std::to_string(i)).append("]");
        BERTH_TRY(check_device_node(node, where, exists));
    }
    return ok();
}

}  // namespace berth::core
