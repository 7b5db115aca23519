// What cgroup v2 cannot do, and values out of range; and the merge by kernel file.
#include "agent/core/cgroup_plan_internal.h"
#include "agent/core/text.h"
#include "agent/core/unified.h"

namespace berth::core::plan {
namespace {

Error impossible(std::string_view what) {
    return invalid(std::string(what) + ": cgroup v2 has no such setting");
}

Error outside(std::string_view what, int64_t value, std::string_view range) {
    return invalid(std::string(what) + ": " + std::to_string(value) + " is " + std::string(range));
}

// Limits that are a number, -1 (none) or 0 (unset).
Status check_limit(std::string_view what, const std::optional<int64_t>& value) {
    if (value && *value < -1) return outside(what, *value, "negative; only -1 (no limit) may be");
    return ok();
}

Status check_memory(const MemoryResources& memory) {
    BERTH_TRY(check_limit("memory.limit", memory.limit));
    BERTH_TRY(check_limit("memory.reservation", memory.reservation));
    BERTH_TRY(check_limit("memory.swap", memory.swap));
    BERTH_TRY(check_limit("memory.kernel", memory.kernel));
    BERTH_TRY(check_limit("memory.kernelTCP", memory.kernel_tcp));
    if (memory.kernel.value_or(0) > 0) return impossible("memory.kernel");
    if (memory.kernel_tcp.value_or(0) > 0) return impossible("memory.kernelTCP");
    if (memory.swappiness.value_or(0) != 0) return impossible("memory.swappiness");
    if (memory.disable_oom_killer.value_or(false)) return impossible("memory.disableOOMKiller");
    if (!memory.use_hierarchy.value_or(true)) {
        return invalid("memory.useHierarchy: cgroup v2 is always hierarchical");
    }
    return ok();
}

// "0-3,7": decimal numbers and ranges.
Status check_list(std::string_view what, std::string_view text) {
    if (text.size() > 4096) return invalid(std::string(what) + ": is longer than 4096 bytes");
    for (std::string_view part : split(text, ',')) {
        size_t dash = part.find('-');
        std::optional<uint64_t> first = parse_plain_decimal(part.substr(0, dash), 65'535);
        std::optional<uint64_t> last = first;
        if (dash != std::string_view::npos) last = parse_plain_decimal(part.substr(dash + 1), 65'535);
        if (!first || !last || *last < *first) {
            return invalid(std::string(what) + ": " + quoted(text) +
                           " is not a list of numbers and ranges like 0-3,7");
        }
    }
    return ok();
}

Status check_cpu(const CpuResources& cpu) {
    if (cpu.realtime_runtime.value_or(0) != 0) return impossible("cpu.realtimeRuntime");
    if (cpu.realtime_period.value_or(0) != 0) return impossible("cpu.realtimePeriod");
    if (int64_t quota = cpu.quota.value_or(0); quota != 0 && quota != -1) {
        if (quota < -1) return outside("cpu.quota", quota, "negative; only -1 (no limit) may be");
        if (quota < 1000) return outside("cpu.quota", quota, "below the kernel's least, 1000 microseconds");
        if (static_cast<uint64_t>(quota) > kCfsMicrosecondsMax) {
            return outside("cpu.quota", quota, "above the kernel's most, 17592186044415 microseconds");
        }
    }
    if (uint64_t period = cpu.period.value_or(0); period != 0 && (period < 1000 || period > 1'000'000)) {
        return invalid("cpu.period: " + std::to_string(period) + " is outside 1000 to 1000000 microseconds");
    }
    if (cpu.burst.value_or(0) > kCfsMicrosecondsMax) {
        return invalid("cpu.burst: " + std::to_string(*cpu.burst) +
                       " is above the kernel's most, 17592186044415 microseconds");
    }
    if (cpu.idle && *cpu.idle != 0 && *cpu.idle != 1)
        return outside("cpu.idle", *cpu.idle, "neither 0 nor 1");
    if (cpu.cpus && !cpu.cpus->empty()) BERTH_TRY(check_list("cpu.cpus", *cpu.cpus));
    if (cpu.mems && !cpu.mems->empty()) BERTH_TRY(check_list("cpu.mems", *cpu.mems));
    return ok();
}

Status check_weight(std::string_view what, const std::optional<uint16_t>& weight) {
    uint16_t value = weight.value_or(0);
    if (value != 0 && (value < 10 || value > 1000)) return outside(what, value, "outside 10 to 1000");
    return ok();
}

Status check_io(const BlockIoResources& io) {
    if (io.leaf_weight.value_or(0) != 0) return impossible("blockIO.leafWeight");
    BERTH_TRY(check_weight("blockIO.weight", io.weight));
    for (size_t i = 0; i < io.weight_devices.size(); ++i) {
        const WeightDevice& device = io.weight_devices[i];
        std::string what = "blockIO.weightDevice[" + std::to_string(i) + "]";
        if (device.leaf_weight.value_or(0) != 0) return impossible(what + ".leafWeight");
        BERTH_TRY(check_weight(what + ".weight", device.weight));
    }
    return ok();
}

Status check_unified_again(const Resources& request, PlanMode mode) {
    for (const auto& [key, value] : request.unified) {
        BERTH_TRY(check_unified("unified", key, value));
        if (mode == PlanMode::kCreate && key == "pids.max" && value == "0") {
            return invalid("unified[\"pids.max\"]: 0 would keep the container's own init out");
        }
    }
    return ok();
}

// A list of per-device settings where a newer entry of the same device replaces the older one.
template <typename Device>
void merge_devices(std::vector<Device>& into, const std::vector<Device>& newer) {
    for (const Device& device : newer) {
        bool found = false;
        for (Device& old : into) {
            if (old.major != device.major || old.minor != device.minor) continue;
            old = device;
            found = true;
        }
        if (!found) into.push_back(device);
    }
}

// Takes over what is set; `unset` is the value that means "not set".
template <typename T>
void take(std::optional<T>& into, const std::optional<T>& newer, T unset) {
    if (newer && *newer != unset) into = newer;
}

// Two spellings of one kernel file: the request's choice removes the other spelling from the merge.
template <typename T>
void one_spelling(Resources& merged, const Resources& request, std::string_view key, std::optional<T>& typed,
                  bool asked_typed) {
    std::string name(key);
    if (request.unified.contains(name)) {
        typed.reset();
    } else if (asked_typed) {
        merged.unified.erase(name);
    }
}

}  // namespace

Status check_request(const Resources& request, PlanMode mode) {
    BERTH_TRY(check_memory(request.memory));
    BERTH_TRY(check_cpu(request.cpu));
    if (int64_t pids = request.pids_limit.value_or(0); pids != -1) {
        if (pids < -1) return outside("pids.limit", pids, "negative; only -1 (no limit) may be");
        if (static_cast<uint64_t>(pids) > kPidsMax) {
            return outside("pids.limit", pids, "above the kernel's most, 4194304");
        }
    }
    BERTH_TRY(check_io(request.block_io));
    if (request.network.class_id.value_or(0) != 0) return impossible("network.classID");
    if (!request.network.priorities.empty()) return impossible("network.priorities");
    return check_unified_again(request, mode);
}

Resources merge(const Resources& stored, const Resources& request) {
    Resources merged = stored;
    take<int64_t>(merged.memory.limit, request.memory.limit, 0);
    take<int64_t>(merged.memory.reservation, request.memory.reservation, 0);
    take<int64_t>(merged.memory.swap, request.memory.swap, 0);
    if (request.memory.check_before_update)
        merged.memory.check_before_update = request.memory.check_before_update;
    take<uint64_t>(merged.cpu.shares, request.cpu.shares, 0);
    take<int64_t>(merged.cpu.quota, request.cpu.quota, 0);
    take<uint64_t>(merged.cpu.period, request.cpu.period, 0);
    if (request.cpu.burst) merged.cpu.burst = request.cpu.burst;
    if (request.cpu.idle) merged.cpu.idle = request.cpu.idle;
    take<std::string>(merged.cpu.cpus, request.cpu.cpus, "");
    take<std::string>(merged.cpu.mems, request.cpu.mems, "");
    if (request.pids_limit) merged.pids_limit = request.pids_limit;
    take<uint16_t>(merged.block_io.weight, request.block_io.weight, 0);
    for (const WeightDevice& device : request.block_io.weight_devices) {
        if (device.weight.value_or(0) != 0) merge_devices(merged.block_io.weight_devices, {device});
    }
    merge_devices(merged.block_io.read_bps, request.block_io.read_bps);
    merge_devices(merged.block_io.write_bps, request.block_io.write_bps);
    merge_devices(merged.block_io.read_iops, request.block_io.read_iops);
    merge_devices(merged.block_io.write_iops, request.block_io.write_iops);
    for (const HugepageLimit& limit : request.hugepage_limits) {
        bool found = false;
        for (HugepageLimit& old : merged.hugepage_limits) {
            if (old.page_size != limit.page_size) continue;
            old.limit = limit.limit;
            found = true;
        }
        if (!found) merged.hugepage_limits.push_back(limit);
    }
    for (const auto& [device, limit] : request.rdma) {
        RdmaLimit& into = merged.rdma[device];
        if (limit.hca_handles) into.hca_handles = limit.hca_handles;
        if (limit.hca_objects) into.hca_objects = limit.hca_objects;
    }
    if (request.devices) merged.devices = request.devices;
    for (const auto& [key, value] : request.unified) merged.unified[key] = value;

    one_spelling(merged, request, "memory.max", merged.memory.limit, request.memory.limit.value_or(0) != 0);
    one_spelling(merged, request, "memory.low", merged.memory.reservation,
                 request.memory.reservation.value_or(0) != 0);
    one_spelling(merged, request, "memory.swap.max", merged.memory.swap,
                 request.memory.swap.value_or(0) != 0);
    one_spelling(merged, request, "cpu.max.burst", merged.cpu.burst, request.cpu.burst.has_value());
    one_spelling(merged, request, "pids.max", merged.pids_limit, request.pids_limit.has_value());
    return merged;
}

}  // namespace berth::core::plan
