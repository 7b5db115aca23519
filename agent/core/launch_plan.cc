#include "agent/core/launch_plan.h"

#include <cstring>

#include "agent/core/launch_plan_rules.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {

namespace {

size_t align8(size_t offset) {
    return (offset + 7) & ~size_t{7};
}

}  // namespace

const PlanHeader& LaunchPlan::header() const {
    BERTH_CHECK(blob.size() >= sizeof(PlanHeader));
    return *reinterpret_cast<const PlanHeader*>(blob.data());
}

std::span<const PlanStep> LaunchPlan::steps() const {
    PlanArray array = header().steps;
    BERTH_CHECK(array.offset + uint64_t{array.count} * sizeof(PlanStep) <= blob.size());
    return {reinterpret_cast<const PlanStep*>(blob.data() + array.offset), array.count};
}

std::string_view LaunchPlan::text(PlanString string) const {
    if (string.offset == 0) return {};
    BERTH_CHECK(uint64_t{string.offset} + string.length <= blob.size());
    return {reinterpret_cast<const char*>(blob.data()) + string.offset, string.length};
}

std::string LaunchPlan::step_label(uint32_t step_index) const {
    std::span<const PlanStep> all = steps();
    if (step_index >= all.size()) return format("step %u", step_index);
    const PlanStep& step = all[step_index];
    std::string_view label = text(step.label);
    return label.empty() ? std::string(plan_op_name(step.op)) : std::string(label);
}

LaunchPlanBuilder::LaunchPlanBuilder(PlanKind kind) {
    header_.kind = kind;
    // What an exec's takes: growing to it costs more than all that is written.
    steps_.reserve(32);
    pool_.reserve(2048);
    fds_.reserve(8);
    FdRequest sync;
    sync.source = FdSource::kSync;
    FdRequest cgroup;
    cgroup.source = FdSource::kCgroup;
    fds_.push_back(std::move(sync));
    fds_.push_back(std::move(cgroup));
}

PlanString LaunchPlanBuilder::string(std::string_view text) {
    // Labels and paths repeat, mostly one after the other: the last one at each hash is remembered.
    uint32_t hash = 0;
    for (char character : text) hash = hash * 31 + static_cast<unsigned char>(character);
    PlanString& recent = recent_[hash % recent_.size()];
    if (recent.offset != 0 && text_of(recent) == text) return recent;
    if (nul_in_.empty() && text.find('\0') != std::string_view::npos) nul_in_ = text;
    PlanString placed{static_cast<uint32_t>(sizeof(PlanHeader) + pool_.size()),
                      static_cast<uint32_t>(text.size())};
    // A pool over the limit is refused by finish(); growing it further would only wrap the offsets.
    if (pool_.size() + text.size() <= limits::kLaunchPlanBytes) {
        pool_.append(text);
    } else {
        pool_.resize(limits::kLaunchPlanBytes + 1);
    }
    pool_.push_back('\0');
    // (What does not fit is not in the pool.)
    recent = pool_.size() <= limits::kLaunchPlanBytes ? placed : PlanString{};
    return placed;
}

std::string_view LaunchPlanBuilder::text_of(PlanString placed) const {
    return std::string_view(pool_).substr(placed.offset - sizeof(PlanHeader), placed.length);
}

PlanString LaunchPlanBuilder::bytes(std::span<const std::byte> content) {
    static_assert(sizeof(PlanHeader) % 8 == 0);
    pool_.resize(align8(pool_.size()));
    PlanString placed{static_cast<uint32_t>(sizeof(PlanHeader) + pool_.size()),
                      static_cast<uint32_t>(content.size())};
    if (pool_.size() + content.size() <= limits::kLaunchPlanBytes) {
        pool_.append(reinterpret_cast<const char*>(content.data()), content.size());
    } else {
        pool_.resize(limits::kLaunchPlanBytes + 1);
    }
    pool_.push_back('\0');
    return placed;
}

int32_t LaunchPlanBuilder::slot(FdRequest request) {
    fds_.push_back(std::move(request));
    return static_cast<int32_t>(fds_.size() - 1);
}

