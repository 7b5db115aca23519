#include <rapidjson/document.h>
#include <rapidjson/reader.h>

#include <array>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "agent/core/limits.h"
#include "agent/core/resources.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::core {
namespace {

using Json = rapidjson::Value;

const char* kind_of(const Json& value) {
    switch (value.GetType()) {
        case rapidjson::kNullType: return "null";
        case rapidjson::kFalseType:
        case rapidjson::kTrueType: return "a boolean";
        case rapidjson::kObjectType: return "an object";
        case rapidjson::kArrayType: return "an array";
        case rapidjson::kStringType: return "a string";
        case rapidjson::kNumberType: return "a number";
    }
    return "unknown";
}

std::string_view text_of(const Json& value) {
    return {value.GetString(), value.GetStringLength()};
}

// A JSON value and how it is called in errors.
struct Node {
    const Json& value;
    std::string path;

    Error wrong(std::string_view why) const { return invalid(path + ": " + std::string(why)); }
    Error must_be(std::string_view what) const {
        return wrong("must be " + std::string(what) + ", not " + kind_of(value));
    }
    Node at(std::string_view name, const Json& child) const {
        return Node{child, path + "." + std::string(name)};
    }
    Node at(size_t index, const Json& child) const {
        return Node{child, path + "[" + std::to_string(index) + "]"};
    }
    Node named(std::string_view name, const Json& child) const {
        return Node{child, path + "[" + quoted(name) + "]"};
    }
};

Status read(const Node& node, bool& out) {
    if (!node.value.IsBool()) return node.must_be("a boolean");
    out = node.value.GetBool();
    return ok();
}

template <typename Number>
Status read(const Node& node, Number& out) {
    static_assert(std::is_integral_v<Number>);
    if (!node.value.IsNumber()) return node.must_be("an integer");
    using Range = std::numeric_limits<Number>;
    bool fits = false;
    if constexpr (std::is_signed_v<Number>) {
        fits = node.value.IsInt64() && node.value.GetInt64() >= Range::min() &&
               node.value.GetInt64() <= Range::max();
        if (fits) out = static_cast<Number>(node.value.GetInt64());
    } else {
        fits = node.value.IsUint64() && node.value.GetUint64() <= Range::max();
        if (fits) out = static_cast<Number>(node.value.GetUint64());
    }
    if (!fits) {
        return node.wrong("must be an integer from " + std::to_string(Range::min()) + " to " +
                          std::to_string(Range::max()));
    }
    return ok();
}

Status read(const Node& node, std::string& out) {
    if (!node.value.IsString()) return node.must_be("a string");
    std::string_view text = text_of(node.value);
    if (text.find('\0') != std::string_view::npos) return node.wrong("contains a NUL byte");
    out = text;
    return ok();
}

template <typename T>
Status read(const Node& node, std::optional<T>& out) {
    T value{};
    BERTH_TRY(read(node, value));
    out = std::move(value);
    return ok();
}

struct Field {
    std::string_view name;
    const Json* value = nullptr;  // filled by fields_of(); stays null for absent and for JSON null
};

// Finds the known properties of an object, each at most once; tells of the others in `skipped`.
Status fields_of(const Node& node, std::span<Field> fields, std::vector<std::string>* skipped) {
    if (!node.value.IsObject()) return node.must_be("an object");
    uint32_t seen = 0;
    for (const auto& member : node.value.GetObject()) {
        std::string_view name = text_of(member.name);
        size_t i = 0;
        while (i < fields.size() && fields[i].name != name) ++i;
        if (i == fields.size()) {
            if (skipped != nullptr) skipped->push_back(node.path + "." + std::string(name));
            continue;
        }
        if ((seen >> i & 1) != 0) return node.at(name, member.value).wrong("is there twice");
        seen |= 1u << i;
        if (!member.value.IsNull()) fields[i].value = &member.value;
    }
    return ok();
}

template <typename T>
Status read_field(const Node& node, const Field& field, T& out) {
    if (field.value == nullptr) return ok();
    return read(node.at(field.name, *field.value), out);
}

class Parser {
 public:
    explicit Parser(std::vector<std::string>* skipped) : skipped_(skipped) {}

