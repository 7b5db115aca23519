#include "specs.h"

#include <cstdio>

#include "agent/core/json.h"
#include "agent/core/text.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>
#pragma GCC diagnostic pop

namespace berth::test {
namespace {

using core::JsonValue;

void merge(JsonValue& target, const JsonValue& patch, rapidjson::Document::AllocatorType& allocator) {
    if (!target.IsObject()) target.SetObject();
    for (auto member = patch.MemberBegin(); member != patch.MemberEnd(); ++member) {
        if (member->value.IsNull()) {
            target.RemoveMember(member->name);
            continue;
        }
        if (!target.HasMember(member->name))
            target.AddMember(JsonValue(member->name, allocator), JsonValue(), allocator);
        JsonValue& slot = target[member->name];
        if (member->value.IsObject() && member->value.MemberCount() > 0)
            merge(slot, member->value, allocator);
        else
            slot.CopyFrom(member->value, allocator);
    }
}

const char* source_name(core::FdSource source) {
    switch (source) {
        case core::FdSource::kSync: return "sync";
        case core::FdSource::kCgroup: return "cgroup";
        case core::FdSource::kCgroupNamespaceRoot: return "cgroup tree";
        case core::FdSource::kStdin: return "stdin";
        case core::FdSource::kStdout: return "stdout";
        case core::FdSource::kStderr: return "stderr";
        case core::FdSource::kNamespacePath: return "namespace path";
        case core::FdSource::kInitPidfd: return "init pidfd";
        case core::FdSource::kContainerMounts: return "mounts of the container";
        case core::FdSource::kNull: return "null";
        case core::FdSource::kUserNamespace: return "user namespace";
        case core::FdSource::kPassed: return "passed";
    }
    return "?";
}

bool takes_bytes(core::PlanOp op) {
    return op == core::PlanOp::kSeccomp || op == core::PlanOp::kScheduler || op == core::PlanOp::kSetgroups ||
           op == core::PlanOp::kAffinity;
}

std::string step_text(const core::LaunchPlan& plan, const core::PlanStep& step) {
    std::string line = core::plan_op_name(step.op);
    if (takes_bytes(step.op) && step.s1.length > 0)
        line += core::format(" <%u bytes>", step.s1.length);
    else if (step.s1.offset != 0)
        line += " " + core::quoted(plan.text(step.s1));
    if (step.s2.offset != 0) line += " " + core::quoted(plan.text(step.s2));
    const std::pair<const char*, uint64_t> operands[] = {{"a", step.a}, {"b", step.b}, {"c", step.c}};
    for (const auto& [name, value] : operands)
        if (value != 0) line += core::format(" %s=0x%llx", name, static_cast<unsigned long long>(value));
    if (step.slot != core::kNoSlot) line += core::format(" slot=%d", step.slot);
    if (step.flags & core::kRecursive) line += " recursive";
    if (step.flags & core::kIgnoreErrors) line += " errors-ignored";
    if (step.label.offset != 0) line += "  # " + std::string(plan.text(step.label));
    return line;
}

}  // namespace

std::string read_spec(std::string_view name) {
    std::string path = std::string(BERTH_SOURCE_DIR "/tests/data/specs/") + std::string(name);
    std::string text;
    FILE* file = fopen(path.c_str(), "re");
    if (!file) return text;
    char buffer[4096];
    while (size_t count = fread(buffer, 1, sizeof(buffer), file)) text.append(buffer, count);
    fclose(file);
    return text;
}

std::string base_spec() {
    return R"({
        "ociVersion": "1.2.0",
        "process": {"args": ["sh"], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}},
        "root": {"path": "/srv/image"},
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "uts"}, {"type": "ipc"},
                                 {"type": "network"}]}
    })";
}

std::string patched(std::string_view json, std::string_view patch) {
    auto document = core::parse_json(json);
    auto change = core::parse_json(patch);
    if (!document.ok() || !change.ok()) return "a test's JSON is wrong";
    merge(*document, *change, document->GetAllocator());
    rapidjson::StringBuffer buffer;
    rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
    document->Accept(writer);
    return {buffer.GetString(), buffer.GetSize()};
}

core::GuestFacts guest() {
    core::GuestFacts facts;
    facts.filesystems = {{"fuse", false}, {"btrfs", true}};
    facts.block_devices = {{"image", "/dev/vda"}, {"scratch", "/dev/vdb"}, {"", "/dev/vdc"}};
    return facts;
}

core::SeccompProgram filter_of(uint32_t value) {
    core::SeccompProgram program;
    program.filter.resize(8);
    program.filter[4] = static_cast<std::byte>(value);
    return program;
}

core::ContainerLaunch launch_of(const core::ContainerSpec& spec, const core::GuestFacts& facts) {
    core::ContainerLaunch launch;
    launch.spec = &spec;
    launch.facts = &facts;
    launch.id = "web";
    launch.bundle_dir = "/run/berth/bundles/web";
    for (core::StdioStream& stream : launch.stdio.streams) stream.mode = core::StdioMode::kPipe;
    launch.seccomp.own = filter_of(1);
    return launch;
}

std::string plan_text(const core::LaunchPlan& plan) {
    const core::PlanHeader& header = plan.header();
    std::string text =
        core::format("clone_flags 0x%llx", static_cast<unsigned long long>(header.clone_flags));
    if (header.pid_namespace_slot != core::kNoSlot)
        text += core::format(" pid_slot %d", header.pid_namespace_slot);
    if (header.use_intermediate) text += " intermediate";
    text += "\n";
    for (size_t i = 2; i < plan.fds.size(); ++i) {
        text += core::format("slot %zu: %s", i, source_name(plan.fds[i].source));
        if (!plan.fds[i].path.empty()) text += " " + plan.fds[i].path;
        if (plan.fds[i].ns_type != 0)
            text += core::format(" 0x%llx", static_cast<unsigned long long>(plan.fds[i].ns_type));
        text += "\n";
    }
    for (const core::PlanStep& step : plan.steps()) text += step_text(plan, step) + "\n";
    return text;
}

int find_step(const core::LaunchPlan& plan, core::PlanOp op, std::string_view s1) {
    for (size_t i = 0; i < plan.steps().size(); ++i) {
        const core::PlanStep& step = plan.steps()[i];
        if (step.op == op && (s1.empty() || plan.text(step.s1) == s1)) return static_cast<int>(i);
    }
    return -1;
}

}  // namespace berth::test
