#include "agent/spawner/launch.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "agent/child/entry.h"
#include "agent/core/limits.h"
#include "agent/spawner/net_devices.h"
#include "agent/sys/log.h"

namespace berth::spawner {

using core::PlanHeader;
using core::PlanStep;

namespace {

constexpr unsigned kIntermediateLifeS = 60;
constexpr const char* kStageStep = "set-up";  // a step of the stage failed: the agent was told which

// What launch() works on.
struct Request {
    const Surroundings& surroundings;
    std::span<std::byte> plan;
    std::span<const int> slots;
    const PlanHeader& header;
};

Outcome failed(const char* step) {
    return Outcome{errno, step};
}

pid_t clone_process(uint64_t flags, int cgroup, int* pidfd) {
    clone_args arguments{};
    arguments.flags = flags | CLONE_PIDFD | CLONE_PARENT;
    arguments.pidfd = reinterpret_cast<uintptr_t>(pidfd);
    if (cgroup >= 0) {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = static_cast<uint64_t>(cgroup);
    }
    return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof(arguments)));
}

[[noreturn]] void become_child(const Request& request, int go_fd) {
    child::run_child(request.plan.data(), request.plan.size(), request.slots.data(),
                     static_cast<int>(request.slots.size()), go_fd);
}

// -1: the child stays in the spawner's own.
int cgroup_of(const Request& request) {
    return request.header.stay_in_cgroup == 1 ? -1 : request.slots[core::kSlotCgroup];
}

const char* text(const Request& request, core::PlanString string) {
    return reinterpret_cast<const char*>(request.plan.data()) + string.offset;
}

// Writes one procfs file below `directory` in one write, as its files demand.
bool write_file(int directory, const char* name, const char* content, size_t size) {
    sys::UniqueFd fd(::openat(directory, name, O_WRONLY | O_CLOEXEC));
    if (!fd.valid()) return false;
    ssize_t written = ::write(fd.get(), content, size);
    if (written >= 0 && static_cast<size_t>(written) != size) errno = EIO;
    return written == static_cast<ssize_t>(size);
}

Outcome join_namespaces(const Request& request) {
    const PlanHeader& header = request.header;
    if (header.pid_namespace_slot != core::kNoSlot &&
        ::setns(request.slots[static_cast<size_t>(header.pid_namespace_slot)], CLONE_NEWPID) != 0) {
        return failed("setns pid");
    }
    if (header.time_namespace_slot != core::kNoSlot &&
        ::setns(request.slots[static_cast<size_t>(header.time_namespace_slot)], CLONE_NEWTIME) != 0) {
        return failed("setns time");
    }
    if ((header.clone_flags & CLONE_NEWTIME) != 0) {
        if (::unshare(CLONE_NEWTIME) != 0) return failed("unshare time");
        core::PlanString offsets = header.timens_offsets;
        if (offsets.length > 0 && !write_file(request.surroundings.proc.get(), "self/timens_offsets",
                                              text(request, offsets), offsets.length)) {
            return failed("timens_offsets");
        }
    }
    return {};
}

// Staying in a container's namespace would hand it to every later child.
void leave_namespaces(const Request& request) {
    const PlanHeader& header = request.header;
    const Surroundings& home = request.surroundings;
    bool left = true;
    if (header.pid_namespace_slot != core::kNoSlot) {
        left = ::setns(home.pid_namespace.get(), CLONE_NEWPID) == 0;
    }
    if (left && (header.time_namespace_slot != core::kNoSlot || (header.clone_flags & CLONE_NEWTIME) != 0)) {
        left = ::setns(home.time_namespace.get(), CLONE_NEWTIME) == 0;
    }
    if (!left) {
        sys::log(sys::LogLevel::kError, "spawner.stuck", "cannot leave a namespace: errno %d", errno);
        ::_exit(1);
    }
}

uint64_t namespaces_of_clone(const PlanHeader& header) {
    return header.clone_flags & ~uint64_t{CLONE_NEWTIME};
}

