// What a Create has decided before it changes anything. Only for the files that CreateJob is written in.
#pragma once

#include <linux/bpf.h>

#include <string>
#include <vector>

#include "agent/core/cgroup_path.h"
#include "agent/core/cgroup_plan.h"
#include "agent/core/container_spec.h"
#include "agent/core/launch_plan.h"
#include "agent/runtime/create_job.h"

namespace berth::runtime {

struct CreateJob::Plans {
    core::ContainerSpec spec;
    std::string bundle_dir;     // ours
    std::string source_bundle;  // what relative sources begin at; empty: bundle_dir
    core::CgroupLayout layout;
    core::CgroupPlan cgroup;
    std::vector<bpf_insn> device_filter;
    core::LaunchPlan launch;
};

}  // namespace berth::runtime