    Status resources(const Node& node, Resources& out) {
        std::array<Field, 9> f = {{{"devices"},
                                   {"memory"},
                                   {"cpu"},
                                   {"pids"},
                                   {"blockIO"},
                                   {"hugepageLimits"},
                                   {"network"},
                                   {"rdma"},
                                   {"unified"}}};
        BERTH_TRY(fields_of(node, f, skipped_));
        auto child = [&](size_t i) { return node.at(f[i].name, *f[i].value); };
        if (f[0].value != nullptr) BERTH_TRY(devices(child(0), out.devices.emplace()));
        if (f[1].value != nullptr) BERTH_TRY(memory(child(1), out.memory));
        if (f[2].value != nullptr) BERTH_TRY(cpu(child(2), out.cpu));
        if (f[3].value != nullptr) BERTH_TRY(pids(child(3), out.pids_limit));
        if (f[4].value != nullptr) BERTH_TRY(block_io(child(4), out.block_io));
        if (f[5].value != nullptr) BERTH_TRY(hugepages(child(5), out.hugepage_limits));
        if (f[6].value != nullptr) BERTH_TRY(network(child(6), out.network));
        if (f[7].value != nullptr) BERTH_TRY(rdma(child(7), out.rdma));
        if (f[8].value != nullptr) BERTH_TRY(unified(child(8), out.unified));
        return ok();
    }

 private:
    Status memory(const Node& node, MemoryResources& out) {
        std::array<Field, 9> f = {{{"limit"},
                                   {"reservation"},
                                   {"swap"},
                                   {"kernel"},
                                   {"kernelTCP"},
                                   {"swappiness"},
                                   {"disableOOMKiller"},
                                   {"useHierarchy"},
                                   {"checkBeforeUpdate"}}};
        BERTH_TRY(fields_of(node, f, skipped_));
        BERTH_TRY(read_field(node, f[0], out.limit));
        BERTH_TRY(read_field(node, f[1], out.reservation));
        BERTH_TRY(read_field(node, f[2], out.swap));
        BERTH_TRY(read_field(node, f[3], out.kernel));
        BERTH_TRY(read_field(node, f[4], out.kernel_tcp));
        BERTH_TRY(read_field(node, f[5], out.swappiness));
        BERTH_TRY(read_field(node, f[6], out.disable_oom_killer));
        BERTH_TRY(read_field(node, f[7], out.use_hierarchy));
        return read_field(node, f[8], out.check_before_update);
    }

    Status cpu(const Node& node, CpuResources& out) {
        std::array<Field, 9> f = {{{"shares"},
                                   {"quota"},
                                   {"period"},
                                   {"burst"},
                                   {"realtimeRuntime"},
                                   {"realtimePeriod"},
                                   {"cpus"},
                                   {"mems"},
                                   {"idle"}}};
        BERTH_TRY(fields_of(node, f, skipped_));
        BERTH_TRY(read_field(node, f[0], out.shares));
        BERTH_TRY(read_field(node, f[1], out.quota));
        BERTH_TRY(read_field(node, f[2], out.period));
        BERTH_TRY(read_field(node, f[3], out.burst));
        BERTH_TRY(read_field(node, f[4], out.realtime_runtime));
        BERTH_TRY(read_field(node, f[5], out.realtime_period));
        BERTH_TRY(read_field(node, f[6], out.cpus));
        BERTH_TRY(read_field(node, f[7], out.mems));
        return read_field(node, f[8], out.idle);
    }

    Status pids(const Node& node, std::optional<int64_t>& out) {
        std::array<Field, 1> f = {{{"limit"}}};
        BERTH_TRY(fields_of(node, f, skipped_));
        return read_field(node, f[0], out);
    }

    template <typename Each>
    Status each(const Node& node, size_t maximum, Each&& one) {
        if (!node.value.IsArray()) return node.must_be("an array");
        if (node.value.Size() > maximum) {
            return make_error(
                Code::kResourceExhausted,
                format("%s: has %u entries, more than %zu", node.path.c_str(), node.value.Size(), maximum));
        }
        for (rapidjson::SizeType i = 0; i < node.value.Size(); ++i) {
            BERTH_TRY(one(node.at(size_t{i}, node.value[i])));
        }
        return ok();
    }

