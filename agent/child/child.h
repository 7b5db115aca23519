// The child's registers and its steps. Only for child/.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

#include "agent/child/raw.h"
#include "agent/core/launch_plan.h"
#include "agent/core/limits.h"

namespace berth::child {

using core::PlanStep;
using core::PlanString;

inline constexpr size_t kPathSize = limits::kPathBytes + 1;

// What a step returns: 0, -errno, or kJump: go on at step c.
inline constexpr int kJump = 1;

struct Child {
    std::byte* plan = nullptr;
    const core::PlanHeader* header = nullptr;
    const PlanStep* steps = nullptr;
    uint32_t step_count = 0;
    uint32_t step_index = 0;

    int slots[limits::kLaunchPlanFds];  // -1: closed
    int slot_count = 0;
    // The registers of launch_plan.h, -1 = empty.
    int mount = -1;
    int target = -1;
    int root = -1;
    int fs = -1;
    int tty = -1;
    // Of the last kNode or kSymlink, for the next one; any other step empties it.
    int directory = -1;
    const char* directory_path = nullptr;  // begins with its path...
    size_t directory_length = 0;           // ...of this length
    int null_stdio = -1;                   // 0, 1 or 2, when a kStdio step put the root's /dev/null there
    // Made when first needed.
    int proc = -1;                  // a procfs of our own pid namespace that nothing was mounted over
    int null_mount = -1;            // the guest's /dev/null: a detached tree, attached by the first kMask
    int mask_mount = -1;            // an empty read-only tmpfs, likewise
    int kept[limits::kKeptMounts];  // of kKeepMount
    bool null_attached = false;
    bool mask_attached = false;
    bool root_switched = false;
    bool at_root = false;   // the working directory is the root: an exec, until it leaves for its own
    bool filtered = false;  // a seccomp filter is loaded: only old, plain system calls from here on
    bool umask_set = false;
    bool nofile_set = false;
    uint64_t nofile_soft = 0;
    uint64_t nofile_hard = 0;

    char** argv = nullptr;
    char** envp = nullptr;
    const char* executable = nullptr;

    char kernel_text[sizeof(core::ChildMessage::text)] = {};
    char path[kPathSize];             // a step's own use
    char home[kPathSize + 8];         // "HOME=..."
    char executable_path[kPathSize];  // what kResolveExe found