int32_t LaunchPlanBuilder::id_map_slot(std::string_view uid_map, std::string_view gid_map) {
    PlanIdMap wanted;
    wanted.uid_map = string(uid_map);
    wanted.gid_map = string(gid_map);
    for (const PlanIdMap& known : id_maps_)
        if (text_of(known.uid_map) == uid_map && text_of(known.gid_map) == gid_map) return known.slot;
    FdRequest request;
    request.source = FdSource::kUserNamespace;
    request.label = "user namespace of an id-mapped mount";
    wanted.slot = slot(std::move(request));
    id_maps_.push_back(wanted);
    return wanted.slot;
}

PlanStep& LaunchPlanBuilder::step(PlanOp op, std::string_view label) {
    PlanStep& added = steps_.emplace_back();
    added.op = op;
    if (!label.empty()) added.label = string(label);
    return added;
}

Result<LaunchPlan> LaunchPlanBuilder::finish() && {
    std::vector<uint64_t> argv_offsets;
    std::vector<uint64_t> envp_offsets;
    argv_offsets.reserve(argv_.size() + 1);
    envp_offsets.reserve(envp_.size() + 2);
    for (const std::string& argument : argv_) argv_offsets.push_back(string(argument).offset);
    for (const std::string& variable : envp_) envp_offsets.push_back(string(variable).offset);
    argv_offsets.push_back(0);
    envp_offsets.push_back(0);
    envp_offsets.push_back(0);
    if (!nul_in_.empty()) return invalid(quoted(nul_in_) + " contains a NUL byte");
    if (fds_.size() > limits::kLaunchPlanFds) {
        return make_error(Code::kResourceExhausted, format("launch plan: %zu descriptors; at most %zu fit",
                                                           fds_.size(), limits::kLaunchPlanFds));
    }
    size_t steps_at = align8(sizeof(PlanHeader) + pool_.size());
    size_t argv_at = steps_at + steps_.size() * sizeof(PlanStep);
    size_t envp_at = argv_at + argv_offsets.size() * sizeof(uint64_t);
    size_t id_maps_at = envp_at + envp_offsets.size() * sizeof(uint64_t);
    size_t net_devices_at = id_maps_at + id_maps_.size() * sizeof(PlanIdMap);
    size_t total = net_devices_at + net_devices_.size() * sizeof(PlanNetDevice);
    if (total > limits::kLaunchPlanBytes) {
        return make_error(Code::kResourceExhausted, format("launch plan: %zu bytes or more; at most %zu fit",
                                                           total, limits::kLaunchPlanBytes));
    }
    header_.magic = kPlanMagic;
    header_.total_bytes = static_cast<uint32_t>(total);
    header_.fd_count = static_cast<uint16_t>(fds_.size());
    header_.steps = {static_cast<uint32_t>(steps_at), static_cast<uint32_t>(steps_.size())};
    header_.argv = {static_cast<uint32_t>(argv_at), static_cast<uint32_t>(argv_.size())};
    header_.envp = {static_cast<uint32_t>(envp_at), static_cast<uint32_t>(envp_.size())};

    header_.id_maps = {static_cast<uint32_t>(id_maps_at), static_cast<uint32_t>(id_maps_.size())};

    header_.net_devices = {static_cast<uint32_t>(net_devices_at), static_cast<uint32_t>(net_devices_.size())};

    LaunchPlan plan;
    plan.blob.resize(total);
    auto put = [&plan](size_t at, const void* data, size_t size) {
        if (size > 0) std::memcpy(plan.blob.data() + at, data, size);
    };
    put(0, &header_, sizeof(header_));
    put(sizeof(PlanHeader), pool_.data(), pool_.size());
    put(steps_at, steps_.data(), steps_.size() * sizeof(PlanStep));
    put(argv_at, argv_offsets.data(), argv_offsets.size() * sizeof(uint64_t));
    put(envp_at, envp_offsets.data(), envp_offsets.size() * sizeof(uint64_t));
    put(id_maps_at, id_maps_.data(), id_maps_.size() * sizeof(PlanIdMap));
    put(net_devices_at, net_devices_.data(), net_devices_.size() * sizeof(PlanNetDevice));
    plan.fds = std::move(fds_);
    std::string flaw = launch_plan_flaw(plan.blob, plan.fds.size());
    if (!flaw.empty()) return make_error(Code::kInternal, "launch plan: " + flaw);
    return plan;
}

}  // namespace berth::core