    static Status device_number(const Node& node, const Field& major, const Field& minor, uint32_t& out_major,
                                uint32_t& out_minor) {
        if (major.value == nullptr) return node.wrong("lacks major");
        if (minor.value == nullptr) return node.wrong("lacks minor");
        BERTH_TRY(read_field(node, major, out_major));
        BERTH_TRY(read_field(node, minor, out_minor));
        if (out_major > kMajorMax) return node.at("major", *major.value).wrong("is above 4095");
        if (out_minor > kMinorMax) return node.at("minor", *minor.value).wrong("is above 1048575");
        return ok();
    }

    template <typename Device>
    static Status no_duplicate(const Node& node, const std::vector<Device>& list, const Device& device) {
        for (const Device& other : list) {
            if (other.major == device.major && other.minor == device.minor) {
                return node.wrong(format("names device %u:%u a second time", device.major, device.minor));
            }
        }
        return ok();
    }

    Status throttles(const Node& node, std::vector<ThrottleDevice>& out) {
        return each(node, limits::kBlockIoDevices, [&](const Node& entry) -> Status {
            std::array<Field, 3> f = {{{"major"}, {"minor"}, {"rate"}}};
            BERTH_TRY(fields_of(entry, f, skipped_));
            ThrottleDevice device;
            BERTH_TRY(device_number(entry, f[0], f[1], device.major, device.minor));
            BERTH_TRY(read_field(entry, f[2], device.rate));
            BERTH_TRY(no_duplicate(entry, out, device));
            out.push_back(device);
            return ok();
        });
    }

    Status weights(const Node& node, std::vector<WeightDevice>& out) {
        return each(node, limits::kBlockIoDevices, [&](const Node& entry) -> Status {
            std::array<Field, 4> f = {{{"major"}, {"minor"}, {"weight"}, {"leafWeight"}}};
            BERTH_TRY(fields_of(entry, f, skipped_));
            WeightDevice device;
            BERTH_TRY(device_number(entry, f[0], f[1], device.major, device.minor));
            BERTH_TRY(read_field(entry, f[2], device.weight));
            BERTH_TRY(read_field(entry, f[3], device.leaf_weight));
            BERTH_TRY(no_duplicate(entry, out, device));
            out.push_back(device);
            return ok();
        });
    }

    Status block_io(const Node& node, BlockIoResources& out) {
        std::array<Field, 7> f = {{{"weight"},
                                   {"leafWeight"},
                                   {"weightDevice"},
                                   {"throttleReadBpsDevice"},
                                   {"throttleWriteBpsDevice"},
                                   {"throttleReadIOPSDevice"},
                                   {"throttleWriteIOPSDevice"}}};
        BERTH_TRY(fields_of(node, f, skipped_));
        BERTH_TRY(read_field(node, f[0], out.weight));
        BERTH_TRY(read_field(node, f[1], out.leaf_weight));
        if (f[2].value != nullptr) BERTH_TRY(weights(node.at(f[2].name, *f[2].value), out.weight_devices));
        std::vector<ThrottleDevice>* lists[] = {&out.read_bps, &out.write_bps, &out.read_iops,
                                                &out.write_iops};
        for (size_t i = 0; i < std::size(lists); ++i) {
            const Field& field = f[i + 3];
            if (field.value != nullptr) BERTH_TRY(throttles(node.at(field.name, *field.value), *lists[i]));
        }
        return ok();
    }

    // "2MB": a part of a file name, so nothing but this form may pass.
    static bool is_page_size(std::string_view text) {
        if (text.size() < 3 || text.size() > 16) return false;
        std::string_view unit = text.substr(text.size() - 2);
        if (unit != "KB" && unit != "MB" && unit != "GB") return false;
        std::string_view number = text.substr(0, text.size() - 2);
        return number != "0" && parse_plain_decimal(number, UINT32_MAX).has_value();
    }

