#include "agent/core/json.h"
#include "agent/core/limits.h"
#include "agent/core/resources.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::core {
namespace {

constexpr uint32_t kMajorMax = 4095;       // 12 bits of dev_t
constexpr uint32_t kMinorMax = 1'048'575;  // 20 bits

void parse_memory(JsonObject& in, MemoryResources& out) {
    in.read("limit", out.limit);
    in.read("reservation", out.reservation);
    in.read("swap", out.swap);
    in.read("kernel", out.kernel);
    in.read("kernelTCP", out.kernel_tcp);
    in.read("swappiness", out.swappiness);
    in.read("disableOOMKiller", out.disable_oom_killer);
    in.read("useHierarchy", out.use_hierarchy);
    in.read("checkBeforeUpdate", out.check_before_update);
}

void parse_cpu(JsonObject& in, CpuResources& out) {
    in.read("shares", out.shares);
    in.read("quota", out.quota);
    in.read("period", out.period);
    in.read("burst", out.burst);
    in.read("realtimeRuntime", out.realtime_runtime);
    in.read("realtimePeriod", out.realtime_period);
    in.read("cpus", out.cpus);
    in.read("mems", out.mems);
    in.read("idle", out.idle);
}

// Fails and returns false when a key that must be there is not.
bool needs(JsonObject& in, std::string_view key) {
    if (in.report().failed()) return false;
    if (in.find(key) != nullptr) return true;
    in.fail(key, "is missing");
    return false;
}

// major and minor of one block device.
template <typename Device>
void parse_block_device(JsonObject& in, Device& device) {
    if (!needs(in, "major") || !needs(in, "minor")) return;
    in.read_between("major", device.major, 0u, kMajorMax);
    in.read_between("minor", device.minor, 0u, kMinorMax);
}

// A device that comes again with the same values is one entry; with others the list contradicts itself.
template <typename Device>
void add_block_device(JsonObject& in, const Device& device, std::vector<Device>& devices) {
    for (const Device& other : devices) {
        if (other.major != device.major || other.minor != device.minor) continue;
        if (other == device) return;
        return in.fail("minor", format("device %u:%u is given twice, with different values", device.major,
                                       device.minor));
    }
    devices.push_back(device);
}

void parse_throttles(JsonObject& in, std::string_view key, std::vector<ThrottleDevice>& out) {
    in.each(key, limits::kBlockIoDevices, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(in.report(), &value, path);
        ThrottleDevice device;
        parse_block_device(entry, device);
        if (!needs(entry, "rate")) return;
        entry.read("rate", device.rate);
        add_block_device(entry, device, out);
    });
}

void parse_block_io(JsonObject& in, BlockIoResources& out) {
    in.read("weight", out.weight);
    in.read("leafWeight", out.leaf_weight);
    in.each("weightDevice", limits::kBlockIoDevices, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(in.report(), &value, path);
        WeightDevice device;
        parse_block_device(entry, device);
        entry.read("weight", device.weight);
        entry.read("leafWeight", device.leaf_weight);
        add_block_device(entry, device, out.weight_devices);
    });
    parse_throttles(in, "throttleReadBpsDevice", out.read_bps);
    parse_throttles(in, "throttleWriteBpsDevice", out.write_bps);
    parse_throttles(in, "throttleReadIOPSDevice", out.read_iops);
    parse_throttles(in, "throttleWriteIOPSDevice", out.write_iops);
}

// "2MB": it becomes a part of a file name, so nothing but this form may pass.
bool is_page_size(std::string_view text) {
    if (text.size() < 3 || text.size() > 16) return false;
    std::string_view unit = text.substr(text.size() - 2);
    if (unit != "KB" && unit != "MB" && unit != "GB") return false;
    std::string_view number = text.substr(0, text.size() - 2);
    return number != "0" && parse_plain_decimal(number, UINT32_MAX).has_value();
}

void parse_hugepages(JsonObject& in, std::vector<HugepageLimit>& out) {
    in.each("hugepageLimits", limits::kHugepageLimits, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(in.report(), &value, path);
        if (!needs(entry, "pageSize") || !needs(entry, "limit")) return;
        HugepageLimit limit;
        entry.read("pageSize", limit.page_size);
        entry.read("limit", limit.limit);
        if (!is_page_size(limit.page_size)) {
            entry.fail("pageSize", quoted(limit.page_size) + " is not a number followed by KB, MB or GB");
        }
        for (const HugepageLimit& other : out) {
            if (other.page_size == limit.page_size)
                entry.fail("pageSize", limit.page_size + " is given twice");
        }
        out.push_back(std::move(limit));
    });
}

void parse_network(JsonObject& in, NetworkResources& out) {
    in.read("classID", out.class_id);
    in.each("priorities", limits::kNetworkPriorities, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(in.report(), &value, path);
        std::string name;
        uint32_t priority = 0;
        entry.read("name", name);
        entry.read("priority", priority);
        out.priorities.emplace_back(std::move(name), priority);
    });
}

bool is_rdma_device(std::string_view name) {
    if (name.empty() || name.size() > 64) return false;
    for (char c : name) {
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                     c == '-' || c == '.';
        if (!plain) return false;
    }
    return true;
}