    const char* text(PlanString string) const {
        return string.offset == 0 ? "" : reinterpret_cast<const char*>(plan) + string.offset;
    }
    const std::byte* bytes(PlanString string) const { return plan + string.offset; }
    int slot(const PlanStep& step) const { return step.slot == core::kNoSlot ? -1 : slots[step.slot]; }
    int sync() const { return slots[core::kSlotSync]; }
};

// Puts `fd` into a register, closing what was there; hands on the errno when it is one.
inline int fill(int& place, int fd) {
    if (fd < 0) return fd;
    raw::drop(place);
    place = fd;
    return 0;
}

// ---- text.cc ----
size_t length_of(const char* text);
bool starts_with(const char* text, const char* prefix);
// Writes `value` in decimal and a NUL; `out` has room for 21 bytes. Returns the length.
size_t put_decimal(char* out, uint64_t value);
void copy_bytes(char* to, const char* from, size_t count);

// ---- paths.cc: paths in root ----
// O_PATH descriptors, or -errno. `resolve` is added to IN_ROOT|NO_MAGICLINKS.
int root_of(Child& child);
int open_in_root(Child& child, const char* path, uint64_t flags, uint64_t resolve = 0);
enum class Leaf : uint8_t { kDirectory, kFile };
// Opens `path` in root (O_PATH), and makes what is missing: directories with `mode`, and a last component as
// `leaf` says. Symlinks are followed inside root, dangling ones too; what exists is taken as it is.
int make_in_root(Child& child, const char* path, Leaf leaf, unsigned mode, uint64_t resolve = 0);
// False for "", "." and "..".
bool is_plain_name(const char* name);
// Opens (and makes) the directory of `path` in root; `*name` is its last component, or the step fails with
// EINVAL.
int open_parent(Child& child, const char* path, const char** name);
int make_directories(const char* path, unsigned mode);  // plain mkdir -p
bool on_procfs(int fd);
bool is_null_device(const struct stat& status);
int stat_of(int fd, struct stat* status);
// A detached procfs of the child's pid namespace.
int own_procfs(Child& child);
int set_mode(Child& child, int path_fd, unsigned mode);

// ---- the steps ----
int step_setns(Child&, const PlanStep&);
int step_unshare(Child&, const PlanStep&);
int step_setsid(Child&, const PlanStep&);
int step_loopback_up(Child&, const PlanStep&);
int step_hostname(Child&, const PlanStep&);
int step_domainname(Child&, const PlanStep&);
int step_become_ns_root(Child&, const PlanStep&);
int step_fs_open(Child&, const PlanStep&);
int step_fs_string(Child&, const PlanStep&);
int step_fs_flag(Child&, const PlanStep&);
int step_fs_mode_of(Child&, const PlanStep&);
int step_fs_mount(Child&, const PlanStep&);
int step_mount_guest(Child&, const PlanStep&);
int step_tree_guest(Child&, const PlanStep&);
int step_tree_slot(Child&, const PlanStep&);
int step_tree_root(Child&, const PlanStep&);
int step_tree_tty_slave(Child&, const PlanStep&);
int step_mount_setattr(Child&, const PlanStep&);
int step_mount_idmap(Child&, const PlanStep&);
int step_target_guest(Child&, const PlanStep&);
int step_target_dir(Child&, const PlanStep&);
int step_target_like(Child&, const PlanStep&);
int step_target_existing(Child&, const PlanStep&);
int step_mkdir_guest(Child&, const PlanStep&);
int step_attach(Child&, const PlanStep&);
int step_set_propagation(Child&, const PlanStep&);
int step_enter_root(Child&, const PlanStep&);
int step_guest_propagation(Child&, const PlanStep&);
int step_tmp_copy_up(Child&, const PlanStep&);
int step_node(Child&, const PlanStep&);
int step_symlink(Child&, const PlanStep&);
int step_copy_symlink(Child&, const PlanStep&);
int step_mask(Child&, const PlanStep&);
int step_readonly_path(Child&, const PlanStep&);
int step_sysctl(Child&, const PlanStep&);
int step_lsm_label(Child&, const PlanStep&);
int step_pivot_root(Child&, const PlanStep&);
int step_leave_mounts(Child&, const PlanStep&);
int step_root_readonly(Child&, const PlanStep&);
int step_root_propagation(Child&, const PlanStep&);
int step_pty_open(Child&, const PlanStep&);
int step_pty_attach(Child&, const PlanStep&);
int step_stdio(Child&, const PlanStep&);
int step_stdio_owner(Child&, const PlanStep&);
int step_extra_fd(Child&, const PlanStep&);
int step_rlimit(Child&, const PlanStep&);
int step_setgroups(Child&, const PlanStep&);
int step_user(Child&, const PlanStep&);
int step_umask(Child&, const PlanStep&);
int step_cwd(Child&, const PlanStep&);
int step_home(Child&, const PlanStep&);
int step_bounding_caps(Child&, const PlanStep&);
int step_capset(Child&, const PlanStep&);
int step_ambient_caps(Child&, const PlanStep&);
int step_no_new_privs(Child&, const PlanStep&);
int step_personality(Child&, const PlanStep&);
int step_scheduler(Child&, const PlanStep&);
int step_io_priority(Child&, const PlanStep&);
int step_affinity(Child&, const PlanStep&);
int step_memory_policy(Child&, const PlanStep&);
int step_session_keyring(Child&, const PlanStep&);
int step_seccomp(Child&, const PlanStep&);
int step_close_fds(Child&, const PlanStep&);
int step_pdeathsig(Child&, const PlanStep&);
int step_keep_mount(Child&, const PlanStep&);
int step_tree_kept(Child&, const PlanStep&);
int step_chdir_root(Child&, const PlanStep&);
int step_target_here(Child&, const PlanStep&);
int step_slot_owner(Child&, const PlanStep&);
int step_cgroup_owner(Child&, const PlanStep&);
int step_hook_point(Child&, const PlanStep&);
int step_resolve_exe(Child&, const PlanStep&);
int step_ready(Child&, const PlanStep&);
int step_exec(Child&, const PlanStep&);

// Makes sure that the guest's /dev/null can still be mounted once the guest's root is gone.
int prepare_null_mount(Child& child);

// ---- talk.cc ----
// Sends one message on the sync socket, with `fd` when it is not -1.
int tell_agent(Child& child, core::ChildMessageType type, int err, uint32_t value, int fd);
// Waits for the go byte on `fd`; exits with kExitSetupFailed on anything else.
void wait_for_go(int fd);

}  // namespace berth::child
