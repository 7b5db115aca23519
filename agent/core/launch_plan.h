// The launch plan: everything that a new process does between clone and exec, decided beforehand.
//
// A plan is one flat block of memory: a PlanHeader, then arrays and strings that it names by offset. It is
// written by LaunchPlanBuilder (pure), carried in a sealed memfd or in the request, checked once by
// validate_launch_plan() and walked by child/ with raw syscalls only. One PlanStep is one named operation on
// the child's registers; a failed step is reported by its number and errno, and the agent, which keeps the
// plan, finds the text for it
// (`mount 7 (tmpfs on /run)`).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "agent/core/result.h"

namespace berth::core {

inline constexpr uint32_t kPlanMagic = 0x42505231;  // "BPR1"
inline constexpr int32_t kNoSlot = -1;

// A NUL-terminated string inside the plan; `length` is without the NUL. offset 0 means absent.
struct PlanString {
    uint32_t offset = 0;
    uint32_t length = 0;
};

// `count` elements at `offset`.
struct PlanArray {
    uint32_t offset = 0;
    uint32_t count = 0;
};

// The child's registers: `mount` (a detached mount or file descriptor of one), `target` (an O_PATH descriptor
// where it will go), `root` (the container's root directory), `fs` (an fsopen context), `tty` (a pty's
// slave). A step that fills a register closes what was in it. "In root" means: resolved from `root` with
// openat2(RESOLVE_IN_ROOT|RESOLVE_NO_MAGICLINKS).
enum class PlanOp : uint16_t {
    kInvalid = 0,
    // Namespaces and session.
    kSetns,         // setns(slot, a = CLONE_NEW* flags)
    kUnshare,       // unshare(a)
    kSetsid,        // setsid()
    kLoopbackUp,    // sets IFF_UP on "lo"
    kHostname,      // sethostname(s1)
    kDomainname,    // setdomainname(s1)
    kBecomeNsRoot,  // setresgid(0), setresuid(0), setgroups([]) after entering a new user namespace with
                    // mappings
    // Mount objects -> `mount`.
    kFsOpen,     // fs = fsopen(s1)
    kFsString,   // fsconfig(fs, SET_STRING, s1, s2)
    kFsFlag,     // fsconfig(fs, SET_FLAG, s1)
    kFsMount,    // fsconfig(CREATE), mount = fsmount(fs, a = MOUNT_ATTR_*); the kernel's own text is reported
                 // with a failure
    kTreeGuest,  // mount = open_tree(s1 in the guest, OPEN_TREE_CLONE | a (AT_RECURSIVE)), no magic links; b:
                 // 1 = do not follow a last symlink
    kTreeSlot,   // mount = the slot, a detached tree that the agent made with open_tree(OPEN_TREE_CLONE):
                 // the kernel clones only mounts of the caller's own mount namespace, which a plain
                 // descriptor of the agent's is not for a child in a new one
    kTreeRoot,   // mount = open_tree(s1 in root, OPEN_TREE_CLONE | a); a missing path with b = 1: goto step c
    kTreeTtySlave,  // mount = open_tree(tty, clone): for /dev/console
    kMountSetattr,  // mount_setattr(mount, a = attr_set, b = attr_clr, flags kRecursive); EPERM: again,
                    // without what c has of b (a mount from another user namespace has its attributes locked)
    kMountIdmap,    // mount_setattr(mount, MOUNT_ATTR_IDMAP, userns = slot, flags kRecursive)
    kFsModeOf,      // fsconfig(fs, SET_STRING, "mode", permission bits of the directory s1 in root); nothing
                    // when it does not exist (a tmpfs without mode= takes over the mode of what it covers)
    kMountGuest,  // mount(source, s1, type, a = MS_*, data): for what fsconfig cannot carry (values over 255
                  // bytes). s1 is a path in the guest; s2 is bytes: "TYPE\0SOURCE\0DATA"
    // Targets -> `target`. A target in root that lies on procfs is EPERM (a rootfs may point its paths
    // there), unless the step is kTargetLike with c = 1.
    kTargetGuest,  // target = open(s1 in the guest, O_PATH); created as a directory when missing
    kTargetDir,    // target = s1 in root, a directory; missing components made with mode a; b = 1: no symlink
                   // anywhere
    kTargetLike,   // target = s1 in root, made as a directory or an empty file to match what `mount` is
    kTargetExisting,  // target = s1 in root; a missing path with b = 1: goto step c
    kMkdirGuest,      // mkdir -p s1 in the guest, mode a, owner b:c, no symlinks on the way; existing is fine
    kAttach,          // move_mount(mount -> target); `target` then names the new mount
    kSetPropagation,  // mount_setattr(target, propagation a, flags kRecursive)
    kEnterRoot,       // root = target (a directory)
    kGuestPropagation,  // mount(NULL, "/", NULL, a) in the new mount namespace
    kTmpCopyUp,         // copies the directory s1 in root into the detached tmpfs `mount`
    // Files in root. EPERM when kNode's or kSymlink's directory lies on procfs.
    kNode,         // mknodat(s1, a = S_IFCHR|S_IFBLK|S_IFIFO|mode, b = rdev
                   // as the kernel encodes it), owner c = uid<<32|gid; verified by fd,
                   // mode set exactly
    kSymlink,      // symlinkat(s2 target text, s1 path); existing is kept
    kCopySymlink,  // s1 in the guest, when it is a symlink: the same as s2 in root, and with b = 1 goto step
                   // c; EEXIST when something else is there. What is no symlink is left to the next step
    kMask,  // s1 in root hidden: file under the guest's /dev/null (checked: 1:3), directory under an empty
            // read-only tmpfs; missing is skipped. Before or after kPivotRoot. The slot is not used
    kReadonlyPath,  // s1 in root bound onto itself read-only (a 1: its mount, kRecursive); missing is skipped
    kSysctl,        // writes s2 to s1 ("net/ipv4/ip_forward") below sys/ of the child's own detached procfs
    kOomScoreAdj,  // a (signed) to oom_score_adj: written by the spawner before the go byte, since a child in
                   // a user namespace may not; a failure is the SpawnReply's ("oom_score_adj")
    kLsmLabel,     // writes s1 to self/attr/(s2), in the child's own detached procfs
    // Root switch.
    kPivotRoot,     // fchdir(root), pivot_root(".", "."), umount2(".", MNT_DETACH), chdir("/")
    kLeaveMounts,   // into the mount namespace of the slot with the root that is had: setns, fchdir, chroot.
                    // a = 1: the agent gets a descriptor of the namespace that is left, which nobody else
                    // keeps (kMounts)
    kRootReadonly,  // mount_setattr("/", a, b) after the switch
    kRootPropagation,  // mount("/", a)
    // Terminal.
    kPtyOpen,  // in root /dev/pts/ptmx (on devpts): unlock, tty = TIOCGPTPEER; sends the master to the agent;
               // a = rows, b = cols (both 0: unset); fchown(tty, c); kPlainNewlines: ONLCR off
    kPtyAttach,   // tty -> fds 0, 1, 2 and TIOCSCTTY
    kStdio,       // fd a (0, 1 or 2) = slot; kNoSlot: /dev/null opened in root, or the guest's where root
                  // has none
    kStdioOwner,  // fchown(0, 1, 2 to uid a) unless /dev/null; EROFS and EPERM are fine
    kExtraFd,     // fd a (3 to kPlanExtraFdMax) = slot (LISTEN_FDS, preserved fds); survives kCloseFds
    // The process.
    kRlimit,        // prlimit(a, b = soft, c = hard). The spawner raises the hard limit before the go byte (a
                    // child in a user namespace may not); RLIMIT_NOFILE takes effect right before execve
    kSetgroups,     // setgroups(array s1 as uint32_t[]: offset s1.offset, count s1.length / 4)
    kUser,          // setresgid(b), setresuid(a) with PR_SET_KEEPCAPS when c = 1
    kUmask,         // umask(a); without this step 0022 (the set-up itself runs with 0)
    kCwd,           // s1 below "/": made when missing (b = 1, mode 0755), chdir without magic links, then
                    // getcwd must begin with "/"
    kHome,          // HOME: when the environment has none (or an empty one), the home directory of uid a in
                    // /etc/passwd in root, or "/"
    kBoundingCaps,  // drops from the bounding set every capability that is not in a
    kCapset,        // effective a, permitted b, inheritable c
    kAmbientCaps,   // clears, then raises those of a
    kNoNewPrivs,
    kPersonality,     // personality(a)
    kScheduler,       // sched_setattr from the 56 bytes at s1
    kIoPriority,      // ioprio_set(process, a)
    kAffinity,        // sched_setaffinity from the bytes at s1 (empty: reset to all)
    kMemoryPolicy,    // set_mempolicy(a, the bytes at s1 as a mask of nodes)
    kSessionKeyring,  // keyctl(JOIN_SESSION_KEYRING, s1); ENOSYS, EDQUOT and
                      // EACCES are fine
    kSeccomp,         // seccomp(SET_MODE_FILTER, a = flags, program s1); slot != kNoSlot:
                      // the notify fd goes to the agent
    kCloseFds,        // closes every descriptor from 3 on but the sync socket,
                      // kExtraFd's, and the slots and registers that later steps use,
                      // which are close-on-exec
    kPdeathsig,       // prctl(PR_SET_PDEATHSIG, a)
    // Around the change into a user namespace: a stage before it, which still is
    // the guest's root, makes what the rest could not, and hands it on.
    kKeepMount,    // kept[a] = mount
    kTreeKept,     // mount = kept[a]
    kChdirRoot,    // fchdir(root): a clone with a new mount namespace finds itself in its own copy of it
    kTargetHere,   // target = the working directory
    kSlotOwner,    // fchown(slot, a, b) of a pipe or a terminal; others, and /dev/null, stay as they are
    kCgroupOwner,  // chown(slot and the files in it that s1 names, one a line; missing ones are skipped, a,
                   // b)
    // Talking to the agent.
    kHookPoint,   // tells the agent that hook point a is reached, waits for its go
    kResolveExe,  // finds s1 (absent: argv[0]) on PATH of the plan's environment, as execvp would; fails with
                  // ENOENT, EACCES, or ELOOP (a magic link such as /proc/self/exe)
    kReady,       // tells the agent that the set-up is done, waits for the go of Start
    kExec,        // execve of what kResolveExe found, or argv[0] as it is; only returns on failure
    kLast = kExec,
};

enum PlanStepFlags : uint16_t {
    kRecursive = 1,
    kIgnoreErrors = 2,  // the step's failure is not one (best effort by the spec)
    kPlainNewlines = 4,
};

struct PlanStep {
    PlanOp op = PlanOp::kInvalid;
    uint16_t flags = 0;
    int32_t slot = kNoSlot;  // index into the descriptors that travel with the plan
    uint64_t a = 0;
    uint64_t b = 0;
    uint64_t c = 0;
    PlanString s1;
    PlanString s2;
    PlanString label;  // for errors: "mount 7 (tmpfs on /run)"
};

enum class PlanKind : uint16_t { kContainer = 1, kExec = 2, kHelper = 3 };

// Well-known slots. A plan lists what it wants in its `fds` (FdRequest), index = slot; these are always
// there.
inline constexpr int32_t kSlotSync = 0;    // the child's end of the sync socket (SOCK_SEQPACKET)
inline constexpr int32_t kSlotCgroup = 1;  // the directory that the child is cloned into
inline constexpr uint64_t kPlanExtraFdMax = 1023;

struct PlanHeader {
    uint32_t magic = kPlanMagic;
    uint32_t total_bytes = 0;
    PlanKind kind = PlanKind::kContainer;
    uint16_t fd_count = 0;
    // For the spawner.
    uint16_t use_intermediate =
        0;  // exec into a container that could look at the child: two clones (see spawner)
    uint16_t setgroups_deny = 0;  // write "deny" to setgroups before gid_map
    uint16_t stay_in_cgroup = 0;  // not into slot kSlotCgroup: the spawner's own (hooks)
    uint64_t clone_flags = 0;     // CLONE_NEW* only
    // The intermediate walks the first `stage_steps` steps, itself cloned with `stage_flags` (CLONE_NEWNS),
    // and then clones the child, which walks the others with the same registers. 0: there is no stage.
    uint64_t stage_flags = 0;
    uint32_t stage_steps = 0;
    uint32_t reserved = 0;
    int32_t pid_namespace_slot = kNoSlot;  // joined by the spawner before it clones, left again after
    int32_t time_namespace_slot = kNoSlot;
    int32_t net_namespace_slot = kNoSlot;  // where net_devices go; none: the child's, made with it
    uint32_t reserved2 = 0;
    PlanString uid_map;  // text for /proc/PID/uid_map, written before the go byte;
                         // absent: none
    PlanString gid_map;
    PlanString timens_offsets;
    // For the child. RLIMIT_NOFILE when there is no kRlimit step for it: the kernel's own default for PID 1,
    // since what the keeper needs is not for containers.
    uint64_t nofile_soft = 1024;
    uint64_t nofile_hard = 4096;
    PlanArray steps;        // PlanStep[]; the last is kExec, except in a helper, which
                            // exits 0 after its last step
    PlanArray argv;         // uint64_t[count + 1]: offsets of strings, last 0; turned
                            // into pointers in place
    PlanArray id_maps;      // PlanIdMap[]
    PlanArray net_devices;  // PlanNetDevice[], moved by the spawner before the go byte
    PlanArray envp;         // uint64_t[count + 2]: one spare place for HOME, last 0
};

struct PlanNetDevice {
    PlanString name;
    PlanString new_name;  // may hold one %d
};

// The spawner fills `slot` with a user namespace of these maps, for
// kMountIdmap.
struct PlanIdMap {
    int32_t slot = kNoSlot;
    uint32_t reserved = 0;
    PlanString uid_map;
    PlanString gid_map;
};
static_assert(std::is_trivially_copyable_v<PlanHeader> && std::is_trivially_copyable_v<PlanStep>);

// What the agent must open for a slot.
enum class FdSource : uint8_t {
    kSync,                 // made by the launcher
    kCgroup,               // the container's cgroup (innermost level)
    kCgroupNamespaceRoot,  // a detached tree (open_tree with OPEN_TREE_CLONE) of it, for kTreeSlot
    kStdin,
    kStdout,
    kStderr,
    kNamespacePath,    // `path`, checked with NS_GET_NSTYPE == ns_type
    kInitPidfd,        // pidfd of the container's init, for exec
    kContainerMounts,  // the mount namespace of a container that is in another's (kLeaveMounts)
    kNull,             // a verified /dev/null (1:3)
    kUserNamespace,    // of an id-mapped mount: the spawner makes it (PlanIdMap), any descriptor holds its
                       // place
    kPassed,  // descriptor `ns_type` of those the caller sent with the request; a detached tree of it
              // when it is for kTreeSlot
};

struct FdRequest {
    FdSource source = FdSource::kNull;
    std::string path;
    std::string extra;
    uint64_t ns_type = 0;
    std::string label;  // for errors: "linux.namespaces[2].path"
};

struct LaunchPlan {
    std::vector<std::byte> blob;
    std::vector<FdRequest> fds;

