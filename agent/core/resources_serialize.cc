#include "agent/core/resources.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

// Writes JSON piece by piece. The caller opens and closes in pairs.
class JsonText {
 public:
    void start_object() { open('{'); }
    void end_object() { close('}'); }
    void start_array() { open('['); }
    void end_array() { close(']'); }
    void key(std::string_view name) {
        string(name);
        text_.push_back(':');
        comma_ = false;
    }
    void raw(std::string_view value) {
        separate();
        text_.append(value);
        comma_ = true;
    }
    void string(std::string_view value) {
        separate();
        text_.push_back('"');
        for (char c : value) {
            auto byte = static_cast<unsigned char>(c);
            if (c == '"' || c == '\\') {
                text_.push_back('\\');
                text_.push_back(c);
            } else if (byte < 0x20) {
                text_.append(format("\\u%04x", byte));
            } else {
                text_.push_back(c);
            }
        }
        text_.push_back('"');
        comma_ = true;
    }
    std::string take() { return std::move(text_); }

 private:
    void separate() {
        if (comma_) text_.push_back(',');
    }
    void open(char bracket) {
        separate();
        text_.push_back(bracket);
        comma_ = false;
    }
    void close(char bracket) {
        text_.push_back(bracket);
        comma_ = true;
    }

    std::string text_;
    bool comma_ = false;
};

class Serializer {
 public:
    std::string run(const Resources& r) {
        json_.start_object();
        if (r.devices) devices(*r.devices);
        if (r.memory != MemoryResources{}) memory(r.memory);
        if (r.cpu != CpuResources{}) cpu(r.cpu);
        if (r.pids_limit) {
            open("pids");
            field("limit", r.pids_limit);
            json_.end_object();
        }
        if (r.block_io != BlockIoResources{}) block_io(r.block_io);
        if (!r.hugepage_limits.empty()) hugepages(r.hugepage_limits);
        if (r.network != NetworkResources{}) network(r.network);
        if (!r.rdma.empty()) rdma(r.rdma);
        if (!r.unified.empty()) {
            open("unified");
            for (const auto& [key, value] : r.unified) field(key, value);
            json_.end_object();
        }
        json_.end_object();
        return json_.take();
    }

 private:
    void key(std::string_view name) { json_.key(name); }
    void open(std::string_view name) {
        key(name);
        json_.start_object();
    }
    void put(bool value) { json_.raw(value ? "true" : "false"); }
    void put(int64_t value) { json_.raw(std::to_string(value)); }
    void put(uint64_t value) { json_.raw(std::to_string(value)); }
    void put(uint32_t value) { json_.raw(std::to_string(value)); }
    void put(uint16_t value) { json_.raw(std::to_string(value)); }
    void put(const std::string& value) { json_.string(value); }
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
        json_.end_object();
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
        json_.end_object();
    }

    void throttles(std::string_view name, const std::vector<ThrottleDevice>& list) {
        if (list.empty()) return;
        key(name);
        json_.start_array();
        for (const ThrottleDevice& device : list) {
            json_.start_object();
            field("major", device.major);
            field("minor", device.minor);
            field("rate", device.rate);
            json_.end_object();
        }
        json_.end_array();
    }

    void block_io(const BlockIoResources& b) {
        open("blockIO");
        field("weight", b.weight);
        field("leafWeight", b.leaf_weight);
        if (!b.weight_devices.empty()) {
            key("weightDevice");
            json_.start_array();
            for (const WeightDevice& device : b.weight_devices) {
                json_.start_object();
                field("major", device.major);
                field("minor", device.minor);
                field("weight", device.weight);
                field("leafWeight", device.leaf_weight);
                json_.end_object();
            }
            json_.end_array();
        }
        throttles("throttleReadBpsDevice", b.read_bps);
        throttles("throttleWriteBpsDevice", b.write_bps);
        throttles("throttleReadIOPSDevice", b.read_iops);
        throttles("throttleWriteIOPSDevice", b.write_iops);
        json_.end_object();
    }

    void hugepages(const std::vector<HugepageLimit>& list) {
        key("hugepageLimits");
        json_.start_array();
        for (const HugepageLimit& limit : list) {
            json_.start_object();
            field("pageSize", limit.page_size);
            field("limit", limit.limit);
            json_.end_object();
        }
        json_.end_array();
    }

    void network(const NetworkResources& n) {
        open("network");
        field("classID", n.class_id);
        if (!n.priorities.empty()) {
            key("priorities");
            json_.start_array();
            for (const auto& [name, priority] : n.priorities) {
                json_.start_object();
                field("name", name);
                field("priority", priority);
                json_.end_object();
            }
            json_.end_array();
        }
        json_.end_object();
    }

    void rdma(const std::map<std::string, RdmaLimit>& limits) {
        open("rdma");
        for (const auto& [device, limit] : limits) {
            open(device);
            field("hcaHandles", limit.hca_handles);
            field("hcaObjects", limit.hca_objects);
            json_.end_object();
        }
        json_.end_object();
    }

    void devices(const std::vector<DeviceRule>& rules) {
        key("devices");
        json_.start_array();
        for (const DeviceRule& rule : rules) {
            json_.start_object();
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
            json_.end_object();
        }
        json_.end_array();
    }

    JsonText json_;
};

}  // namespace

std::string serialize_resources(const Resources& resources) {
    return Serializer().run(resources);
}

}  // namespace berth::core
