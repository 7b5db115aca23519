#include "agent/runtime/device_programs.h"

#include <algorithm>
#include <cstring>

#include "agent/core/limits.h"
#include "agent/sys/device_program.h"

namespace berth::runtime {
namespace {

bool equal(std::span<const bpf_insn> a, std::span<const bpf_insn> b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

core::Result<std::shared_ptr<const DeviceProgram>> DevicePrograms::get(std::vector<bpf_insn> instructions) {
    for (const auto& known : kept_) {
        if (equal(known->instructions, instructions)) return known;
    }
    auto program = std::make_shared<DeviceProgram>();
    BERTH_ASSIGN(program->fd, sys::load_device_program(instructions));
    program->instructions = std::move(instructions);
    return std::shared_ptr<const DeviceProgram>(std::move(program));
}

void DevicePrograms::keep(std::shared_ptr<const DeviceProgram> program) {
    if (program->instructions.size() > limits::kDeviceProgramKeptInstructions) return;
    if (std::find(kept_.begin(), kept_.end(), program) != kept_.end()) return;
    if (kept_.size() >= limits::kDeviceProgramsKept) kept_.erase(kept_.begin());
    kept_.push_back(std::move(program));
}

}  // namespace berth::runtime
