// From a checked spec to the plan that the child walks: what a container's first process and an exec do
// between clone and execve, in which order. Pure: what the guest is like comes in as data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/container_spec.h"
#include "agent/core/guest_facts.h"
#include "agent/core/launch_plan.h"
#include "agent/core/result.h"
#include "agent/core/rootfs_plan.h"

namespace berth::core {

enum class StdioMode : uint8_t {
    kNull,    // /dev/null of the container
    kPipe,    // a descriptor that the agent opens: FdSource::kStdin, kStdout or kStderr
    kPassed,  // a descriptor of the caller's: FdSource::kPassed with `passed_index`
};

struct StdioStream {
    StdioMode mode = StdioMode::kNull;
    uint32_t passed_index = 0;
};

// A further descriptor of the caller's that the process finds open at `target` (3 and up).
struct ExtraFd {
    uint32_t target = 3;
    uint32_t passed_index = 0;
};

// With process.terminal all three are the pty and `streams` is not looked at.
struct StdioLayout {
    StdioStream streams[3];
    std::vector<ExtraFd> extra;
    bool plain_newlines = false;  // the pty leaves LF as it is
};

// A compiled filter: struct sock_filter[] as bytes.
struct SeccompProgram {
    std::vector<std::byte> filter;
    uint32_t flags = 0;   // SECCOMP_FILTER_FLAG_*
    bool notify = false;  // has a NOTIFY action: its listener descriptor goes to the agent
};

// The filters of every process of a container. `own` (no AF_VSOCK, no io_uring) comes first and is left out
// only with the annotation berth.vsock=allow; the two are never merged.
struct SeccompPrograms {
    SeccompProgram own;
    std::optional<SeccompProgram> profile;
};

struct ContainerLaunch {
    const ContainerSpec* spec = nullptr;
    const GuestFacts* facts = nullptr;
    std::string id;
    std::string bundle_dir;     // ours: "/run/berth/bundles/ID"; root and rootfs mounts land below it
    std::string source_bundle;  // where config.json lay, for relative paths in it; empty: bundle_dir
    std::vector<RootfsMount> rootfs;
    StdioLayout stdio;
    SeccompPrograms seccomp;
};

// The plan of a container's first process. Everything is checked before: an error means that nothing was
// planned. Slots: kSlotCgroup is the innermost of the container's cgroups (with two levels: the inner one, at
// which its cgroup namespace is rooted). A cgroup mount without a cgroup namespace asks for a detached tree
// of that same innermost cgroup (FdSource::kCgroupNamespaceRoot).
Result<LaunchPlan> plan_container(const ContainerLaunch& launch);

// Where a container with create hooks has its root file system put together, as the guest sees it.
// INVALID_ARGUMENT as plan_container.
Result<std::string> root_place_of(const ContainerLaunch& launch);

struct ExecLaunch {
    const ContainerSpec* spec = nullptr;  // the container's
    const ProcessSpec* process = nullptr;
    const GuestFacts* facts = nullptr;
    std::string id;  // the container's
    StdioLayout stdio;
    SeccompPrograms seccomp;
    std::string executable;   // what is run instead of args[0]
    bool may_exceed = false;  // asked for by the machine's own root, as `crun exec --cap` is
    bool waits = true;        // for a go of the agent's: it has something to do before the program may run
};

// The plan of one more process in a running container. It joins by the init's pidfd; what `process` leaves
// out is the container's; unless `may_exceed` it never gets what the init does not have (capabilities outside
// of the init's bounding set: PERMISSION_DENIED; no_new_privs stays on when the container has it).
Result<LaunchPlan> plan_exec(const ExecLaunch& launch);

struct HookLaunch {
    const ContainerSpec* spec = nullptr;
    const GuestFacts* facts = nullptr;
    std::string id;
    HookKind kind = HookKind::kPrestart;
    size_t index = 0;         // in its kind
    std::string working_dir;  // where it exists; else "/"
    SeccompPrograms seccomp;  // of startContainer
};

// The plan of one hook: FdSource::kStdin has the container's state, kStdout takes what it says, kStderr too.
// Those in the guest's namespaces stay in the spawner's cgroup: the container's limits are not for them.
// startContainer's is an exec of the container's own process with another program.
Result<LaunchPlan> plan_hook(const HookLaunch& launch);

// ---- parts of plan_container that user_namespace_plan.cc puts elsewhere ----
void emit_join_by_path(LaunchPlanBuilder& builder, const ContainerSpec& spec, size_t index);
void emit_names(LaunchPlanBuilder& builder, const ContainerSpec& spec);  // hostname, domainname
// From here on nothing that is mounted is seen in the guest.
void emit_cut_off(LaunchPlanBuilder& builder, const ContainerSpec& spec);
// What goes into /dev: the default nodes that the spec does not replace, then the spec's.
std::vector<DeviceSpec> device_nodes(const ContainerSpec& spec);

// What only root of a machine with its own init may ask for, as it may of crun and runc: a block device's
// node (PERMISSION_DENIED), a mount namespace to join (UNIMPLEMENTED), and a bind mount with options of a
// filesystem, which are then ignored (INVALID_ARGUMENT).
Status refuse_owners_requests(const ContainerSpec& spec);
void emit_device_node(LaunchPlanBuilder& builder, const std::string& label, const DeviceSpec& device);

// The second level of cgroups: a container that could undo its own limits (CAP_SYS_ADMIN, or a writable
// cgroup mount) gets its limits and device program on an outer cgroup that its namespace does not show.
bool needs_two_cgroup_levels(const ContainerSpec& spec);

// True when a mount's source may be a disk of the host's ("serial:..." or below /dev): facts.block_devices
// must be up to date for such a spec, and is not looked at for any other.
bool names_block_devices(const ContainerSpec& spec, std::span<const RootfsMount> rootfs);

// A node that a bind mount would bring in, as stat(2) of the source says: block devices PERMISSION_DENIED
// unless attached by the host (`facts`), all else fine here; character devices are checked by the device
// rules.
Status check_bind_source(std::string_view source, uint32_t st_mode, const GuestFacts& facts);

// What a failed step means for a person, complete but for the container's name: "mount 7 (tmpfs on /run):
// fsmount: EPERM (tmpfs: Unknown parameter 'x')". `kernel_text` may be empty.
std::string describe_step_error(const LaunchPlan& plan, uint32_t step_index, int err,
                                std::string_view kernel_text);

// The same as an Error: the code follows from errno; a program that is not there is NOT_FOUND.
Error step_error(const LaunchPlan& plan, uint32_t step_index, int err, std::string_view kernel_text);

}  // namespace berth::core