    const PlanHeader& header() const;
    std::span<const PlanStep> steps() const;
    std::string_view text(PlanString string) const;
    // The label of a step for an error message, or the op's name where it has none.
    std::string step_label(uint32_t step_index) const;
};

const char* plan_op_name(PlanOp op);  // "mknod", "move_mount", ...: the syscall or action that failed

class LaunchPlanBuilder {
 public:
    explicit LaunchPlanBuilder(PlanKind kind);

    PlanHeader& header() { return header_; }
    PlanString string(std::string_view text);              // NUL-terminated; the recent ones are shared
    PlanString bytes(std::span<const std::byte> content);  // 8-aligned
    int32_t slot(FdRequest request);                       // the next slot
    // A slot for a user namespace of these maps (texts as /proc/PID/uid_map takes them); one for equal maps.
    int32_t id_map_slot(std::string_view uid_map, std::string_view gid_map);
    void net_device(std::string_view name, std::string_view new_name) {
        net_devices_.push_back({string(name), string(new_name)});
    }
    uint32_t next_step() const { return static_cast<uint32_t>(steps_.size()); }
    // Appends; `label` for people. The returned reference is valid until the next call.
    PlanStep& step(PlanOp op, std::string_view label);
    void argv(std::span<const std::string> arguments) { argv_.assign(arguments.begin(), arguments.end()); }
    void envp(std::span<const std::string> variables) { envp_.assign(variables.begin(), variables.end()); }
    // Patches a forward jump: step `index`'s c = the next step.
    void land_here(uint32_t index) { steps_[index].c = next_step(); }

