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

// Set while any access is left: what an access(F_OK), which asks for no bit, is decided by.
constexpr int32_t kListed = 8;

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

// Skips the rest of the rule (patched by the caller) unless the register holds the value.
bpf_insn skip_unless(int reg, uint32_t value) {
    return instruction(BPF_JMP | BPF_JNE | BPF_K, reg, 0, 0, static_cast<int32_t>(value));
}

// r6 = is_default_device(r4, r5), by numbers alone.
void emit_is_default(std::vector<bpf_insn>& program) {
    auto found = [&] { program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_6, 0, 0, 1)); };
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_6, 0, 0, 0));
    auto one = [&](uint32_t major, uint32_t minor) {
        program.push_back(skip_unless(BPF_REG_4, major));
        program.back().off = 2;
        program.push_back(skip_unless(BPF_REG_5, minor));
        program.back().off = 1;
        found();
    };
    for (const DefaultDevice& device : default_device_nodes()) one(device.major, device.minor);
    one(5, 1);  // console
    one(5, 2);  // ptmx
    program.push_back(instruction(BPF_JMP | BPF_JLT | BPF_K, BPF_REG_4, 0, 2, int32_t{kPtsMajorFirst}));
    program.push_back(instruction(BPF_JMP | BPF_JGT | BPF_K, BPF_REG_4, 0, 1, int32_t{kPtsMajorLast}));
    found();
}

void emit_rule(std::vector<bpf_insn>& program, const FlatDeviceRule& rule) {
    size_t first = program.size();
    if (rule.type != DeviceRuleType::kAll) {
        bool block = rule.type == DeviceRuleType::kBlock;
        program.push_back(skip_unless(BPF_REG_2, block ? BPF_DEVCG_DEV_BLOCK : BPF_DEVCG_DEV_CHAR));
    }
    if (rule.scope != Scope::kEvery) {
        program.push_back(skip_unless(BPF_REG_6, rule.scope == Scope::kDefaults ? 1 : 0));
    }
    if (rule.major) program.push_back(skip_unless(BPF_REG_4, *rule.major));
    if (rule.minor) program.push_back(skip_unless(BPF_REG_5, *rule.minor));
    size_t conditions = program.size();
    int32_t bits = kernel_bits(rule.access);
    if (rule.allow) {
        program.push_back(instruction(BPF_ALU64 | BPF_OR | BPF_K, BPF_REG_0, 0, 0, bits | kListed));
    } else {
        program.push_back(instruction(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_0, 0, 0, ~bits));
        // Nothing left but the mark: not listed any more.
        program.push_back(skip_unless(BPF_REG_0, kListed));
        program.back().off = 1;
        program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0));
    }
    for (size_t i = first; i < conditions; ++i) {
        program[i].off = static_cast<int16_t>(program.size() - i - 1);
    }
}

}  // namespace

Result<std::vector<FlatDeviceRule>> flatten_device_rules(std::span<const DeviceRule> rules,
                                                         std::span<const DeviceNumber> attached) {
    Rules out;
    append_defaults(out);
    for (size_t i = 0; i < rules.size(); ++i) {
        if (rules[i].allow) {
            BERTH_TRY(append_allow(out, rules[i], i, attached));
        } else {
            append_deny(out, rules[i]);
        }
    }
    return out;
}

Result<std::vector<bpf_insn>> build_device_filter(std::span<const DeviceRule> rules,
                                                  std::span<const DeviceNumber> attached) {
    BERTH_ASSIGN(Rules flat, flatten_device_rules(rules, attached));
    std::vector<bpf_insn> program;
    // access_type is (asked << 16) | type.
    program.push_back(load_word(BPF_REG_2, offsetof(bpf_cgroup_dev_ctx, access_type)));
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_3, BPF_REG_2, 0, 0));
    program.push_back(instruction(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_2, 0, 0, 0xffff));
    program.push_back(instruction(BPF_ALU64 | BPF_RSH | BPF_K, BPF_REG_3, 0, 0, 16));
    program.push_back(instruction(BPF_ALU64 | BPF_OR | BPF_K, BPF_REG_3, 0, 0, kListed));
    program.push_back(load_word(BPF_REG_4, offsetof(bpf_cgroup_dev_ctx, major)));
    program.push_back(load_word(BPF_REG_5, offsetof(bpf_cgroup_dev_ctx, minor)));
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0));
    emit_is_default(program);
    for (const FlatDeviceRule& rule : flat) emit_rule(program, rule);
    // Allowed when no asked bit is missing: (~allowed & asked) == 0.
    program.push_back(instruction(BPF_ALU64 | BPF_XOR | BPF_K, BPF_REG_0, 0, 0, -1));
    program.push_back(instruction(BPF_ALU64 | BPF_AND | BPF_X, BPF_REG_3, BPF_REG_0, 0, 0));
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 1));
    program.push_back(instruction(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_3, 0, 1, 0));
    program.push_back(instruction(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0));
    program.push_back(instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0));
    if (program.size() > limits::kDeviceProgramInstructions) {
        return make_error(Code::kResourceExhausted,
                          format("devices: the rules make %zu instructions, more than %zu", program.size(),
                                 limits::kDeviceProgramInstructions));
    }
    return program;
}

}  // namespace berth::core
