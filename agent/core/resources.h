// What was asked of a container's resources: OCI's linux.resources with presence, read from JSON and written
// back. Nothing here is judged against a guest; that is plan_resources() in cgroup_plan.h.
#pragma once

#include <rapidjson/fwd.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"

namespace berth::core {

// Bits of DeviceRule::access.
inline constexpr uint8_t kAccessRead = 1;
inline constexpr uint8_t kAccessWrite = 2;
inline constexpr uint8_t kAccessMknod = 4;
inline constexpr uint8_t kAccessAll = kAccessRead | kAccessWrite | kAccessMknod;

enum class DeviceRuleType : uint8_t { kAll, kChar, kBlock };  // OCI "a", "c" (also "u"), "b"

struct DeviceRule {
    bool allow = false;
    DeviceRuleType type = DeviceRuleType::kAll;
    std::optional<uint32_t> major;  // absent (or -1 in the JSON): every one
    std::optional<uint32_t> minor;
    uint8_t access = 0;
    bool operator==(const DeviceRule&) const = default;
};

struct MemoryResources {
    std::optional<int64_t> limit;        // bytes
    std::optional<int64_t> reservation;  // bytes
    std::optional<int64_t> swap;         // bytes of memory + swap
    std::optional<int64_t> kernel;
    std::optional<int64_t> kernel_tcp;
    std::optional<uint64_t> swappiness;
    std::optional<bool> disable_oom_killer;
    std::optional<bool> use_hierarchy;
    std::optional<bool> check_before_update;
    bool operator==(const MemoryResources&) const = default;
};

struct CpuResources {
    std::optional<uint64_t> shares;
    std::optional<int64_t> quota;    // microseconds
    std::optional<uint64_t> period;  // microseconds
    std::optional<uint64_t> burst;   // microseconds
    std::optional<int64_t> realtime_runtime;
    std::optional<uint64_t> realtime_period;
    std::optional<std::string> cpus;
    std::optional<std::string> mems;
    std::optional<int64_t> idle;
    bool operator==(const CpuResources&) const = default;
};

struct WeightDevice {
    uint32_t major = 0;
    uint32_t minor = 0;
    std::optional<uint16_t> weight;
    std::optional<uint16_t> leaf_weight;
    bool operator==(const WeightDevice&) const = default;
};

struct ThrottleDevice {
    uint32_t major = 0;
    uint32_t minor = 0;
    uint64_t rate = 0;  // bytes or operations a second; 0: no limit
    bool operator==(const ThrottleDevice&) const = default;
};

struct BlockIoResources {
    std::optional<uint16_t> weight;
    std::optional<uint16_t> leaf_weight;
    std::vector<WeightDevice> weight_devices;
    std::vector<ThrottleDevice> read_bps;
    std::vector<ThrottleDevice> write_bps;
    std::vector<ThrottleDevice> read_iops;
    std::vector<ThrottleDevice> write_iops;
    bool operator==(const BlockIoResources&) const = default;
};

struct HugepageLimit {
    std::string page_size;  // "2MB": a checked name, safe in a file name
    uint64_t limit = 0;     // bytes
    bool operator==(const HugepageLimit&) const = default;
};

struct RdmaLimit {
    std::optional<uint32_t> hca_handles;
    std::optional<uint32_t> hca_objects;
    bool operator==(const RdmaLimit&) const = default;
};

struct NetworkResources {
    std::optional<uint32_t> class_id;
    std::vector<std::pair<std::string, uint32_t>> priorities;
    bool operator==(const NetworkResources&) const = default;
};

struct Resources {
    MemoryResources memory;
    CpuResources cpu;
    std::optional<int64_t> pids_limit;
    BlockIoResources block_io;
    std::vector<HugepageLimit> hugepage_limits;
    std::map<std::string, RdmaLimit> rdma;
    NetworkResources network;
    std::optional<std::vector<DeviceRule>> devices;  // absent on update: the program stays as it is
    std::map<std::string, std::string> unified;      // keys and values already checked (unified.h)
    bool operator==(const Resources&) const = default;
};

// Reads a linux.resources object; `json_path` ("linux.resources") begins every error. A null property counts
// as absent, as it does for Go's encoder. INVALID_ARGUMENT: a property of the wrong type or out of its
// range, a device rule without access, a page size or an rdma device that is no plain name, a block device
// given twice, and every unified key or value that unified.h refuses. Properties that no version of the spec
// knows are not an error: their paths are appended to `skipped` (when given) for the caller to log.
Result<Resources> parse_resources(const rapidjson::Value& value, std::string_view json_path,
                                  std::vector<std::string>* skipped = nullptr);

// The same from text: what a state file or an Update request holds. Also the errors of parse_json() (json.h).
Result<Resources> parse_resources_text(std::string_view json, std::string_view json_path,
                                       std::vector<std::string>* skipped = nullptr);

// One JSON object that parse_resources_text() reads back to an equal value.
std::string serialize_resources(const Resources& resources);

}  // namespace berth::core
