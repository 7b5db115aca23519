#include "agent/berthctl/unified_keys.h"

#include "agent/berthctl/command.h"
#include "agent/berthctl/json_edit.h"
#include "agent/core/cpu_weight.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::ctl {

namespace {

using core::JsonValue;
using rapidjson::Document;

constexpr uint64_t kWeightMost = 10'000;
constexpr uint64_t kSharesMost = 262'144;

JsonValue& cpu_of(JsonValue& resources, Document& document) {
    return member(resources, "cpu", JsonValue(rapidjson::kObjectType), document);
}

// "QUOTA PERIOD" or "QUOTA", microseconds; QUOTA may be "max".
bool move_cpu_max(std::string_view value, JsonValue& resources, Document& document) {
    std::string_view quota_text = value.substr(0, value.find(' '));
    auto quota = core::parse_plain_decimal(quota_text, core::kCfsMicrosecondsMax);
    if (!quota && quota_text != "max") return false;
    std::optional<uint64_t> period;
    if (quota_text.size() != value.size()) {
        period = core::parse_plain_decimal(value.substr(quota_text.size() + 1), core::kCfsMicrosecondsMax);
        if (!period) return false;
    }
    JsonValue& cpu = cpu_of(resources, document);
    set_member(cpu, "quota", JsonValue(quota ? static_cast<int64_t>(*quota) : int64_t{-1}), document);
    if (period) set_member(cpu, "period", JsonValue(*period), document);
    return true;
}

// The least shares that make this weight.
bool move_cpu_weight(std::string_view value, JsonValue& resources, Document& document) {
    auto weight = core::parse_plain_decimal(value, kWeightMost);
    if (!weight || *weight == 0) return false;
    uint64_t least = 2;
    uint64_t most = kSharesMost;
    while (least < most) {
        uint64_t middle = (least + most) / 2;
        if (core::cpu_weight_from_shares(middle) < *weight) {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    if (core::cpu_weight_from_shares(least) != *weight) return false;
    set_member(cpu_of(resources, document), "shares", JsonValue(least), document);
    return true;
}

bool move_cpu_idle(std::string_view value, JsonValue& resources, Document& document) {
    if (value != "0" && value != "1") return false;
    set_member(cpu_of(resources, document), "idle", JsonValue(value == "1" ? 1 : 0), document);
    return true;
}

bool move_cpus(std::string_view value, JsonValue& resources, Document& document) {
    // Empty is "no list" to the kernel, and "no change" as a property.
    if (value.empty()) return false;
    set_member(cpu_of(resources, document), "cpus", string_value(value, document), document);
    return true;
}

bool move_mems(std::string_view value, JsonValue& resources, Document& document) {
    if (value.empty()) return false;
    set_member(cpu_of(resources, document), "mems", string_value(value, document), document);
    return true;
}

struct IoLimit {
    std::string_view key;  // of io.max
    const char* property;
};
constexpr IoLimit kIoLimits[] = {
    {"rbps", "throttleReadBpsDevice"},
    {"wbps", "throttleWriteBpsDevice"},
    {"riops", "throttleReadIOPSDevice"},
    {"wiops", "throttleWriteIOPSDevice"},
};

// "rbps=1": the entry of a throttle list. Nothing: not of that form.
const IoLimit* parse_io_limit(std::string_view word, uint64_t& rate) {
    size_t equals = word.find('=');
    if (equals == word.npos) return nullptr;
    std::string_view text = word.substr(equals + 1);
    auto number = core::parse_plain_decimal(text, INT64_MAX);
    if (!number && text != "max") return nullptr;
    rate = number.value_or(0);
    for (const IoLimit& limit : kIoLimits) {
        if (limit.key == word.substr(0, equals)) return &limit;
    }
    return nullptr;
}

// Lines of "MAJOR:MINOR rbps=1 wbps=max riops=2 wiops=3".
bool move_io_max(std::string_view value, JsonValue& resources, Document& document) {
    JsonValue block_io(rapidjson::kObjectType);
    if (JsonValue* asked = find_object(resources, "blockIO"); asked != nullptr)
        block_io.CopyFrom(*asked, document.GetAllocator());
    for (std::string_view line : core::split_lines(value)) {
        std::vector<std::string_view> words = core::split(core::trim(line), ' ');
        size_t colon = words[0].find(':');
        auto major = core::parse_number<uint32_t>(words[0].substr(0, colon));
        auto minor = core::parse_number<uint32_t>(colon == line.npos ? "" : words[0].substr(colon + 1));
        if (!major || !minor) return false;
        for (size_t i = 1; i < words.size(); ++i) {
            uint64_t rate = 0;
            const IoLimit* limit = parse_io_limit(words[i], rate);
            if (limit == nullptr) return false;
            JsonValue entry(rapidjson::kObjectType);
            set_member(entry, "major", JsonValue(*major), document);
            set_member(entry, "minor", JsonValue(*minor), document);
            set_member(entry, "rate", JsonValue(rate), document);
            member(block_io, limit->property, JsonValue(rapidjson::kArrayType), document)
                .PushBack(entry, document.GetAllocator());
        }
    }
    set_member(resources, "blockIO", std::move(block_io), document);
    return true;
}

struct MovedKey {
    const char* name;
    bool (*move)(std::string_view value, JsonValue& resources, Document& document);
};
constexpr MovedKey kMoved[] = {
    {"cpu.max", move_cpu_max},  {"cpu.weight", move_cpu_weight}, {"cpu.idle", move_cpu_idle},
    {"cpuset.cpus", move_cpus}, {"cpuset.mems", move_mems},      {"io.max", move_io_max},
};

}  // namespace

bool move_unified_keys(JsonValue& resources, Document& document) {
    if (find_object(resources, "unified") == nullptr) return false;
    bool moved = false;
    for (const MovedKey& key : kMoved) {
        // Anew each time: a property that is added may move the others.
        JsonValue* unified = find_object(resources, "unified");
        JsonValue* found = find_member(*unified, key.name);
        if (found == nullptr || !found->IsString()) continue;
        std::string value(found->GetString(), found->GetStringLength());
        if (!key.move(value, resources, document)) continue;
        find_object(resources, "unified")->RemoveMember(key.name);
        moved = true;
    }
    return moved;
}

core::Result<std::string> with_unified_keys_moved(const std::string& resources) {
    BERTH_ASSIGN(Document document, parse_object(resources, "resources"));
    move_unified_keys(document, document);
    return json_text_of(document);
}

core::Result<bool> takes_any_unified(Context& context, std::string_view json) {
    if (!context.is_local() || json.find("\"unified\"") == json.npos) return false;
    BERTH_ASSIGN(v1::InfoResponse info,
                 context.session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest()));
    return info.has_other_init();
}

}  // namespace berth::ctl