    Status hugepages(const Node& node, std::vector<HugepageLimit>& out) {
        return each(node, limits::kHugepageLimits, [&](const Node& entry) -> Status {
            std::array<Field, 2> f = {{{"pageSize"}, {"limit"}}};
            BERTH_TRY(fields_of(entry, f, skipped_));
            if (f[0].value == nullptr) return entry.wrong("lacks pageSize");
            if (f[1].value == nullptr) return entry.wrong("lacks limit");
            HugepageLimit limit;
            BERTH_TRY(read_field(entry, f[0], limit.page_size));
            BERTH_TRY(read_field(entry, f[1], limit.limit));
            if (!is_page_size(limit.page_size)) {
                return entry.at(f[0].name, *f[0].value)
                    .wrong(quoted(limit.page_size) + " is not a number followed by KB, MB or GB");
            }
            for (const HugepageLimit& other : out) {
                if (other.page_size == limit.page_size) {
                    return entry.wrong("names page size " + limit.page_size + " a second time");
                }
            }
            out.push_back(std::move(limit));
            return ok();
        });
    }

    Status network(const Node& node, NetworkResources& out) {
        std::array<Field, 2> f = {{{"classID"}, {"priorities"}}};
        BERTH_TRY(fields_of(node, f, skipped_));
        BERTH_TRY(read_field(node, f[0], out.class_id));
        if (f[1].value == nullptr) return ok();
        return each(node.at(f[1].name, *f[1].value), limits::kNetworkPriorities,
                    [&](const Node& entry) -> Status {
                        std::array<Field, 2> g = {{{"name"}, {"priority"}}};
                        BERTH_TRY(fields_of(entry, g, skipped_));
                        std::string name;
                        uint32_t priority = 0;
                        BERTH_TRY(read_field(entry, g[0], name));
                        BERTH_TRY(read_field(entry, g[1], priority));
                        out.priorities.emplace_back(std::move(name), priority);
                        return ok();
                    });
    }

    static bool is_rdma_device(std::string_view name) {
        if (name.empty() || name.size() > 64) return false;
        for (char c : name) {
            bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         c == '_' || c == '-' || c == '.';
            if (!plain) return false;
        }
        return true;
    }

    Status rdma(const Node& node, std::map<std::string, RdmaLimit>& out) {
        if (!node.value.IsObject()) return node.must_be("an object");
        if (node.value.MemberCount() > limits::kRdmaDevices) {
            return make_error(Code::kResourceExhausted,
                              format("%s: has %u entries, more than %zu", node.path.c_str(),
                                     node.value.MemberCount(), limits::kRdmaDevices));
        }
        for (const auto& member : node.value.GetObject()) {
            std::string_view name = text_of(member.name);
            Node entry = node.named(name, member.value);
            if (!is_rdma_device(name)) return entry.wrong("is not the name of an rdma device");
            std::array<Field, 2> f = {{{"hcaHandles"}, {"hcaObjects"}}};
            BERTH_TRY(fields_of(entry, f, skipped_));
            RdmaLimit limit;
            BERTH_TRY(read_field(entry, f[0], limit.hca_handles));
            BERTH_TRY(read_field(entry, f[1], limit.hca_objects));
            if (!limit.hca_handles && !limit.hca_objects) {
                return entry.wrong("has neither hcaHandles nor hcaObjects");
            }
            if (!out.emplace(std::string(name), limit).second) return entry.wrong("is there twice");
        }
        return ok();
    }

    static Status unified(const Node& node, std::map<std::string, std::string>& out) {
        if (!node.value.IsObject()) return node.must_be("an object");
        for (const auto& member : node.value.GetObject()) {
            std::string_view key = text_of(member.name);
            // An unknown key is told as such, whatever its value is.
            if (!member.value.IsString() && find_unified_key(key) != nullptr) {
                return unified_not_a_string(node.path, key, kind_of(member.value));
            }
            BERTH_TRY(check_unified(node.path, key, member.value.IsString() ? text_of(member.value) : "0"));
            if (!out.emplace(std::string(key), std::string(text_of(member.value))).second) {
                return node.named(key, member.value).wrong("is there twice");
            }
        }
        return ok();
    }

    // Absent and -1 mean every number.
    static Status rule_number(const Node& node, const Field& field, uint32_t maximum,
                              std::optional<uint32_t>& out) {
        std::optional<int64_t> number;
        BERTH_TRY(read_field(node, field, number));
        if (!number || *number == -1) return ok();
        if (*number < 0 || *number > int64_t{maximum}) {
            return node.at(field.name, *field.value)
                .wrong(format("must be from 0 to %u, or -1 for all", maximum));
        }
        out = static_cast<uint32_t>(*number);
        return ok();
    }

