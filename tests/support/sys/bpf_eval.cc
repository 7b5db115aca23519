#include "tests/support/sys/bpf_eval.h"

#include <cstring>

namespace berth::test {

std::optional<uint32_t> evaluate(std::span<const sock_filter> program, const seccomp_data& call) {
    uint32_t accumulator = 0;
    uint32_t index = 0;
    uint32_t memory[BPF_MEMWORDS] = {};
    for (size_t at = 0; at < program.size(); ++at) {
        const sock_filter& instruction = program[at];
        bool by_index = BPF_SRC(instruction.code) == BPF_X;
        uint32_t operand = by_index ? index : instruction.k;
        switch (BPF_CLASS(instruction.code)) {
            case BPF_LD:
                if (BPF_MODE(instruction.code) == BPF_IMM) {
                    accumulator = instruction.k;
                } else if (BPF_MODE(instruction.code) == BPF_MEM) {
                    if (instruction.k >= BPF_MEMWORDS) return std::nullopt;
                    accumulator = memory[instruction.k];
                } else {
                    if (instruction.code != (BPF_LD | BPF_W | BPF_ABS)) return std::nullopt;
                    if (instruction.k % 4 != 0 || instruction.k > sizeof(call) - 4) return std::nullopt;
                    std::memcpy(&accumulator, reinterpret_cast<const char*>(&call) + instruction.k, 4);
                }
                break;
            case BPF_ST:
                if (instruction.k >= BPF_MEMWORDS) return std::nullopt;
                memory[instruction.k] = accumulator;
                break;
            case BPF_ALU:
                switch (BPF_OP(instruction.code)) {
                    case BPF_AND: accumulator &= operand; break;
                    case BPF_OR: accumulator |= operand; break;
                    case BPF_ADD: accumulator += operand; break;
                    case BPF_SUB: accumulator -= operand; break;
                    default: return std::nullopt;
                }
                break;
            case BPF_JMP: {
                bool taken = false;
                if (BPF_OP(instruction.code) == BPF_JA) {
                    if (instruction.k >= program.size() - at - 1) return std::nullopt;
                    at += instruction.k;
                    break;
                }
                switch (BPF_OP(instruction.code)) {
                    case BPF_JEQ: taken = accumulator == operand; break;
                    case BPF_JGT: taken = accumulator > operand; break;
                    case BPF_JGE: taken = accumulator >= operand; break;
                    case BPF_JSET: taken = (accumulator & operand) != 0; break;
                    default: return std::nullopt;
                }
                at += taken ? instruction.jt : instruction.jf;
                break;
            }
            case BPF_MISC:
                if (BPF_MISCOP(instruction.code) == BPF_TAX) {
                    index = accumulator;
                } else {
                    accumulator = index;
                }
                break;
            case BPF_RET: return BPF_RVAL(instruction.code) == BPF_A ? accumulator : instruction.k;
            default: return std::nullopt;
        }
    }
    return std::nullopt;
}

}  // namespace berth::test