Outcome clone_directly(const Request& request, int go_fd, Child& child) {
    Outcome outcome = join_namespaces(request);
    if (!outcome.failed()) {
        int pidfd = -1;
        child.pid = clone_process(namespaces_of_clone(request.header), cgroup_of(request), &pidfd);
        if (child.pid == 0) become_child(request, go_fd);
        if (child.pid < 0) outcome = failed("clone3");
        if (child.pid > 0) child.pidfd.reset(pidfd);
    }
    leave_namespaces(request);
    return outcome;
}

// ---- the intermediate ----

// In a page that both of us see and the child does not.
struct Report {
    std::atomic<int> ready{0};
    pid_t pid = 0;
    int pidfd = -1;
    Outcome outcome;
};

constexpr int kCloneFailed = -2;

struct StagedClone {
    const Request& request;
    Report* report;
};

long clone_staged(void* context) {
    auto& staged = *static_cast<StagedClone*>(context);
    int pidfd = -1;
    pid_t pid = clone_process(staged.request.header.clone_flags & ~uint64_t{CLONE_NEWTIME},
                              cgroup_of(staged.request), &pidfd);
    if (pid < 0) {
        int err = errno;
        staged.report->pidfd = kCloneFailed;
        return -err;
    }
    // The child has no such page to write to.
    if (pid > 0) staged.report->pidfd = pidfd;
    return pid;
}

// Reports through the page, which a child may not touch.
Outcome clone_from_stage(const Request& request, int go_fd, int wake_fd, Report* report) {
    StagedClone staged{request, report};
    const int unneeded[] = {wake_fd, request.surroundings.proc.get()};
    const int unneeded_count = (request.header.clone_flags & CLONE_NEWTIME) != 0 ? 2 : 1;
    long result =
        child::run_stage(request.plan.data(), request.slots.data(), static_cast<int>(request.slots.size()),
                         go_fd, unneeded, unneeded_count, clone_staged, &staged);
    if (result < 0)
        return Outcome{static_cast<int>(-result), report->pidfd == kCloneFailed ? "clone3" : kStageStep};
    report->pid = static_cast<pid_t>(result);
    return {};
}

[[noreturn]] void run_intermediate(const Request& request, int go_fd, int wake_fd, Report* report) {
    int keep[limits::kLaunchPlanFds + 3];
    size_t count = request.slots.size();
    std::memcpy(keep, request.slots.data(), request.slots.size_bytes());
    keep[count++] = go_fd;
    keep[count++] = wake_fd;
    // Offsets of clocks are written to it.
    if ((request.header.clone_flags & CLONE_NEWTIME) != 0) keep[count++] = request.surroundings.proc.get();
    child::close_all_but(keep, static_cast<int>(count));
    Outcome outcome;
    if (::madvise(report, sizeof(*report), MADV_DONTFORK) != 0) outcome = failed("madvise");
    if (!outcome.failed()) outcome = join_namespaces(request);
    if (!outcome.failed() && request.header.stage_steps > 0) {
        outcome = clone_from_stage(request, go_fd, wake_fd, report);
    } else if (!outcome.failed()) {
        // Into a local first: the child has no such page to write to.
        pid_t pid = clone_process(0, cgroup_of(request), &report->pidfd);
        if (pid == 0) become_child(request, go_fd);
        if (pid < 0) outcome = failed("clone3");
        report->pid = pid;
    }
    report->outcome = outcome;
    report->ready.store(1);
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(wake_fd, &one, sizeof(one));
    // Our pidfd is fetched, then we are killed; should the spawner die before, we go by ourselves.
    ::sleep(kIntermediateLifeS);
    ::_exit(0);
}

Outcome await_report(const sys::UniqueFd& wake, const sys::UniqueFd& intermediate, const Report* report) {
    pollfd polled[2] = {{wake.get(), POLLIN, 0}, {intermediate.get(), POLLIN, 0}};
    while (report->ready.load() == 0) {
        // A stage mounts, and what it mounts may not answer: the others are not to wait for that.
        int events = ::poll(polled, 2, static_cast<int>(limits::kStageDeadlineMs));
        if (events < 0 && errno != EINTR) return failed("poll");
        if (events == 0) return Outcome{ETIMEDOUT, "mounts before the user namespace"};
        if (polled[1].revents != 0 && report->ready.load() == 0) return Outcome{ECHILD, "intermediate ended"};
        uint64_t count = 0;
        if (polled[0].revents != 0) [[maybe_unused]]
            ssize_t got = ::read(wake.get(), &count, sizeof(count));
    }
    return report->outcome;
}

