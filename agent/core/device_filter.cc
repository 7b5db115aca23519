#include "agent/core/device_filter.h"

#include <algorithm>

#include "agent/core/device_nodes.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

using Rules = std::vector<FlatDeviceRule>;
using Scope = FlatDeviceRule::Scope;

void append_defaults(Rules& out) {
    constexpr DeviceRuleType kChar = DeviceRuleType::kChar;
    out.push_back({.allow = true, .type = kChar, .scope = Scope::kDefaults, .access = kAccessAll});
    out.push_back({.allow = true, .type = kChar, .access = kAccessMknod});
}

bool matches(const DeviceRule& rule, const DeviceNumber& device) {
    return (!rule.major || *rule.major == device.major) && (!rule.minor || *rule.minor == device.minor);
}

Status append_allow(Rules& out, const DeviceRule& rule, size_t index,
                    std::span<const DeviceNumber> attached) {
    FlatDeviceRule flat{.allow = true, .major = rule.major, .minor = rule.minor, .access = rule.access};
    if (rule.type != DeviceRuleType::kBlock) {
        flat.type = DeviceRuleType::kChar;
        out.push_back(flat);
    }
    if (rule.type == DeviceRuleType::kChar) return ok();
    flat.type = DeviceRuleType::kBlock;
    bool is_attached = std::any_of(attached.begin(), attached.end(),
                                   [&](const DeviceNumber& device) { return matches(rule, device); });
    if (rule.type == DeviceRuleType::kBlock) {
        bool opens = (rule.access & (kAccessRead | kAccessWrite)) != 0;
        if (rule.major && rule.minor && opens && !is_attached) {
            return make_error(
                Code::kPermissionDenied,
                format("devices[%zu]: block device %u:%u is not attached to this guest by its host", index,
                       *rule.major, *rule.minor));
        }
        flat.access = rule.access & kAccessMknod;
        if (flat.access != 0) out.push_back(flat);
    }
    flat.access = rule.access;
    for (const DeviceNumber& device : attached) {
        if (!matches(rule, device)) continue;
        flat.major = device.major;
        flat.minor = device.minor;
        out.push_back(flat);
    }
    return ok();
}

void append_deny(Rules& out, const DeviceRule& rule) {
    FlatDeviceRule flat{.type = rule.type, .major = rule.major, .minor = rule.minor, .access = rule.access};
    if (rule.major || rule.minor || rule.type == DeviceRuleType::kBlock) {
        out.push_back(flat);
        return;
    }
    // Every number: spares the defaults, which are all character devices.
    if (rule.type == DeviceRuleType::kAll) {
        flat.type = DeviceRuleType::kBlock;
        out.push_back(flat);
    }
    flat.type = DeviceRuleType::kChar;
    flat.scope = Scope::kNotDefaults;
    flat.access = rule.access & (kAccessRead | kAccessWrite);
    if (flat.access != 0) out.push_back(flat);
}

// ---- instructions ----
// r1 context, r2 type, r3 asked, r4 major, r5 minor, r6 1 for a default node, r0 what is allowed so far.
// r7 is zero, but made so that the verifier does not know it: a value that it knows makes it tell apart every
// way through the rules, and give up on a long list. For the same reason a comparison jumps where it holds:
// the way on, where nothing is known, is looked at first, and covers the other.

bpf_insn instruction(int code, int destination, int source, int offset, int32_t immediate) {
    bpf_insn result{};
    result.code = static_cast<uint8_t>(code);
    result.dst_reg = static_cast<uint8_t>(destination & 15);
    result.src_reg = static_cast<uint8_t>(source & 15);
    result.off = static_cast<int16_t>(offset);
    result.imm = immediate;
    return result;
}

bpf_insn load_word(int destination, size_t offset) {
    return instruction(BPF_LDX | BPF_MEM | BPF_W, destination, BPF_REG_1, static_cast<int>(offset), 0);
}

int32_t kernel_bits(uint8_t access) {
    int32_t bits = 0;
    if ((access & kAccessMknod) != 0) bits |= BPF_DEVCG_ACC_MKNOD;
    if ((access & kAccessRead) != 0) bits |= BPF_DEVCG_ACC_READ;
    if ((access & kAccessWrite) != 0) bits |= BPF_DEVCG_ACC_WRITE;
    return bits;
}

using Program = std::vector<bpf_insn>;

bpf_insn move(int destination, int32_t value) {
    return instruction(BPF_ALU64 | BPF_MOV | BPF_K, destination, 0, 0, value);
}

// Goes on when the register holds the value. Else jumps to where skip_to_here() puts it.
void unless_equal(Program& program, int reg, uint32_t value) {
    program.push_back(instruction(BPF_JMP | BPF_JEQ | BPF_K, reg, 0, 1, static_cast<int32_t>(value)));
    program.push_back(instruction(BPF_JMP | BPF_JA, 0, 0, 0, 0));
}

// Lands the open jumps since `first`.
void skip_to_here(Program& program, size_t first) {
    for (size_t i = first; i < program.size(); ++i) {
        if (program[i].code != (BPF_JMP | BPF_JA)) continue;
        program[i].off = static_cast<int16_t>(program.size() - i - 1);
    }
}

