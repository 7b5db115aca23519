#include "agent/core/json.h"
#include "agent/core/resources.h"

// Behind json.h, which decides about rapidjson's assertions.
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

namespace berth::core {
namespace {

class Serializer {
 public:
    std::string run(const Resources& r) {
        json_.StartObject();
        if (r.devices) devices(*r.devices);
        if (r.memory != MemoryResources{}) memory(r.memory);
        if (r.cpu != CpuResources{}) cpu(r.cpu);
        if (r.pids_limit) {
            open("pids");
            field("limit", r.pids_limit);
            json_.EndObject();
        }
        if (r.block_io != BlockIoResources{}) block_io(r.block_io);
        if (!r.hugepage_limits.empty()) hugepages(r.hugepage_limits);
        if (r.network != NetworkResources{}) network(r.network);
        if (!r.rdma.empty()) rdma(r.rdma);
        if (!r.unified.empty()) {
            open("unified");
            for (const auto& [key, value] : r.unified) field(key, value);
            json_.EndObject();
        }
        json_.EndObject();
        return {buffer_.GetString(), buffer_.GetSize()};
    }

 private:
    void text(std::string_view value) {
        json_.String(value.data(), static_cast<rapidjson::SizeType>(value.size()));
    }
    void key(std::string_view name) { json_.Key(name.data(), static_cast<rapidjson::SizeType>(name.size())); }
    void open(std::string_view name) {
        key(name);
        json_.StartObject();
    }
    void put(bool value) { json_.Bool(value); }
    void put(int64_t value) { json_.Int64(value); }
    void put(uint64_t value) { json_.Uint64(value); }
    void put(uint32_t value) { json_.Uint(value); }
    void put(uint16_t value) { json_.Uint(value); }
    void put(const std::string& value) { text(value); }
    template <typename T>
    void field(std::string_view name, const T& value) {
        key(name);
        put(value);
    }
    template <typename T>
    void field(std::string_view name, const std::optional<T>& value) {
        if (value) field(name, *value);
    }

    void memory(const MemoryResources& m) {
        open("memory");
        field("limit", m.limit);
        field("reservation", m.reservation);
        field("swap", m.swap);
        field("kernel", m.kernel);
        field("kernelTCP", m.kernel_tcp);
        field("swappiness", m.swappiness);
        field("disableOOMKiller", m.disable_oom_killer);
        field("useHierarchy", m.use_hierarchy);
        field("checkBeforeUpdate", m.check_before_update);
        json_.EndObject();
    }

    void cpu(const CpuResources& c) {
        open("cpu");
        field("shares", c.shares);
        field("quota", c.quota);
        field("period", c.period);
        field("burst", c.burst);
        field("realtimeRuntime", c.realtime_runtime);
        field("realtimePeriod", c.realtime_period);
        field("cpus", c.cpus);
        field("mems", c.mems);
        field("idle", c.idle);
        json_.EndObject();
    }

    void throttles(std::string_view name, const std::vector<ThrottleDevice>& list) {
        if (list.empty()) return;
        key(name);
        json_.StartArray();
        for (const ThrottleDevice& device : list) {
            json_.StartObject();
            field("major", device.major);
            field("minor", device.minor);
            field("rate", device.rate);
            json_.EndObject();
        }
        json_.EndArray();
    }

    void block_io(const BlockIoResources& b) {
        open("blockIO");
        field("weight", b.weight);
        field("leafWeight", b.leaf_weight);
        if (!b.weight_devices.empty()) {
            key("weightDevice");
            json_.StartArray();
            for (const WeightDevice& device : b.weight_devices) {
                json_.StartObject();
                field("major", device.major);
                field("minor", device.minor);
                field("weight", device.weight);
                field("leafWeight", device.leaf_weight);
                json_.EndObject();
            }
            json_.EndArray();
        }
        throttles("throttleReadBpsDevice", b.read_bps);
        throttles("throttleWriteBpsDevice", b.write_bps);
        throttles("throttleReadIOPSDevice", b.read_iops);
        throttles("throttleWriteIOPSDevice", b.write_iops);
        json_.EndObject();
    }

    void hugepages(const std::vector<HugepageLimit>& list) {
        key("hugepageLimits");
        json_.StartArray();
        for (const HugepageLimit& limit : list) {
            json_.StartObject();
            field("pageSize", limit.page_size);
            field("limit", limit.limit);
            json_.EndObject();
        }
        json_.EndArray();
    }

    void network(const NetworkResources& n) {
        open("network");
        field("classID", n.class_id);
        if (!n.priorities.empty()) {
            key("priorities");
            json_.StartArray();
            for (const auto& [name, priority] : n.priorities) {
                json_.StartObject();
                field("name", name);
                field("priority", priority);
                json_.EndObject();
            }
            json_.EndArray();
        }
        json_.EndObject();
    }

    void rdma(const std::map<std::string, RdmaLimit>& limits) {
        open("rdma");
        for (const auto& [device, limit] : limits) {
            open(device);
            field("hcaHandles", limit.hca_handles);
            field("hcaObjects", limit.hca_objects);
            json_.EndObject();
        }
        json_.EndObject();
    }

    void devices(const std::vector<DeviceRule>& rules) {
        key("devices");
        json_.StartArray();
        for (const DeviceRule& rule : rules) {
            json_.StartObject();
            field("allow", rule.allow);
            field("type", std::string(rule.type == DeviceRuleType::kAll    ? "a"
                                      : rule.type == DeviceRuleType::kChar ? "c"
                                                                           : "b"));
            field("major", rule.major);
            field("minor", rule.minor);
            std::string access;
            if ((rule.access & kAccessRead) != 0) access.push_back('r');
            if ((rule.access & kAccessWrite) != 0) access.push_back('w');
            if ((rule.access & kAccessMknod) != 0) access.push_back('m');
            field("access", access);
            json_.EndObject();
        }
        json_.EndArray();
    }

    rapidjson::StringBuffer buffer_;
    rapidjson::Writer<rapidjson::StringBuffer> json_{buffer_};
};

}  // namespace

std::string serialize_resources(const Resources& resources) {
    return Serializer().run(resources);
}

}  // namespace berth::core
