#include "agent/berthctl/debug_notes.h"

#include "agent/berthctl/json_edit.h"
#include "agent/core/cpu_list.h"
#include "agent/core/text.h"

namespace berth::ctl {

namespace {

constexpr uint32_t kMostCpus = 1024;

// The CPUs on which an exec begins; empty when nothing is said of them.
std::string initial_cpus(std::string_view process_json) {
    core::Result<rapidjson::Document> process = parse_object(process_json, "process");
    if (!process.ok()) return {};
    core::JsonValue* affinity = find_object(*process, "execCPUAffinity");
    core::JsonValue* initial = affinity == nullptr ? nullptr : find_member(*affinity, "initial");
    if (initial == nullptr || !initial->IsString()) return {};
    return {initial->GetString(), initial->GetStringLength()};
}

}  // namespace

std::string cpu_mask_of(std::string_view cpu_list) {
    auto words = core::parse_cpu_list(cpu_list, kMostCpus);
    if (!words) return {};
    std::string mask;
    for (size_t i = words->size(); i-- > 0;) {
        auto word = static_cast<unsigned long long>((*words)[i]);
        if (mask.empty() && word == 0) continue;
        mask += core::format(mask.empty() ? "%llx" : "%016llx", word);
    }
    return mask.empty() ? mask : "0x" + mask;
}

void note_creation(const Log& log) {
    if (!log.debug()) return;
    log.write("debug",
              "create: the first process entered its cgroup and namespaces (nsexec container setup)");
    log.write("debug", "create: it set up its root file system (child process in init())");
}

void note_start(const Log& log, bool is_exec) {
    if (!log.debug()) return;
    log.write("debug", is_exec ? "exec: it joined the container's namespaces (child process in init())"
                               : "start: its program runs (init: closing the pipe to signal completion)");
    if (is_exec) log.write("debug", "exec: its program runs (setns_init: about to exec)");
}

void note_exec(const Log& log, std::string_view process_json) {
    if (!log.debug()) return;
    log.write("debug", "exec: a process for the container's cgroup is prepared (nsexec container setup)");
    if (std::string mask = cpu_mask_of(initial_cpus(process_json)); !mask.empty())
        log.write("debug", "exec: its CPUs until then (nsexec): affinity: " + mask);
}

}  // namespace berth::ctl