// r6 = is_default_device(r4, r5), by numbers alone.
void emit_is_default(Program& program) {
    program.push_back(move(BPF_REG_6, 0));
    auto one = [&](uint32_t major, uint32_t minor) {
        size_t first = program.size();
        unless_equal(program, BPF_REG_4, major);
        unless_equal(program, BPF_REG_5, minor);
        program.push_back(move(BPF_REG_6, 1));
        skip_to_here(program, first);
    };
    for (const DefaultDevice& device : default_device_nodes()) one(device.major, device.minor);
    one(5, 1);  // console
    one(5, 2);  // ptmx
    program.push_back(instruction(BPF_JMP | BPF_JLT | BPF_K, BPF_REG_4, 0, 2, int32_t{kPtsMajorFirst}));
    program.push_back(instruction(BPF_JMP | BPF_JGT | BPF_K, BPF_REG_4, 0, 1, int32_t{kPtsMajorLast}));
    program.push_back(move(BPF_REG_6, 1));
    program.push_back(instruction(BPF_ALU64 | BPF_XOR | BPF_X, BPF_REG_6, BPF_REG_7, 0, 0));
}

void emit_rule(Program& program, const FlatDeviceRule& rule) {
    size_t first = program.size();
    if (rule.type != DeviceRuleType::kAll) {
        bool block = rule.type == DeviceRuleType::kBlock;
        unless_equal(program, BPF_REG_2, block ? BPF_DEVCG_DEV_BLOCK : BPF_DEVCG_DEV_CHAR);
    }
    if (rule.scope != Scope::kEvery) unless_equal(program, BPF_REG_6, rule.scope == Scope::kDefaults ? 1 : 0);
    if (rule.major) unless_equal(program, BPF_REG_4, *rule.major);
    if (rule.minor) unless_equal(program, BPF_REG_5, *rule.minor);
    int32_t bits = kernel_bits(rule.access);
    program.push_back(rule.allow ? instruction(BPF_ALU64 | BPF_OR | BPF_K, BPF_REG_0, 0, 0, bits)
                                 : instruction(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_0, 0, 0, ~bits));
    skip_to_here(program, first);
}

// Not one bit left: no. Else yes when no asked bit is missing: (~allowed & asked) == 0.
void emit_verdict(Program& program) {
    program.push_back(instruction(BPF_ALU64 | BPF_XOR | BPF_X, BPF_REG_0, BPF_REG_7, 0, 0));
    program.push_back(instruction(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_0, 0, 2, 0));
    program.push_back(move(BPF_REG_0, 0));
    program.push_back(instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0));
    program.push_back(instruction(BPF_ALU64 | BPF_XOR | BPF_K, BPF_REG_0, 0, 0, -1));
    program.push_back(instruction(BPF_ALU64 | BPF_AND | BPF_X, BPF_REG_3, BPF_REG_0, 0, 0));
    program.push_back(move(BPF_REG_0, 1));
    program.push_back(instruction(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_3, 0, 1, 0));
    program.push_back(move(BPF_REG_0, 0));
    program.push_back(instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0));
}

}  // namespace

Result<std::vector<FlatDeviceRule>> flatten_device_rules(std::span<const DeviceRule> rules,
                                                         std::span<const DeviceNumber> attached,
                                                         BlockDevices blocks) {
    Rules out;
    append_defaults(out);
    for (size_t i = 0; i < rules.size(); ++i) {
        const DeviceRule& rule = rules[i];
        if (rule.allow && blocks == BlockDevices::kEvery) {
            out.push_back({.allow = true,
                           .type = rule.type,
                           .major = rule.major,
                           .minor = rule.minor,
                           .access = rule.access});
        } else if (rule.allow) {
            BERTH_TRY(append_allow(out, rules[i], i, attached));
        } else {
            append_deny(out, rules[i]);
        }
    }
    return out;
}

Result<std::vector<bpf_insn>> build_device_filter(std::span<const DeviceRule> rules,
                                                  std::span<const DeviceNumber> attached,
                                                  BlockDevices blocks) {
    BERTH_ASSIGN(Rules flat, flatten_device_rules(rules, attached, blocks));
    Program program;
    // access_type is (asked << 16) | type.
    program.push_back(load_word(BPF_REG_2, offsetof(bpf_cgroup_dev_ctx, access_type)));
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_3, BPF_REG_2, 0, 0));
    program.push_back(instruction(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_2, 0, 0, 0xffff));
    program.push_back(instruction(BPF_ALU64 | BPF_RSH | BPF_K, BPF_REG_3, 0, 0, 16));
    program.push_back(load_word(BPF_REG_4, offsetof(bpf_cgroup_dev_ctx, major)));
    program.push_back(load_word(BPF_REG_5, offsetof(bpf_cgroup_dev_ctx, minor)));
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_7, BPF_REG_3, 0, 0));
    program.push_back(instruction(BPF_ALU64 | BPF_XOR | BPF_X, BPF_REG_7, BPF_REG_3, 0, 0));
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_0, BPF_REG_7, 0, 0));
    emit_is_default(program);
    for (const FlatDeviceRule& rule : flat) emit_rule(program, rule);
    emit_verdict(program);
    if (program.size() > limits::kDeviceProgramInstructions) {
        return make_error(Code::kResourceExhausted,
                          format("devices: the rules make %zu instructions, more than %zu", program.size(),
                                 limits::kDeviceProgramInstructions));
    }
    return program;
}

}  // namespace berth::core