Outcome clone_through_intermediate(const Request& request, int go_fd, Child& child) {
    void* page = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return failed("mmap");
    auto* report = new (page) Report;
    sys::UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
    int pidfd = -1;
    pid_t pid = wake.valid() ? clone_process(request.header.stage_flags, -1, &pidfd) : -1;
    if (pid == 0) run_intermediate(request, go_fd, wake.get(), report);
    Outcome outcome = pid < 0 ? failed("clone3 intermediate") : Outcome{};
    if (!outcome.failed()) {
        sys::UniqueFd intermediate(pidfd);
        outcome = await_report(wake, intermediate, report);
        if (!outcome.failed()) {
            child.pid = report->pid;
            child.pidfd.reset(
                static_cast<int>(::syscall(SYS_pidfd_getfd, intermediate.get(), report->pidfd, 0)));
            // Without a go byte such a child ends by itself.
            if (!child.pidfd.valid()) outcome = failed("pidfd_getfd");
        }
        ::syscall(SYS_pidfd_send_signal, intermediate.get(), SIGKILL, nullptr, 0);
    }
    ::munmap(page, sizeof(Report));
    return outcome;
}

// ---- user namespaces of id-mapped mounts ----

// The user namespace of a process that does nothing, with these maps; it lives as long as the descriptor.
Outcome make_user_namespace(const Request& request, const core::PlanIdMap& map, sys::UniqueFd& out) {
    clone_args arguments{};
    int pidfd = -1;
    arguments.flags = CLONE_NEWUSER | CLONE_PIDFD;
    arguments.pidfd = reinterpret_cast<uintptr_t>(&pidfd);
    arguments.exit_signal = SIGCHLD;  // ours to reap
    auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof(arguments)));
    if (pid < 0) return failed("clone3 id map");
    if (pid == 0) {
        while (true) ::pause();
    }
    sys::UniqueFd holder(pidfd);
    char path[48];
    std::snprintf(path, sizeof(path), "%d", pid);
    sys::UniqueFd process(::openat(request.surroundings.proc.get(), path, O_PATH | O_DIRECTORY | O_CLOEXEC));
    Outcome outcome;
    if (!process.valid() ||
        !write_file(process.get(), "uid_map", text(request, map.uid_map), map.uid_map.length) ||
        !write_file(process.get(), "gid_map", text(request, map.gid_map), map.gid_map.length)) {
        outcome = failed("id map");
    }
    if (!outcome.failed()) {
        out.reset(::openat(process.get(), "ns/user", O_RDONLY | O_CLOEXEC));
        if (!out.valid()) outcome = failed("open id map");
    }
    ::syscall(SYS_pidfd_send_signal, holder.get(), SIGKILL, nullptr, 0);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return outcome;
}

// ---- from outside ----

