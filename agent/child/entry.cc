#include "agent/child/entry.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include "agent/child/child.h"

namespace berth::child {

namespace {

constexpr unsigned kLastFd = ~0u;

int run_step(Child& child, const PlanStep& step) {
    using enum core::PlanOp;
    switch (step.op) {
        case kInvalid: return -EINVAL;
        case kSetns: return step_setns(child, step);
        case kUnshare: return step_unshare(child, step);
        case kSetsid: return step_setsid(child, step);
        case kLoopbackUp: return step_loopback_up(child, step);
        case kHostname: return step_hostname(child, step);
        case kDomainname: return step_domainname(child, step);
        case kBecomeNsRoot: return step_become_ns_root(child, step);
        case kFsOpen: return step_fs_open(child, step);
        case kFsString: return step_fs_string(child, step);
        case kFsFlag: return step_fs_flag(child, step);
        case kFsModeOf: return step_fs_mode_of(child, step);
        case kFsMount: return step_fs_mount(child, step);
        case kMountGuest: return step_mount_guest(child, step);
        case kTreeGuest: return step_tree_guest(child, step);
        case kTreeSlot: return step_tree_slot(child, step);
        case kTreeRoot: return step_tree_root(child, step);
        case kTreeTtySlave: return step_tree_tty_slave(child, step);
        case kMountSetattr: return step_mount_setattr(child, step);
        case kMountIdmap: return step_mount_idmap(child, step);
        case kTargetGuest: return step_target_guest(child, step);
        case kTargetDir: return step_target_dir(child, step);
        case kTargetLike: return step_target_like(child, step);
        case kTargetExisting: return step_target_existing(child, step);
        case kMkdirGuest: return step_mkdir_guest(child, step);
        case kAttach: return step_attach(child, step);
        case kSetPropagation: return step_set_propagation(child, step);
        case kEnterRoot: return step_enter_root(child, step);
        case kGuestPropagation: return step_guest_propagation(child, step);
        case kTmpCopyUp: return step_tmp_copy_up(child, step);
        case kNode: return step_node(child, step);
        case kSymlink: return step_symlink(child, step);
        case kCopySymlink: return step_copy_symlink(child, step);
        case kMask: return step_mask(child, step);
        case kReadonlyPath: return step_readonly_path(child, step);
        case kSysctl: return step_sysctl(child, step);
        case kOomScoreAdj: return 0;  // the spawner's
        case kLsmLabel: return step_lsm_label(child, step);
        case kPivotRoot: return step_pivot_root(child, step);
        case kLeaveMounts: return step_leave_mounts(child, step);
        case kRootReadonly: return step_root_readonly(child, step);
        case kRootPropagation: return step_root_propagation(child, step);
        case kPtyOpen: return step_pty_open(child, step);
        case kPtyAttach: return step_pty_attach(child, step);
        case kStdio: return step_stdio(child, step);
        case kStdioOwner: return step_stdio_owner(child, step);
        case kExtraFd: return step_extra_fd(child, step);
        case kRlimit: return step_rlimit(child, step);
        case kSetgroups: return step_setgroups(child, step);
        case kUser: return step_user(child, step);
        case kUmask: return step_umask(child, step);
        case kCwd: return step_cwd(child, step);
        case kHome: return step_home(child, step);
        case kBoundingCaps: return step_bounding_caps(child, step);
        case kCapset: return step_capset(child, step);
        case kAmbientCaps: return step_ambient_caps(child, step);
        case kNoNewPrivs: return step_no_new_privs(child, step);
        case kPersonality: return step_personality(child, step);
        case kScheduler: return step_scheduler(child, step);
        case kIoPriority: return step_io_priority(child, step);
        case kAffinity: return step_affinity(child, step);
        case kMemoryPolicy: return step_memory_policy(child, step);
        case kSessionKeyring: return step_session_keyring(child, step);
        case kSeccomp: return step_seccomp(child, step);
        case kCloseFds: return step_close_fds(child, step);
        case kPdeathsig: return step_pdeathsig(child, step);
        case kKeepMount: return step_keep_mount(child, step);
        case kTreeKept: return step_tree_kept(child, step);
        case kChdirRoot: return step_chdir_root(child, step);
        case kTargetHere: return step_target_here(child, step);
        case kSlotOwner: return step_slot_owner(child, step);
        case kCgroupOwner: return step_cgroup_owner(child, step);
        case kHookPoint: return step_hook_point(child, step);
        case kResolveExe: return step_resolve_exe(child, step);
        case kReady: return step_ready(child, step);
        case kExec: return step_exec(child, step);
    }
    return -EINVAL;
}

// Turns an array of offsets into one of pointers, in place; 0 stays the null at the end.
char** pointers(std::byte* plan, core::PlanArray array) {
    auto* words = reinterpret_cast<uint64_t*>(plan + array.offset);
    for (uint32_t i = 0; i < array.count; ++i) words[i] = reinterpret_cast<uintptr_t>(plan) + words[i];
    static_assert(sizeof(char*) == sizeof(uint64_t));
    return reinterpret_cast<char**>(words);
}

void load(Child& child, std::byte* plan, const int* slot_fds, int fd_count) {
    child.plan = plan;
    child.header = reinterpret_cast<const core::PlanHeader*>(plan);
    child.steps = reinterpret_cast<const PlanStep*>(plan + child.header->steps.offset);
    child.step_count = child.header->steps.count;
    child.slot_count = fd_count;
    for (int i = 0; i < fd_count; ++i) child.slots[i] = slot_fds[i];
    for (int& fd : child.kept) fd = -1;
    child.argv = pointers(plan, child.header->argv);
    child.envp = pointers(plan, child.header->envp);
}

// The keeper's and the agent's limit of descriptors is not for containers.
int reset_nofile(const Child& child) {
    for (uint32_t i = 0; i < child.step_count; ++i) {
        const PlanStep& step = child.steps[i];
        if (step.op == core::PlanOp::kRlimit && step.a == RLIMIT_NOFILE) return 0;
    }
    uint64_t limit[2] = {};
    raw::syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, raw::word(limit));
    // Only ever downwards: what is higher than we have is not ours to give.
    const uint64_t hard = child.header->nofile_hard < limit[1] ? child.header->nofile_hard : limit[1];
    const uint64_t soft = child.header->nofile_soft < hard ? child.header->nofile_soft : hard;
    const uint64_t wanted[2] = {soft, hard};
    return raw::number(raw::syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, raw::word(wanted), 0));
}

}  // namespace

