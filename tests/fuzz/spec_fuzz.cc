// config.json as a hostile host would write it: parsed, and planned when it passes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "agent/core/container_plan.h"

using namespace berth::core;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::string_view text(reinterpret_cast<const char*>(data), size);
    auto process = parse_process_spec(text);
    auto spec = parse_container_spec(text);
    if (!spec.ok()) {
        if (spec.error().message.find('\n') != std::string::npos) abort();  // one line, whatever came in
        return 0;
    }
    GuestFacts facts;
    for (const char* name : {"tmpfs", "proc", "sysfs", "devpts", "mqueue", "overlay", "cgroup2"})
        facts.filesystems.push_back({.name = name});
    facts.block_devices.push_back({.serial = "disk", .path = "/dev/vda"});
    ContainerLaunch launch;
    launch.spec = &*spec;
    launch.facts = &facts;
    launch.id = "fuzz";
    launch.bundle_dir = "/run/berth/bundles/fuzz";
    launch.seccomp.own.filter.resize(8);
    if (spec->seccomp) launch.seccomp.profile = launch.seccomp.own;
    auto plan = plan_container(launch);
    if (plan.ok() && !validate_launch_plan(plan->blob, plan->fds.size())) abort();
    if (!plan.ok() && plan.error().code == Code::kInternal) abort();  // a plan that contradicts its own rules
    ExecLaunch exec;
    exec.spec = &*spec;
    exec.process = &spec->process;
    exec.facts = &facts;
    exec.id = "fuzz";
    exec.seccomp = launch.seccomp;
    auto exec_plan = plan_exec(exec);
    if (exec_plan.ok() && !validate_launch_plan(exec_plan->blob, exec_plan->fds.size())) abort();
    return 0;
}