bool is_alive(const Child& child) {
    pollfd polled{child.pidfd.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 0;
}

Outcome write_mappings(const Request& request, int process) {
    const PlanHeader& header = request.header;
    if (header.uid_map.length > 0 &&
        !write_file(process, "uid_map", text(request, header.uid_map), header.uid_map.length)) {
        return failed("uid_map");
    }
    if (header.setgroups_deny == 1 && !write_file(process, "setgroups", "deny", 4))
        return failed("setgroups");
    if (header.gid_map.length > 0 &&
        !write_file(process, "gid_map", text(request, header.gid_map), header.gid_map.length)) {
        return failed("gid_map");
    }
    return {};
}

Outcome give_net_devices(const Request& request, int process) {
    const PlanHeader& header = request.header;
    if (header.net_devices.count == 0) return {};
    sys::UniqueFd own;
    int target = -1;
    if (header.net_namespace_slot == core::kNoSlot) {
        own.reset(::openat(process, "ns/net", O_RDONLY | O_CLOEXEC));
        if (!own.valid()) return failed("open network namespace");
        target = own.get();
    } else {
        target = request.slots[static_cast<size_t>(header.net_namespace_slot)];
    }
    const auto* devices =
        reinterpret_cast<const core::PlanNetDevice*>(request.plan.data() + header.net_devices.offset);
    return move_net_devices(request.plan.data(), std::span(devices, header.net_devices.count), target);
}

// Only upwards: the child sets the rest itself, and reports it with the step's
// label.
void raise_hard_limit(const Child& child, const PlanStep& step) {
    auto resource = static_cast<__rlimit_resource>(step.a);
    struct rlimit limit {};
    if (::prlimit(child.pid, resource, nullptr, &limit) != 0 || step.c <= limit.rlim_max) return;
    limit.rlim_max = step.c;
    ::prlimit(child.pid, resource, &limit, nullptr);
}

// What is set through /proc/PID; a plain plan needs nothing of it, and looking it up is not cheap.
bool needs_process_folder(const PlanHeader& header, std::span<const PlanStep> steps) {
    if (header.uid_map.length > 0 || header.gid_map.length > 0 || header.setgroups_deny == 1 ||
        header.net_devices.count > 0) {
        return true;
    }
    return std::any_of(steps.begin(), steps.end(),
                       [](const PlanStep& step) { return step.op == core::PlanOp::kOomScoreAdj; });
}

Outcome set_from_outside(const Request& request, const Child& child) {
    std::span<const PlanStep> steps(
        reinterpret_cast<const PlanStep*>(request.plan.data() + request.header.steps.offset),
        request.header.steps.count);
    char number[24];
    sys::UniqueFd process;
    if (needs_process_folder(request.header, steps)) {
        std::snprintf(number, sizeof(number), "%d", child.pid);
        process.reset(::openat(request.surroundings.proc.get(), number, O_PATH | O_DIRECTORY | O_CLOEXEC));
        if (!process.valid()) return failed("open /proc/PID");
    }
    // Were the child gone, the number could be somebody else's by now.
    if (!is_alive(child)) return Outcome{ESRCH, "child ended"};
    Outcome outcome = write_mappings(request, process.get());
    if (!outcome.failed()) outcome = give_net_devices(request, process.get());
    for (const PlanStep& step : steps) {
        if (outcome.failed()) break;
        if (step.op == core::PlanOp::kRlimit) raise_hard_limit(child, step);
        if (step.op != core::PlanOp::kOomScoreAdj) continue;
        int size =
            std::snprintf(number, sizeof(number), "%d", static_cast<int>(static_cast<int64_t>(step.a)));
        if (!write_file(process.get(), "oom_score_adj", number, static_cast<size_t>(size)) &&
            (step.flags & core::kIgnoreErrors) == 0) {
            outcome = failed("oom_score_adj");
        }
    }
    return outcome;
}

}  // namespace

Outcome launch(const Surroundings& surroundings, std::span<std::byte> plan, std::span<const int> slots,
               Child& child) {
    const auto& header = *reinterpret_cast<const PlanHeader*>(plan.data());
    int own_slots[limits::kLaunchPlanFds];
    std::memcpy(own_slots, slots.data(), slots.size_bytes());
    Request request{surroundings, plan, std::span<const int>(own_slots, slots.size()), header};
    sys::UniqueFd id_maps[limits::kPlanIdMaps];
    const auto* maps = reinterpret_cast<const core::PlanIdMap*>(plan.data() + header.id_maps.offset);
    for (uint32_t i = 0; i < header.id_maps.count; ++i) {
        Outcome made = make_user_namespace(request, maps[i], id_maps[i]);
        if (made.failed()) return made;
        own_slots[maps[i].slot] = id_maps[i].get();
    }
    int go[2];
    if (::pipe2(go, O_CLOEXEC) != 0) return failed("pipe");
    sys::UniqueFd go_read(go[0]);
    child.go.reset(go[1]);
    Outcome outcome = header.use_intermediate == 1 ? clone_through_intermediate(request, go_read.get(), child)
                                                   : clone_directly(request, go_read.get(), child);
    if (outcome.failed()) return outcome;
    outcome = set_from_outside(request, child);
    if (outcome.failed()) kill_child(child);
    return outcome;
}

void kill_child(const Child& child) {
    ::syscall(SYS_pidfd_send_signal, child.pidfd.get(), SIGKILL, nullptr, 0);
}

}  // namespace berth::spawner