void close_all_but(const int* keep, int keep_count) {
    constexpr int kMax = static_cast<int>(limits::kLaunchPlanFds) + 4;
    int sorted[kMax];
    int count = 0;
    for (int i = 0; i < keep_count && count < kMax; ++i) {
        int at = count;
        if (keep[i] < 3) continue;
        for (; at > 0 && sorted[at - 1] > keep[i]; --at) sorted[at] = sorted[at - 1];
        sorted[at] = keep[i];
        ++count;
    }
    unsigned from = 3;
    for (int i = 0; i < count; ++i) {
        auto kept = static_cast<unsigned>(sorted[i]);
        if (kept > from) raw::syscall(SYS_close_range, from, kept - 1, 0);
        if (kept >= from) from = kept + 1;
    }
    raw::syscall(SYS_close_range, from, kLastFd, 0);
}

namespace {

// Plain signals; modes are set exactly.
void settle_process() {
    raw::prctl(PR_SET_DUMPABLE, 0);
    const uint64_t no_signals = 0;
    raw::syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, raw::word(&no_signals), 0, sizeof(no_signals));
    raw::syscall(SYS_umask, 0);
}

[[noreturn]] void end_at_signal(int signal) {
    raw::exit_group(128 + signal);
}

// The first process of a pid namespace gets no signal that it has no handler for: a container that was
// created and is told to end would wait for its start for ever. execve takes the handlers away.
void end_at_signals() {
    if (raw::syscall(SYS_getpid) != 1) return;
    struct {
        void (*handler)(int);
        unsigned long flags;
        void (*restorer)(int);
        uint64_t mask;
    } const action{end_at_signal, 0x04000000 /* SA_RESTORER */, end_at_signal, 0};
    for (int signal : {1 /* SIGHUP */, 2 /* SIGINT */, 3 /* SIGQUIT */, 15 /* SIGTERM */})
        raw::syscall(SYS_rt_sigaction, signal, raw::word(&action), 0, sizeof(action.mask));
}

// Walks the steps before `end`; a failure is reported.
int walk(Child& child, uint32_t end) {
    int err = 0;
    while (err >= 0 && child.step_index < end) {
        const PlanStep& step = child.steps[child.step_index];
        if (step.op != core::PlanOp::kNode && step.op != core::PlanOp::kSymlink) raw::drop(child.directory);
        err = run_step(child, step);
        if (err == kJump) {
            child.step_index = static_cast<uint32_t>(step.c);
            continue;
        }
        if (err < 0 && (step.flags & core::kIgnoreErrors) != 0) {
            child.kernel_text[0] = '\0';
            err = 0;
        }
        if (err >= 0) ++child.step_index;
    }
    if (err < 0) tell_agent(child, core::ChildMessageType::kFailed, -err, 0, -1);
    return err < 0 ? err : 0;
}

[[noreturn]] void walk_to_the_end(Child& child) {
    end_at_signals();
    int err = reset_nofile(child);
    if (err < 0) tell_agent(child, core::ChildMessageType::kFailed, -err, 0, -1);
    if (err >= 0) err = walk(child, child.step_count);
    raw::exit_group(err < 0 ? core::kExitSetupFailed : 0);  // 0: a helper's work is done
}

}  // namespace

[[noreturn]] void run_child(std::byte* plan, size_t, const int* slot_fds, int fd_count, int go_fd) {
    int keep[limits::kLaunchPlanFds + 1];
    for (int i = 0; i < fd_count; ++i) keep[i] = slot_fds[i];
    keep[fd_count] = go_fd;
    // First of all: a container may be looking at us already.
    close_all_but(keep, fd_count + 1);
    raw::prctl(PR_SET_DUMPABLE, 0);
    if (go_fd >= 0) {
        wait_for_go(go_fd);
        raw::close(go_fd);
    }
    settle_process();
    Child child;
    load(child, plan, slot_fds, fd_count);
    walk_to_the_end(child);
}

long run_stage(std::byte* plan, const int* slot_fds, int fd_count, int go_fd, const int* unneeded,
               int unneeded_count, CloneChild clone, void* context) {
    settle_process();
    Child child;
    load(child, plan, slot_fds, fd_count);
    int err = walk(child, child.header->stage_steps);
    if (err < 0) return err;
    long pid = clone(context);
    if (pid != 0) return pid;
    for (int i = 0; i < unneeded_count; ++i) raw::close(unneeded[i]);
    wait_for_go(go_fd);
    raw::close(go_fd);
    walk_to_the_end(child);
}

}  // namespace berth::child
