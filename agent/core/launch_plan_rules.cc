#include "agent/core/launch_plan_rules.h"

#include <linux/sched.h>

#include <cstring>

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {

namespace {

enum class Operand : uint8_t {
    kUnused,
    kText,       // must be there
    kTextMaybe,  // may be absent
    kBytes,      // 8-aligned, may hold NUL bytes, may be absent when empty
};
enum class SlotNeed : uint8_t { kUnused, kMaybe, kMust };
enum class Jump : uint8_t { kNever, kWhenMissing };  // kWhenMissing: to step c, when b = 1

struct OpRule {
    const char* name = nullptr;
    Operand s1 = Operand::kUnused;
    Operand s2 = Operand::kUnused;
    SlotNeed slot = SlotNeed::kUnused;
    Jump jump = Jump::kNever;
};

constexpr OpRule rule_of(PlanOp op) {
    using enum PlanOp;
    constexpr Operand kNone = Operand::kUnused;
    constexpr Operand kText = Operand::kText;
    constexpr Operand kTextMaybe = Operand::kTextMaybe;
    constexpr Operand kBytes = Operand::kBytes;
    switch (op) {
        case kInvalid: return {};
        case kSetns: return {"setns", kNone, kNone, SlotNeed::kMust, Jump::kNever};
        case kUnshare: return {"unshare"};
        case kSetsid: return {"setsid"};
        case kLoopbackUp: return {"loopback up"};
        case kHostname: return {"sethostname", kText};
        case kDomainname: return {"setdomainname", kText};
        case kBecomeNsRoot: return {"setresuid in the user namespace"};
        case kFsOpen: return {"fsopen", kText};
        case kFsString: return {"fsconfig", kText, kText};
        case kFsFlag: return {"fsconfig", kText};
        case kFsMount: return {"fsmount"};
        case kTreeGuest: return {"open_tree", kText};
        case kTreeSlot: return {"open_tree", kNone, kNone, SlotNeed::kMust, Jump::kNever};
        case kTreeRoot: return {"open_tree", kText, kNone, SlotNeed::kUnused, Jump::kWhenMissing};
        case kTreeTtySlave: return {"open_tree tty"};
        case kMountSetattr: return {"mount_setattr"};
        case kMountIdmap: return {"mount_setattr idmap", kNone, kNone, SlotNeed::kMust, Jump::kNever};
        case kFsModeOf: return {"fsconfig mode", kText};
        case kMountGuest: return {"mount", kText, kBytes};
        case kTargetGuest: return {"open mount target", kText};
        case kTargetDir: return {"open mount target", kText};
        case kTargetLike: return {"open mount target", kText};
        case kTargetExisting:
            return {"open mount target", kText, kNone, SlotNeed::kUnused, Jump::kWhenMissing};
        case kMkdirGuest: return {"mkdir", kText};
        case kAttach: return {"move_mount"};
        case kSetPropagation: return {"mount propagation"};
        case kEnterRoot: return {"enter root"};
        case kGuestPropagation: return {"mount propagation of /"};
        case kTmpCopyUp: return {"tmpcopyup", kText};
        case kNode: return {"mknod", kText};
        case kSymlink: return {"symlink", kText, kText};
        case kCopySymlink: return {"copy symlink", kText, kText, SlotNeed::kUnused, Jump::kWhenMissing};
        case kMask: return {"mask path", kText, kNone, SlotNeed::kMaybe, Jump::kNever};
        case kReadonlyPath: return {"read-only path", kText};
        case kSysctl: return {"sysctl", kText, kText};
        case kOomScoreAdj: return {"oom_score_adj"};
        case kLsmLabel: return {"security label", kText, kText};
        case kPivotRoot: return {"pivot_root"};
        case kLeaveMounts: return {"leave mount namespace", kNone, kNone, SlotNeed::kMust, Jump::kNever};
        case kRootReadonly: return {"read-only root"};
        case kRootPropagation: return {"mount propagation of the root"};
        case kPtyOpen: return {"open pty"};
        case kPtyAttach: return {"controlling terminal"};
        case kStdio: return {"stdio", kNone, kNone, SlotNeed::kMaybe, Jump::kNever};
        case kStdioOwner: return {"fchown stdio"};
        case kExtraFd: return {"place descriptor", kNone, kNone, SlotNeed::kMust, Jump::kNever};
        case kRlimit: return {"prlimit"};
        case kSetgroups: return {"setgroups", kBytes};
        case kUser: return {"setresuid"};
        case kUmask: return {"umask"};
        case kCwd: return {"chdir", kText};
        case kHome: return {"HOME"};
        case kBoundingCaps: return {"capability bounding set"};
        case kCapset: return {"capset"};
        case kAmbientCaps: return {"ambient capabilities"};
        case kNoNewPrivs: return {"no_new_privs"};
        case kPersonality: return {"personality"};
        case kScheduler: return {"sched_setattr", kBytes};
        case kIoPriority: return {"ioprio_set"};
        case kAffinity: return {"sched_setaffinity", kBytes};
        case kMemoryPolicy: return {"set_mempolicy", kBytes};
        case kSessionKeyring: return {"session keyring", kTextMaybe};
        case kSeccomp: return {"seccomp", kBytes, kNone, SlotNeed::kMaybe, Jump::kNever};
        case kCloseFds: return {"close_range"};
        case kPdeathsig: return {"parent death signal"};
        case kKeepMount: return {"keep mount"};
        case kTreeKept: return {"kept mount"};
        case kChdirRoot: return {"chdir to the root"};
        case kTargetHere: return {"open mount target"};
        case kSlotOwner: return {"fchown", kNone, kNone, SlotNeed::kMust, Jump::kNever};
        case kCgroupOwner: return {"chown of the cgroup", kText, kNone, SlotNeed::kMust, Jump::kNever};
        case kHookPoint: return {"hooks"};
        case kResolveExe: return {"find executable", kTextMaybe};
        case kReady: return {"wait for start"};
        case kExec: return {"execve"};
    }
    return {};
}

constexpr uint64_t kNamespaceFlags = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                     CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWTIME;
constexpr uint64_t kRlimitCount = 16;
constexpr uint32_t kFilterBytesMax = 4096 * 8;  // BPF_MAXINSNS instructions
constexpr uint32_t kSchedAttrBytes = 56;
constexpr uint32_t kCpuMaskBytesMax = 1024;

class Checker {
 public:
    Checker(std::span<const std::byte> blob, size_t fd_count) : blob_(blob), fd_count_(fd_count) {}

    std::string flaw() {
        std::string found = header_flaw();
        for (uint32_t i = 0; found.empty() && i < header_.steps.count; ++i) {
            PlanStep step;
            std::memcpy(&step, blob_.data() + header_.steps.offset + size_t{i} * sizeof(step), sizeof(step));
            const char* wrong = step_flaw(step, i);
            if (wrong != nullptr) found = format("step %u (%s): %s", i, plan_op_name(step.op), wrong);
        }
        return found;
    }

 private:
    bool array_ok(PlanArray array, size_t spare, size_t element) const {
        if (array.offset % 8 != 0 || array.offset < sizeof(PlanHeader)) return false;
        uint64_t bytes = (uint64_t{array.count} + spare) * element;
        return bytes <= blob_.size() && array.offset <= blob_.size() - bytes;
    }

    bool ends_in_blob(PlanString string) const {
        // +1: the terminator.
        return string.offset >= sizeof(PlanHeader) && string.offset < blob_.size() &&
               string.length < blob_.size() - string.offset &&
               blob_[size_t{string.offset} + string.length] == std::byte{0};
    }

    bool text_ok(PlanString string) const {
        return ends_in_blob(string) && std::memchr(blob_.data() + string.offset, 0, string.length) == nullptr;
    }

    bool operand_ok(PlanString string, Operand operand) const {
        switch (operand) {
            case Operand::kText: return text_ok(string);
            case Operand::kBytes:
                return string.offset == 0 ? string.length == 0
                                          : ends_in_blob(string) && string.offset % 8 == 0;
            case Operand::kUnused:
            case Operand::kTextMaybe: break;
        }
        return string.offset == 0 ? string.length == 0 : text_ok(string);
    }

    // The strings of argv or envp: offsets, then a zero for the end and for the spare place.
    bool strings_ok(PlanArray array, size_t zeros) const {
        for (size_t i = 0; i < array.count + zeros; ++i) {
            uint64_t offset = 0;
            std::memcpy(&offset, blob_.data() + array.offset + i * sizeof(offset), sizeof(offset));
            if (i >= array.count) {
                if (offset != 0) return false;
                continue;
            }
            if (offset < sizeof(PlanHeader) || offset >= blob_.size()) return false;
            if (std::memchr(blob_.data() + offset, 0, blob_.size() - offset) == nullptr) return false;
        }
        return true;
    }

    bool id_maps_ok() const {
        for (uint32_t i = 0; i < header_.id_maps.count; ++i) {
            PlanIdMap map;
            std::memcpy(&map, blob_.data() + header_.id_maps.offset + size_t{i} * sizeof(map), sizeof(map));
            if (map.slot < 2 || !slot_ok(map.slot)) return false;
            if (!operand_ok(map.uid_map, Operand::kText) || !operand_ok(map.gid_map, Operand::kText))
                return false;
        }
        return true;
    }

    bool net_devices_ok() const {
        constexpr uint32_t kNameBytes = 15;
        for (uint32_t i = 0; i < header_.net_devices.count; ++i) {
            PlanNetDevice device;
            std::memcpy(&device, blob_.data() + header_.net_devices.offset + size_t{i} * sizeof(device),
                        sizeof(device));
            for (PlanString name : {device.name, device.new_name})
                if (!operand_ok(name, Operand::kText) || name.length > kNameBytes) return false;
        }
        return true;
    }

    // "A\0B\0C" with the terminator behind C.
    bool three_texts(PlanString string) const {
        size_t zeros = 0;
        for (uint32_t i = 0; i < string.length; ++i) {
            if (blob_[size_t{string.offset} + i] == std::byte{0}) ++zeros;
        }
        return zeros == 2;
    }

    bool slot_ok(int32_t slot) const {
        return slot == kNoSlot || (slot >= 0 && static_cast<size_t>(slot) < fd_count_);
    }

    std::string header_flaw() {
        if (blob_.size() < sizeof(PlanHeader)) return "shorter than its header";
        if (blob_.size() > limits::kLaunchPlanBytes) return "too large";
        std::memcpy(&header_, blob_.data(), sizeof(header_));
        PlanHeader& h = header_;
        if (h.magic != kPlanMagic) return "wrong magic";
        if (h.total_bytes != blob_.size()) return "total_bytes is not the size";
        if (h.kind != PlanKind::kContainer && h.kind != PlanKind::kExec && h.kind != PlanKind::kHelper) {
            return "unknown kind";
        }
        if (h.fd_count != fd_count_ || fd_count_ > limits::kLaunchPlanFds)
            return "wrong number of descriptors";
        if (fd_count_ < 2) return "the sync socket or the cgroup is missing";
        if ((h.clone_flags & ~kNamespaceFlags) != 0) return "clone_flags hold more than CLONE_NEW*";
        if (!slot_ok(h.pid_namespace_slot) || !slot_ok(h.time_namespace_slot))
            return "namespace slot out of range";
        if (h.pid_namespace_slot != kNoSlot && (h.clone_flags & CLONE_NEWPID) != 0) {
            return "a pid namespace both joined and new";
        }
        if (h.time_namespace_slot != kNoSlot && (h.clone_flags & CLONE_NEWTIME) != 0) {
            return "a time namespace both joined and new";
        }
        for (PlanString text : {h.uid_map, h.gid_map, h.timens_offsets}) {
            if (!operand_ok(text, Operand::kTextMaybe)) return "map or offsets out of bounds";
        }
        bool new_user = (h.clone_flags & CLONE_NEWUSER) != 0;
        if (!new_user && (h.uid_map.offset != 0 || h.gid_map.offset != 0 || h.setgroups_deny != 0)) {
            return "mappings without CLONE_NEWUSER";
        }
        if (h.timens_offsets.offset != 0 && (h.clone_flags & CLONE_NEWTIME) == 0) {
            return "time offsets without CLONE_NEWTIME";
        }
        if (h.use_intermediate > 1 || h.setgroups_deny > 1 || h.stay_in_cgroup > 1)
            return "flag is neither 0 nor 1";
        // The intermediate clones; it can write nothing for a child that waits for mappings.
        if (h.use_intermediate == 1 && h.clone_flags != 0 && h.stage_steps == 0)
            return "an intermediate with new namespaces and no stage";
        if (h.stage_steps != 0 && (h.use_intermediate == 0 || h.stage_steps >= h.steps.count))
            return "a stage without an intermediate, or without a rest";
        if ((h.stage_flags & ~uint64_t{CLONE_NEWNS}) != 0) return "stage_flags hold more than CLONE_NEWNS";
        if (h.stage_flags != 0 && h.stage_steps == 0) return "stage_flags without a stage";
        if (h.nofile_soft > h.nofile_hard) return "nofile_soft above nofile_hard";
        if (!array_ok(h.steps, 0, sizeof(PlanStep))) return "steps out of bounds";
        if (!array_ok(h.id_maps, 0, sizeof(PlanIdMap)) || h.id_maps.count > limits::kPlanIdMaps)
            return "id maps out of bounds";
        if (!id_maps_ok()) return "id map is malformed";
        if (!array_ok(h.net_devices, 0, sizeof(PlanNetDevice)) || h.net_devices.count > limits::kNetDevices ||
            !slot_ok(h.net_namespace_slot))
            return "net devices out of bounds";
        if (!net_devices_ok()) return "net device is malformed";
        if (!array_ok(h.argv, 1, sizeof(uint64_t))) return "argv out of bounds";
        if (!array_ok(h.envp, 2, sizeof(uint64_t))) return "envp out of bounds";
        if (!strings_ok(h.argv, 1)) return "argv names a string out of bounds";
        if (!strings_ok(h.envp, 2)) return "envp names a string out of bounds";
        return ending_flaw();
    }

    std::string ending_flaw() const {
        // The child turns argv and envp into pointers in place: nothing else may lie there.
        uint64_t steps_end = header_.steps.offset + uint64_t{header_.steps.count} * sizeof(PlanStep);
        uint64_t argv_end = header_.argv.offset + (uint64_t{header_.argv.count} + 1) * sizeof(uint64_t);
        uint64_t envp_end = header_.envp.offset + (uint64_t{header_.envp.count} + 2) * sizeof(uint64_t);
        if (header_.argv.offset < steps_end || header_.envp.offset < argv_end ||
            header_.id_maps.offset < envp_end || header_.net_devices.offset < envp_end)
            return "arrays overlap";
        if (header_.kind == PlanKind::kHelper) return {};
        if (header_.steps.count == 0) return "no steps";
        PlanStep last;
        std::memcpy(&last, blob_.data() + steps_end - sizeof(last), sizeof(last));
        if (last.op != PlanOp::kExec) return "the last step is not execve";
        return {};
    }

    const char* step_flaw(const PlanStep& step, uint32_t index) const {
        if (step.op == PlanOp::kInvalid || step.op > PlanOp::kLast) return "unknown op";
        OpRule rule = rule_of(step.op);
        int known = kRecursive | kIgnoreErrors | (step.op == PlanOp::kPtyOpen ? kPlainNewlines : 0);
        if ((step.flags & ~known) != 0) return "unknown flags";
        if (!operand_ok(step.label, Operand::kTextMaybe)) return "label out of bounds";
        if (!operand_ok(step.s1, rule.s1)) return "s1 is missing or out of bounds";
        if (!operand_ok(step.s2, rule.s2)) return "s2 is missing or out of bounds";
        if (!slot_ok(step.slot)) return "slot out of range";
        if (rule.slot == SlotNeed::kMust && step.slot == kNoSlot) return "slot is missing";
        if (rule.jump == Jump::kWhenMissing && step.b == 1 &&
            (step.c <= index || step.c > header_.steps.count)) {
            return "jump is not forward";
        }
        return value_flaw(step);
    }

    const char* value_flaw(const PlanStep& step) const {
        // Only ops whose operands the child uses without the kernel's checking them.
        if ((step.op == PlanOp::kResolveExe || step.op == PlanOp::kExec) && header_.argv.count == 0) {
            return "no arguments";
        }
        if (step.op == PlanOp::kStdio && step.a > 2) return "not a stdio descriptor";
        if (step.op == PlanOp::kExtraFd && (step.a < 3 || step.a > kPlanExtraFdMax)) {
            return "descriptor number out of range";
        }
        if (step.op == PlanOp::kRlimit && (step.a >= kRlimitCount || step.b > step.c))
            return "limit out of range";
        if (step.op == PlanOp::kPtyOpen && (step.a > 0xFFFF || step.b > 0xFFFF)) return "size out of range";
        if ((step.op == PlanOp::kKeepMount || step.op == PlanOp::kTreeKept) && step.a >= limits::kKeptMounts)
            return "place of a kept mount out of range";
        if (step.op == PlanOp::kMountGuest && !three_texts(step.s2)) return "s2 is not three strings";
        if (step.op == PlanOp::kSetgroups &&
            (step.s1.length % 4 != 0 || step.s1.length / 4 > limits::kGroups)) {
            return "group list of the wrong size";
        }
        if (step.op == PlanOp::kSeccomp &&
            (step.s1.length == 0 || step.s1.length % 8 != 0 || step.s1.length > kFilterBytesMax)) {
            return "filter of the wrong size";
        }
        if (step.op == PlanOp::kScheduler && step.s1.length != kSchedAttrBytes)
            return "sched_attr of the wrong size";
        if (step.op == PlanOp::kMemoryPolicy && step.s1.length > limits::kMemoryNodes / 8)
            return "node mask too large";
        if (step.op == PlanOp::kAffinity && step.s1.length > kCpuMaskBytesMax) return "CPU mask too large";
        return nullptr;
    }

    std::span<const std::byte> blob_;
    size_t fd_count_;
    PlanHeader header_;
};

}  // namespace

const char* plan_op_name(PlanOp op) {
    const char* name = rule_of(op).name;
    return name == nullptr ? "unknown op" : name;
}

std::string launch_plan_flaw(std::span<const std::byte> blob, size_t fd_count) {
    return Checker(blob, fd_count).flaw();
}

bool validate_launch_plan(std::span<const std::byte> blob, size_t fd_count) {
    return launch_plan_flaw(blob, fd_count).empty();
}

}  // namespace berth::core
