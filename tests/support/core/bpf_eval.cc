#include "tests/support/core/bpf_eval.h"

#include <cstring>

namespace berth::test {
namespace {

bool jump_taken(int operation, uint64_t left, uint64_t right, bool& known) {
    switch (operation) {
        case BPF_JA: return true;
        case BPF_JEQ: return left == right;
        case BPF_JNE: return left != right;
        case BPF_JGT: return left > right;
        case BPF_JGE: return left >= right;
        case BPF_JLT: return left < right;
        case BPF_JLE: return left <= right;
        default: known = false; return false;
    }
}

bool arithmetic(int operation, uint64_t& value, uint64_t operand) {
    switch (operation) {
        case BPF_MOV: value = operand; return true;
        case BPF_OR: value |= operand; return true;
        case BPF_AND: value &= operand; return true;
        case BPF_XOR: value ^= operand; return true;
        case BPF_RSH: value >>= operand; return operand < 64;
        default: return false;
    }
}

}  // namespace

BpfOutcome run_device_program(std::span<const bpf_insn> program, char type, uint32_t major, uint32_t minor,
                              const char* access) {
    uint32_t asked = 0;
    if (strchr(access, 'm') != nullptr) asked |= BPF_DEVCG_ACC_MKNOD;
    if (strchr(access, 'r') != nullptr) asked |= BPF_DEVCG_ACC_READ;
    if (strchr(access, 'w') != nullptr) asked |= BPF_DEVCG_ACC_WRITE;
    uint32_t kind = type == 'b' ? BPF_DEVCG_DEV_BLOCK : BPF_DEVCG_DEV_CHAR;
    bpf_cgroup_dev_ctx context{};
    context.access_type = asked << 16 | kind;
    context.major = major;
    context.minor = minor;

    uint64_t reg[11] = {};
    bool written[11] = {};
    written[1] = true;  // the context; its address is never computed with here
    for (size_t at = 0; at < program.size(); ++at) {
        const bpf_insn& i = program[at];
        int kind_of = BPF_CLASS(i.code);
        if (i.dst_reg > 9 || i.src_reg > 9) return {};
        if (kind_of == BPF_LDX) {
            bool word = BPF_SIZE(i.code) == BPF_W && BPF_MODE(i.code) == BPF_MEM && i.src_reg == 1;
            if (!word || i.off < 0 || i.off % 4 != 0 || i.off + 4 > static_cast<int>(sizeof(context)))
                return {};
            uint32_t value = 0;
            memcpy(&value, reinterpret_cast<const char*>(&context) + i.off, sizeof(value));
            reg[i.dst_reg] = value;
            written[i.dst_reg] = true;
            continue;
        }
        if (kind_of != BPF_ALU64 && kind_of != BPF_JMP) return {};
        int operation = BPF_OP(i.code);
        if (kind_of == BPF_JMP && operation == BPF_EXIT) return {.valid = written[0], .allowed = reg[0] == 1};
        bool from_register = BPF_SRC(i.code) == BPF_X;
        if (from_register && (!written[i.src_reg] || i.src_reg == 1)) return {};
        uint64_t operand = from_register ? reg[i.src_reg] : static_cast<uint64_t>(int64_t{i.imm});
        if (i.dst_reg == 1) return {};
        if (kind_of == BPF_ALU64) {
            if (operation != BPF_MOV && !written[i.dst_reg]) return {};
            if (!arithmetic(operation, reg[i.dst_reg], operand)) return {};
            written[i.dst_reg] = true;
            continue;
        }
        if (operation != BPF_JA && !written[i.dst_reg]) return {};
        bool known = true;
        if (jump_taken(operation, reg[i.dst_reg], operand, known)) {
            if (i.off < 0 || at + 1 + static_cast<size_t>(i.off) >= program.size()) return {};
            at += static_cast<size_t>(i.off);
        }
        if (!known) return {};
    }
    return {};  // ran off the end
}

}  // namespace berth::test
