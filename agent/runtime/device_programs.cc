#include "agent/runtime/device_programs.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "agent/sys/device_program.h"

namespace berth::runtime {
namespace {

constexpr size_t kProgramsKept = 4;
constexpr size_t kInstructionsKept = 1024;  // longer ones are loaded anew each time

bool equal(std::span<const bpf_insn> a, std::span<const bpf_insn> b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

core::Result<sys::UniqueFd> duplicate(const sys::UniqueFd& program) {
    sys::UniqueFd copy(fcntl(program.get(), F_DUPFD_CLOEXEC, 3));
    if (!copy.valid()) return core::errno_error(errno, "bpf.load");
    return copy;
}

}  // namespace

core::Result<sys::UniqueFd> DevicePrograms::get(std::span<const bpf_insn> instructions) {
    for (const Loaded& known : loaded_) {
        if (equal(known.instructions, instructions)) return duplicate(known.program);
    }
    BERTH_ASSIGN(sys::UniqueFd program, sys::load_device_program(instructions));
    if (instructions.size() > kInstructionsKept) return program;
    BERTH_ASSIGN(sys::UniqueFd copy, duplicate(program));
    if (loaded_.size() == kProgramsKept) loaded_.erase(loaded_.begin());
    loaded_.emplace_back();
    loaded_.back().instructions.assign(instructions.begin(), instructions.end());
    loaded_.back().program = std::move(program);
    return copy;
}

}  // namespace berth::runtime
