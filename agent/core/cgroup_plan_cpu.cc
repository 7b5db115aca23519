// cpuset.*, cpu.weight, cpu.idle, cpu.max, cpu.max.burst, cpu.uclamp.*
#include "agent/core/cgroup_plan_internal.h"
#include "agent/core/cpu_weight.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::core::plan {
namespace {

constexpr uint64_t kDefaultPeriod = 100'000;  // the kernel's, in microseconds

struct Bandwidth {
    int64_t quota = -1;  // microseconds; -1: none
    uint64_t period = kDefaultPeriod;
};

// "max 100000" or "50000 100000"; anything else is as in a fresh cgroup.
Bandwidth parse_cpu_max(std::string_view text) {
    Bandwidth bandwidth;
    size_t blank = text.find(' ');
    if (blank == std::string_view::npos) return bandwidth;
    bandwidth.quota = parse_limit(text.substr(0, blank)).value_or(-1);
    bandwidth.period = parse_number<uint64_t>(text.substr(blank + 1)).value_or(kDefaultPeriod);
    return bandwidth;
}

}  // namespace

Status plan_cpuset(Planner& p) {
    const CpuResources& cpu = p.request.cpu;
    if (cpu.cpus && !cpu.cpus->empty()) {
        BERTH_TRY(p.require("cpu.cpus", "cpuset.cpus"));
        p.write("cpuset.cpus", *cpu.cpus);
    }
    if (cpu.mems && !cpu.mems->empty()) {
        BERTH_TRY(p.require("cpu.mems", "cpuset.mems"));
        p.write("cpuset.mems", *cpu.mems);
    }
    return ok();
}

namespace {

// While cpu.idle is 1 the kernel refuses cpu.weight, and going back to 0 sets it to 100: the weight is
// written after the 0, and only remembered during the 1.
Status plan_weight(Planner& p) {
    const CpuResources& asked = p.request.cpu;
    bool asked_weight = asked.shares.value_or(0) != 0;
    if (asked_weight) BERTH_TRY(p.require("cpu.shares", "cpu.weight"));
    bool idle = p.merged.cpu.idle ? *p.merged.cpu.idle == 1 : p.current("cpu.idle") == "1";
    bool woken = false;
    if (asked.idle) {
        if (*asked.idle == 1) BERTH_TRY(p.require("cpu.idle", "cpu.idle"));
        if (p.facts.has("cpu.idle")) {  // without the file 0 is already true
            p.write("cpu.idle", std::to_string(*asked.idle));
            p.snapshot("cpu.weight");
            woken = *asked.idle == 0;
        }
    }
    uint64_t shares = p.merged.cpu.shares.value_or(0);  // 0: unset
    if (!idle && shares != 0 && (asked_weight || woken)) {
        p.write("cpu.weight", std::to_string(cpu_weight_from_shares(shares)));
    }
    return ok();
}

// The kernel wants burst <= quota at every moment. With old (q0, b0) and new (q1, b1): a burst that shrinks
// goes first (b1 <= b0 <= q0), one that grows goes last (b0 < b1 <= q1).
Status plan_bandwidth(Planner& p) {
    const CpuResources& asked = p.request.cpu;
    const std::string* unified_burst = p.asked_unified("cpu.max.burst");
    bool writes_max = asked.quota.value_or(0) != 0 || asked.period.value_or(0) != 0;
    bool writes_burst = unified_burst != nullptr || asked.burst.has_value();
    if (!writes_max && !writes_burst) return ok();

    Bandwidth bandwidth = parse_cpu_max(p.current("cpu.max"));
    if (p.merged.cpu.quota) bandwidth.quota = *p.merged.cpu.quota;
    if (p.merged.cpu.period) bandwidth.period = *p.merged.cpu.period;
    uint64_t old_burst = parse_number<uint64_t>(p.current("cpu.max.burst")).value_or(0);
    uint64_t burst = old_burst;
    if (const std::string* held = p.merged_unified("cpu.max.burst")) {
        burst = parse_plain_decimal(*held, kCfsMicrosecondsMax).value_or(0);
    } else if (p.merged.cpu.burst) {
        burst = *p.merged.cpu.burst;
    }
    if (writes_max) {
        BERTH_TRY(p.require(asked.quota.value_or(0) != 0 ? "cpu.quota" : "cpu.period", "cpu.max"));
    }
    if (writes_burst && !p.facts.has("cpu.max.burst")) {
        // Without the file a burst of 0 is already true.
        if (burst != 0) return missing_file("cpu.burst", "cpu.max.burst");
        writes_burst = false;
    }
    if (bandwidth.quota >= 0) {
        auto quota = static_cast<uint64_t>(bandwidth.quota);
        if (burst > quota) {
            return invalid("cpu.burst: " + std::to_string(burst) + " is above the quota " +
                           std::to_string(quota) + " (microseconds)");
        }
        if (burst + quota > kCfsMicrosecondsMax) {
            return invalid("cpu.burst: " + std::to_string(burst) + " and the quota " + std::to_string(quota) +
                           " together are above the kernel's most, 17592186044415 microseconds");
        }
    }
    bool burst_first = burst <= old_burst;
    if (writes_burst && burst_first) p.write("cpu.max.burst", std::to_string(burst));
    if (writes_max) {
        std::string quota = bandwidth.quota < 0 ? "max" : std::to_string(bandwidth.quota);
        p.write("cpu.max", quota + " " + std::to_string(bandwidth.period));
    }
    if (writes_burst && !burst_first) p.write("cpu.max.burst", std::to_string(burst));
    return ok();
}

}  // namespace

Status plan_cpu(Planner& p) {
    BERTH_TRY(plan_weight(p));
    BERTH_TRY(plan_bandwidth(p));
    for (std::string_view key : {"cpu.uclamp.min", "cpu.uclamp.max"}) {
        if (const std::string* value = p.asked_unified(key)) {
            p.write(key, normalize_unified(*find_unified_key(key), *value, p.facts.page_size));
        }
    }
    return ok();
}

}  // namespace berth::core::plan
