#include "agent/core/device_nodes.h"

#include <array>

#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr std::array<DefaultDevice, 6> kDefaults = {{
    {"/dev/null", 1, 3},
    {"/dev/zero", 1, 5},
    {"/dev/full", 1, 7},
    {"/dev/random", 1, 8},
    {"/dev/urandom", 1, 9},
    {"/dev/tty", 5, 0},
}};

constexpr int64_t kMajorMax = 4095;       // 12 bits of dev_t
constexpr int64_t kMinorMax = 1'048'575;  // 20 bits

bool in_range(const DeviceNodeRequest& node) {
    return node.major >= 0 && node.major <= kMajorMax && node.minor >= 0 && node.minor <= kMinorMax;
}

bool is_char(const DeviceNodeRequest& node) {
    return node.type == 'c' || node.type == 'u';
}

}  // namespace

std::span<const DefaultDevice> default_device_nodes() {
    return kDefaults;
}

bool is_default_device(uint32_t major, uint32_t minor) {
    for (const DefaultDevice& device : kDefaults) {
        if (device.major == major && device.minor == minor) return true;
    }
    bool console_or_ptmx = major == 5 && (minor == 1 || minor == 2);
    return console_or_ptmx || (major >= kPtsMajorFirst && major <= kPtsMajorLast);
}

bool needs_existence(const DeviceNodeRequest& node) {
    return is_char(node) && in_range(node) &&
           !is_default_device(static_cast<uint32_t>(node.major), static_cast<uint32_t>(node.minor));
}

Status check_node_numbers(const DeviceNodeRequest& node, std::string_view where) {
    std::string name = std::string(where) + " (" + quoted(node.path) + ")";
    if (node.type == 'p') return ok();
    if (!is_char(node) && node.type != 'b') {
        return invalid(name + ": type " + quoted(std::string_view(&node.type, 1)) + " is not c, u, b or p");
    }
    std::string numbers = std::to_string(node.major) + ":" + std::to_string(node.minor);
    if (!in_range(node)) return invalid(name + ": " + numbers + " is outside 0:0 to 4095:1048575");
    return ok();
}

Status check_device_node(const DeviceNodeRequest& node, std::string_view where, bool exists) {
    BERTH_TRY(check_node_numbers(node, where));
    if (node.type == 'p') return ok();
    std::string name = std::string(where) + " (" + quoted(node.path) + ")";
    std::string numbers = std::to_string(node.major) + ":" + std::to_string(node.minor);
    if (node.type == 'b') {
        return make_error(Code::kPermissionDenied,
                          name + ": block device " + numbers + " is not attached to this guest by its host");
    }
    if (needs_existence(node) && !exists) {
        return make_error(Code::kFailedPrecondition,
                          name + ": this guest's kernel has no character device " + numbers);
    }
    return ok();
}

}  // namespace berth::core