    // RESOURCE_EXHAUSTED when over limits::kLaunchPlanBytes or kLaunchPlanFds; INVALID_ARGUMENT when a
    // string, an argument or a variable holds a NUL byte. What it returns passes validate_launch_plan(), or
    // the steps contradict the comments above (INTERNAL: a bug of the planner's).
    Result<LaunchPlan> finish() &&;

 private:
    std::string_view text_of(PlanString placed) const;  // of string()
    PlanHeader header_;
    std::vector<PlanStep> steps_;
    std::vector<std::string> argv_;
    std::vector<std::string> envp_;
    std::vector<FdRequest> fds_;
    std::vector<PlanIdMap> id_maps_;
    std::vector<PlanNetDevice> net_devices_;
    std::string pool_;                     // begins right after the header, so that offsets are final
                                           // when they are given out
    std::array<PlanString, 64> recent_{};  // of string(), by hash
    std::string nul_in_;                   // the first string with a NUL byte
};

// True when every offset, slot, jump and op of `blob` is inside its bounds, so that the child can walk it
// blindly. `fd_count` is how many descriptors came with it.
bool validate_launch_plan(std::span<const std::byte> blob, size_t fd_count);

// ---- what the child says on the sync socket (one datagram each), and what it is told ----
enum class ChildMessageType : uint32_t {
    kFailed = 1,         // step_index, err, text (the kernel's own words, from an fs context)
    kReady = 2,          // set-up done; waiting for kGo
    kHook = 3,           // value = hook point; waiting for kGo
    kPty = 4,            // carries the master (SCM_RIGHTS)
    kSeccompNotify = 5,  // carries the listener fd
    kMounts = 6,         // carries the mount namespace that the container's root is in
};
struct ChildMessage {
    ChildMessageType type = ChildMessageType::kFailed;
    uint32_t step_index = 0;
    int32_t err = 0;
    uint32_t value = 0;
    char text[240] = {};
};
inline constexpr char kGoByte =
    'G';  // what the agent answers to kReady and kHook; end of file: the child exits
inline constexpr int kExitSetupFailed = 125;  // the child's exit status when a step failed

}  // namespace berth::core