    static Status rule_type(const Node& node, std::string_view type, DeviceRuleType& out) {
        if (type == "a") {
            out = DeviceRuleType::kAll;
        } else if (type == "c" || type == "u") {
            out = DeviceRuleType::kChar;
        } else if (type == "b") {
            out = DeviceRuleType::kBlock;
        } else {
            return invalid(node.path + ".type: " + quoted(type) + " is not a, c, u or b");
        }
        return ok();
    }

    static Status rule_access(const Node& node, std::string_view access, uint8_t& out) {
        for (char c : access) {
            uint8_t bit = c == 'r' ? kAccessRead : c == 'w' ? kAccessWrite : c == 'm' ? kAccessMknod : 0;
            if (bit == 0)
                return invalid(node.path + ".access: " + quoted(access) + " has letters other than r, w, m");
            out = static_cast<uint8_t>(out | bit);
        }
        if (out == 0) return invalid(node.path + ".access: is empty; must name at least one of r, w, m");
        return ok();
    }

    Status devices(const Node& node, std::vector<DeviceRule>& out) {
        return each(node, limits::kDeviceRules, [&](const Node& entry) -> Status {
            std::array<Field, 5> f = {{{"allow"}, {"type"}, {"major"}, {"minor"}, {"access"}}};
            BERTH_TRY(fields_of(entry, f, skipped_));
            if (f[0].value == nullptr) return entry.wrong("lacks allow");
            DeviceRule rule;
            BERTH_TRY(read_field(entry, f[0], rule.allow));
            std::string type = "a";
            BERTH_TRY(read_field(entry, f[1], type));
            BERTH_TRY(rule_type(entry, type.empty() ? "a" : type, rule.type));
            BERTH_TRY(rule_number(entry, f[2], kMajorMax, rule.major));
            BERTH_TRY(rule_number(entry, f[3], kMinorMax, rule.minor));
            std::string access;
            BERTH_TRY(read_field(entry, f[4], access));
            BERTH_TRY(rule_access(entry, access, rule.access));
            out.push_back(rule);
            return ok();
        });
    }

    static constexpr uint32_t kMajorMax = 4095;       // 12 bits of dev_t
    static constexpr uint32_t kMinorMax = 1'048'575;  // 20 bits

    std::vector<std::string>* skipped_;
};

// Refuses what is nested too deeply before a recursive structure exists.
struct DepthHandler : rapidjson::BaseReaderHandler<rapidjson::UTF8<>, DepthHandler> {
    size_t depth = 0;
    bool StartObject() { return ++depth <= limits::kJsonDepth; }
    bool StartArray() { return ++depth <= limits::kJsonDepth; }
    bool EndObject(rapidjson::SizeType) { return depth-- > 0; }
    bool EndArray(rapidjson::SizeType) { return depth-- > 0; }
};

}  // namespace

Result<Resources> parse_resources(const rapidjson::Value& value, std::string_view json_path,
                                  std::vector<std::string>* skipped) {
    Resources resources;
    BERTH_TRY(Parser(skipped).resources(Node{value, std::string(json_path)}, resources));
    return resources;
}

Result<Resources> parse_resources_text(std::string_view json, std::string_view json_path,
                                       std::vector<std::string>* skipped) {
    std::string path(json_path);
    if (json.size() > limits::kSpecJsonBytes) {
        return make_error(Code::kResourceExhausted, format("%s: has %zu bytes, more than %zu", path.c_str(),
                                                           json.size(), limits::kSpecJsonBytes));
    }
    constexpr unsigned kFlags = rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag;
    rapidjson::MemoryStream probe(json.data(), json.size());
    rapidjson::Reader reader;
    DepthHandler handler;
    if (!reader.Parse<kFlags>(probe, handler)) {
        const char* what = handler.depth > limits::kJsonDepth ? "is nested too deeply" : "is not valid JSON";
        return invalid(format("%s: %s at byte %zu", path.c_str(), what, reader.GetErrorOffset()));
    }
    rapidjson::Document document;
    document.Parse<kFlags>(json.data(), json.size());
    if (document.HasParseError()) {
        return invalid(format("%s: is not valid JSON at byte %zu", path.c_str(), document.GetErrorOffset()));
    }
    return parse_resources(document, json_path, skipped);
}

}  // namespace berth::core
