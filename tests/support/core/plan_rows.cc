#include "tests/support/core/plan_rows.h"

#include <doctest/doctest.h>

#include "agent/core/text.h"

namespace berth::test {

using namespace berth::core;

CgroupFacts full_facts(std::string_view without) {
    constexpr std::string_view kFiles[] = {
        "cpu.weight",      "cpu.idle",
        "cpu.max",         "cpu.max.burst",
        "cpu.uclamp.min",  "cpu.uclamp.max",
        "cpuset.cpus",     "cpuset.mems",
        "memory.min",      "memory.low",
        "memory.high",     "memory.max",
        "memory.swap.max", "memory.oom.group",
        "memory.current",  "pids.max",
        "io.weight",       "io.bfq.weight",
        "io.max",          "hugetlb.2MB.max",
        "hugetlb.1GB.max", "hugetlb.2MB.rsvd.max",
        "rdma.max",        "memory.swap.current",
        "cgroup.procs",
    };
    CgroupFacts facts;
    for (std::string_view file : kFiles) {
        bool missing = false;
        for (std::string_view gone : split(without, ' ')) missing |= gone == file;
        if (!missing) facts.files.emplace_back(file);
    }
    return facts;
}

Resources resources_of(std::string_view json) {
    if (json.empty()) return {};
    auto resources = parse_resources_text(json, "resources");
    REQUIRE_MESSAGE(resources.ok(), (resources.ok() ? "" : resources.error().message));
    return std::move(*resources);
}

std::string planned(std::string_view stored, std::string_view request, const CgroupFacts& facts,
                    PlanMode mode) {
    auto parsed = parse_resources_text(request, "resources");
    Result<CgroupPlan> plan = parsed.ok() ? plan_resources(resources_of(stored), *parsed, facts, mode)
                                          : Result<CgroupPlan>(parsed.error());
    if (!plan.ok()) return std::string(code_name(plan.error().code)) + ": " + plan.error().message;
    std::string text;
    for (const CgroupWrite& write : plan->writes) {
        if (!text.empty()) text += "; ";
        text += write.file + "=" + write.value;
    }
    return text;
}

std::string merged(std::string_view stored, std::string_view request) {
    auto plan = plan_resources(resources_of(stored), resources_of(request), full_facts(), PlanMode::kUpdate);
    REQUIRE_MESSAGE(plan.ok(), (plan.ok() ? "" : plan.error().message));
    return serialize_resources(plan->merged);
}

}  // namespace berth::test