void parse_rdma(JsonObject& in, std::map<std::string, RdmaLimit>& out) {
    in.each_member("rdma", limits::kRdmaDevices,
                   [&](std::string name, const JsonValue& value, const std::string& path) {
                       JsonReport& report = in.report();
                       if (!is_rdma_device(name)) {
                           report.fail(invalid(path + ": is not the name of an rdma device"));
                           return;
                       }
                       JsonObject entry(report, &value, path);
                       RdmaLimit limit;
                       entry.read("hcaHandles", limit.hca_handles);
                       entry.read("hcaObjects", limit.hca_objects);
                       if (!limit.hca_handles && !limit.hca_objects) {
                           report.fail(invalid(path + ": has neither hcaHandles nor hcaObjects"));
                       }
                       out.emplace(std::move(name), limit);
                   });
}

const char* kind_of(const JsonValue& value) {
    if (value.IsNull()) return "null";
    if (value.IsBool()) return "true or false";
    if (value.IsNumber()) return "a number";
    return value.IsArray() ? "an array" : "an object";
}

void parse_unified(JsonObject& in, std::map<std::string, std::string>& out) {
    std::string all = in.path_of("unified");
    in.each_member("unified", limits::kJsonValues,
                   [&](std::string key, const JsonValue& value, const std::string&) {
                       if (!value.IsString() && find_unified_key(key) != nullptr) {
                           in.report().fail(unified_not_a_string(all, key, kind_of(value)));
                           return;
                       }
                       std::string text;
                       if (value.IsString()) text.assign(value.GetString(), value.GetStringLength());
                       if (Status checked = check_unified(all, key, text); !checked.ok()) {
                           in.report().fail(std::move(checked).error());
                           return;
                       }
                       out.emplace(std::move(key), std::move(text));
                   });
}

// Absent and -1 mean every number.
void parse_rule_number(JsonObject& in, std::string_view key, uint32_t maximum, std::optional<uint32_t>& out) {
    int64_t number = -1;
    in.read_between<int64_t>(key, number, -1, maximum);
    if (number >= 0) out = static_cast<uint32_t>(number);
}

void parse_device_rule(JsonObject& in, DeviceRule& rule) {
    if (!needs(in, "allow")) return;
    in.read("allow", rule.allow);
    std::string type;
    in.read("type", type);
    if (type == "c" || type == "u") {
        rule.type = DeviceRuleType::kChar;
    } else if (type == "b") {
        rule.type = DeviceRuleType::kBlock;
    } else if (!type.empty() && type != "a") {
        in.fail("type", quoted(type) + " is not a, c, u or b");
    }
    parse_rule_number(in, "major", kMajorMax, rule.major);
    parse_rule_number(in, "minor", kMinorMax, rule.minor);
    std::string access;
    in.read("access", access);
    if (access.empty()) in.fail("access", "must name at least one of r, w, m");
    for (char c : access) {
        uint8_t bit = c == 'r' ? kAccessRead : c == 'w' ? kAccessWrite : c == 'm' ? kAccessMknod : 0;
        // Some write "rwa", and runc drops the letter. As "all" it closes more in a rule that denies; in one
        // that allows it would open more.
        if (c == 'a' && !rule.allow) bit = kAccessAll;
        if (bit == 0) in.fail("access", quoted(access) + " has letters other than r, w and m");
        rule.access = static_cast<uint8_t>(rule.access | bit);
    }
}

void parse_device_rules(JsonObject& in, Resources& out) {
    if (in.find("devices") == nullptr) return;
    std::vector<DeviceRule>& rules = out.devices.emplace();
    in.each("devices", limits::kDeviceRules, [&](const JsonValue& value, const std::string& path) {
        JsonObject entry(in.report(), &value, path);
        DeviceRule rule;
        parse_device_rule(entry, rule);
        rules.push_back(rule);
    });
}

void parse_all(JsonObject& in, Resources& out) {
    parse_device_rules(in, out);
    JsonObject memory(in.report(), in.find("memory"), in.path_of("memory"));
    parse_memory(memory, out.memory);
    JsonObject cpu(in.report(), in.find("cpu"), in.path_of("cpu"));
    parse_cpu(cpu, out.cpu);
    JsonObject pids(in.report(), in.find("pids"), in.path_of("pids"));
    pids.read("limit", out.pids_limit);
    JsonObject block_io(in.report(), in.find("blockIO"), in.path_of("blockIO"));
    parse_block_io(block_io, out.block_io);
    parse_hugepages(in, out.hugepage_limits);
    JsonObject network(in.report(), in.find("network"), in.path_of("network"));
    parse_network(network, out.network);
    parse_rdma(in, out.rdma);
    parse_unified(in, out.unified);
}

}  // namespace

Result<Resources> parse_resources(const rapidjson::Value& value, std::string_view json_path,
                                  std::vector<std::string>* skipped) {
    JsonReport report;
    Resources resources;
    {
        JsonObject in(report, &value, std::string(json_path));
        parse_all(in, resources);
    }
    BERTH_TRY(report.status());
    if (skipped != nullptr) {
        for (std::string& path : report.ignored()) skipped->push_back(std::move(path));
    }
    return resources;
}

Result<Resources> parse_resources_text(std::string_view json, std::string_view json_path,
                                       std::vector<std::string>* skipped) {
    Result<rapidjson::Document> document = parse_json(json);
    if (!document.ok()) return std::move(document).error().within(json_path);
    if (!document->IsObject()) return invalid(std::string(json_path) + ": must be an object");
    return parse_resources(*document, json_path, skipped);
}

}  // namespace berth::core
