// io.*, pids.*, hugetlb.*, rdma.*
#include <algorithm>
#include <array>

#include "agent/core/cgroup_plan_internal.h"
#include "agent/core/cpu_weight.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::core::plan {
namespace {

std::string device_name(uint32_t major, uint32_t minor) {
    return std::to_string(major) + ":" + std::to_string(minor);
}

Status plan_weights(Planner& p) {
    const BlockIoResources& io = p.request.block_io;
    // BFQ keeps OCI's scale; io.weight has its own.
    bool bfq = p.facts.has("io.bfq.weight");
    auto scaled = [&](uint16_t weight) {
        return std::to_string(bfq ? uint32_t{weight} : io_weight_from_blkio(weight));
    };
    std::string_view file = bfq ? "io.bfq.weight" : "io.weight";
    if (uint16_t weight = io.weight.value_or(0); weight != 0) {
        BERTH_TRY(p.require("blockIO.weight", file));
        p.write(file, (bfq ? "" : "default ") + scaled(weight));
    }
    for (const WeightDevice& device : io.weight_devices) {
        uint16_t weight = device.weight.value_or(0);
        if (weight == 0) continue;
        BERTH_TRY(p.require("blockIO.weightDevice", file));
        p.write(file, device_name(device.major, device.minor) + " " + scaled(weight));
    }
    return ok();
}

struct ThrottleList {
    std::string_view what;
    std::string_view key;
    const std::vector<ThrottleDevice>* devices;
};

// One write a device, with every limit that was asked for it.
Status plan_throttles(Planner& p) {
    const BlockIoResources& io = p.request.block_io;
    const std::array<ThrottleList, 4> lists = {
        {{"blockIO.throttleReadBpsDevice", " rbps=", &io.read_bps},
         {"blockIO.throttleWriteBpsDevice", " wbps=", &io.write_bps},
         {"blockIO.throttleReadIOPSDevice", " riops=", &io.read_iops},
         {"blockIO.throttleWriteIOPSDevice", " wiops=", &io.write_iops}}};
    std::map<std::pair<uint32_t, uint32_t>, std::string> lines;
    for (const ThrottleList& list : lists) {
        if (list.devices->empty()) continue;
        BERTH_TRY(p.require(list.what, "io.max"));
        for (const ThrottleDevice& device : *list.devices) {
            std::string& line = lines[{device.major, device.minor}];
            if (line.empty()) line = device_name(device.major, device.minor);
            // A rate of 0 is EINVAL to the kernel; OCI means no limit.
            line.append(list.key).append(device.rate == 0 ? "max" : std::to_string(device.rate));
        }
    }
    for (auto& [device, line] : lines) p.write("io.max", std::move(line));
    return ok();
}

Status plan_pids(Planner& p) {
    if (const std::string* value = p.asked_unified("pids.max")) {
        p.write("pids.max", *value);
        return ok();
    }
    if (!p.request.pids_limit) return ok();
    BERTH_TRY(p.require("pids.limit", "pids.max"));
    int64_t limit = *p.request.pids_limit;
    // 0 would keep the init itself out: the kernel counts it.
    p.write("pids.max", limit < 0 ? "max" : std::to_string(std::max<int64_t>(limit, 1)));
    return ok();
}

Status plan_hugetlb(Planner& p) {
    for (const HugepageLimit& limit : p.request.hugepage_limits) {
        std::string value = limit.limit > uint64_t{INT64_MAX} ? "max" : std::to_string(limit.limit);
        std::string file = "hugetlb." + limit.page_size + ".max";
        BERTH_TRY(p.require("hugepageLimits", file));
        // Without the reservation limit a process gets SIGBUS at the fault instead of an error from mmap.
        std::string reserved = "hugetlb." + limit.page_size + ".rsvd.max";
        if (p.facts.has(reserved)) p.write(reserved, value);
        p.write(file, std::move(value));
    }
    return ok();
}

Status plan_rdma(Planner& p) {
    for (const auto& [device, limit] : p.request.rdma) {
        BERTH_TRY(p.require("rdma[" + quoted(device) + "]", "rdma.max"));
        std::string line = device;
        if (limit.hca_handles) line.append(" hca_handle=").append(std::to_string(*limit.hca_handles));
        if (limit.hca_objects) line.append(" hca_object=").append(std::to_string(*limit.hca_objects));
        p.write("rdma.max", std::move(line));
    }
    return ok();
}

}  // namespace

Status plan_io(Planner& p) {
    BERTH_TRY(plan_weights(p));
    return plan_throttles(p);
}

Status plan_others(Planner& p) {
    BERTH_TRY(plan_pids(p));
    BERTH_TRY(plan_hugetlb(p));
    return plan_rdma(p);
}

}  // namespace berth::core::plan
