#include <algorithm>

#include "agent/core/cgroup_plan.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

using Snapshot = std::map<std::string, std::string, std::less<>>;

// The line of a keyed file ("8:0 rbps=...", "default 100") that begins with `key` and a blank; or empty.
std::string_view line_of(std::string_view content, std::string_view key) {
    for (std::string_view line : split_lines(content)) {
        if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ') return trim(line);
    }
    return {};
}

std::string_view first_word(std::string_view text) {
    return text.substr(0, text.find(' '));
}

// What to write into `done.file` so that it holds again what `content` says; absent when nothing can or need
// be written.
std::optional<std::string> restored_value(const CgroupWrite& done, std::string_view content) {
    std::string_view whole = trim(content);
    std::string key(first_word(done.value));
    if (done.file == "io.max" || done.file == "rdma.max") {
        std::string_view line = line_of(content, key);
        if (!line.empty()) return std::string(line);
        // A device without a line had no limit.
        return key + (done.file == "io.max" ? " rbps=max wbps=max riops=max wiops=max"
                                            : " hca_handle=max hca_object=max");
    }
    if (done.file == "io.weight" || done.file == "io.bfq.weight") {
        if (key.find(':') != std::string::npos) {
            std::string_view line = line_of(content, key);
            return line.empty() ? key + " default" : std::string(line);
        }
        std::string_view line = line_of(content, "default");
        if (!line.empty()) return std::string(line);
        if (whole.empty()) return std::nullopt;
        return std::string(first_word(split_lines(whole).front()));
    }
    if (done.file == "cpuset.cpus" || done.file == "cpuset.mems") {
        // Empty means "as the parent": a bare newline says so, an empty write says nothing.
        return whole.empty() ? std::string("\n") : std::string(whole);
    }
    // A weight reads 0 while the cgroup is idle, and 0 cannot be written.
    if (done.file == "cpu.weight" && whole == "0") return std::nullopt;
    if (whole.empty()) return std::nullopt;
    return std::string(whole);
}

void add(std::vector<CgroupWrite>& writes, std::string_view file, std::string value) {
    CgroupWrite step;
    step.file = file;
    step.label = "cgroup.restore " + step.file + "=" + value;
    step.value = std::move(value);
    step.may_reclaim = file.starts_with("memory.");
    writes.push_back(std::move(step));
}

}  // namespace

std::vector<CgroupWrite> plan_restore(const CgroupPlan& plan, size_t attempted, const Snapshot& snapshot) {
    std::vector<CgroupWrite> writes;
    for (size_t i = std::min(attempted, plan.writes.size()); i-- > 0;) {
        const CgroupWrite& done = plan.writes[i];
        auto content = snapshot.find(done.file);
        if (content == snapshot.end()) continue;
        std::optional<std::string> value = restored_value(done, content->second);
        if (!value) continue;
        add(writes, done.file, std::move(*value));
        if (done.file != "cpu.idle" || done.value != "1") continue;
        // Leaving idle sets the weight to the default: put the old one back behind it.
        auto weight = snapshot.find("cpu.weight");
        if (weight == snapshot.end()) continue;
        std::string_view old = trim(weight->second);
        if (!old.empty() && old != "0") add(writes, "cpu.weight", std::string(old));
    }
    return writes;
}

}  // namespace berth::core
