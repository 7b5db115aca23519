// The operations on containers that exist: exec's launch, signals, pause, questions; deletion is in
// runtime_remove.cc.
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/core/text.h"
#include "agent/runtime/create_job.h"
#include "agent/runtime/freeze_job.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/stdio.h"
#include "agent/runtime/update_job.h"
#include "agent/runtime/user_namespace.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/log.h"

namespace berth::runtime {

using core::Code;
using core::format;
using core::make_error;
using core::quoted;

uint64_t Runtime::new_process_key() {
    uint64_t key = 0;
    while (key == 0 || keys_.contains(key)) {
        BERTH_CHECK(getrandom(&key, sizeof key, 0) == sizeof key);
    }
    return key;
}

void Runtime::give_key(Container& container, Process& process) {
    process.key = new_process_key();
    keys_[process.key] = {&container, process.exec_id().text()};
}

core::SeccompPrograms Runtime::seccomp_programs(const Container& container) {
    core::SeccompPrograms programs;
    programs.own = seccomp_.own();
    if (container.seccomp_profile != nullptr) programs.profile = *container.seccomp_profile;
    return programs;
}

core::Status Runtime::start_exec(Container& container, Process& process) {
    if (process.spec == nullptr) {
        BERTH_ASSIGN(core::ProcessSpec parsed, core::parse_process_spec(process.spec_json));
        process.spec = std::make_unique<core::ProcessSpec>(std::move(parsed));
    }
    process.spec->terminal = process.paths().terminal;
    if (container.spec.find_namespace(core::kNewUser) && container.spec.id_map.empty()) {
        // One that was joined by a path that says nothing about its maps.
        auto found = read_id_map(format("/proc/%d", container.init().pid));
        BERTH_TRY(container.init().signal(0));  // still the same process
        if (found) container.spec.id_map = std::move(*found);
    }
    core::ExecLaunch launch;
    launch.spec = &container.spec;
    launch.process = process.spec.get();
    launch.facts = &guest_.facts;
    launch.id = container.id.text();
    launch.seccomp = seccomp_programs(container);
    launch.stdio = stdio_layout(process.paths(), process.passed.files);
    launch.may_exceed = process.is_owners;
    // A terminal and a listener come before the program, as does what takes its output.
    bool notifies = launch.seccomp.profile && launch.seccomp.profile->notify;
    launch.waits =
        process.paths().terminal || notifies || (process.stdio != nullptr && !process.stdio->is_connected());
    BERTH_ASSIGN(core::LaunchPlan plan, core::plan_exec(launch));

    LaunchSources sources;
    sys::UniqueFd init_cgroup;
    sources.cgroup = container.cgroup.leaf().get();
    if (!process.sub_cgroup.empty() && process.sub_cgroup != "/") {
        BERTH_ASSIGN(init_cgroup, open_sub_cgroup(container, process.sub_cgroup));
        sources.cgroup = init_cgroup.get();
    }
    // Beside an init that manages its cgroups: a process in the one that it was given would keep it from
    // passing its controllers on (systemd tries that once, while it boots). The machine's own root gets what
    // runc does: there first, and only when the kernel says no, to the init.
    bool is_manager = container.cgroup.two_levels() && process.sub_cgroup.empty() && !process.is_owners;
    if (process.retried_in_init_cgroup || is_manager) {
        BERTH_ASSIGN(init_cgroup, open_cgroup_of(container.init()));
        sources.cgroup = init_cgroup.get();
    }
    sources.init_pidfd = container.init().pidfd.get();
    if (process.stdio == nullptr) {
        return make_error(Code::kFailedPrecondition,
                          "the descriptors that came for its stdio went with the agent's restart");
    }
    for (int i = 0; i < 3; ++i) sources.stdio[i] = process.stdio->child_fd(i);
    sources.passed = process.passed.descriptors;
    sources.mounts = container.mounts.get();

    if (process.key == 0) {
        // It was added before the agent's restart.
        give_key(container, process);
        BERTH_TRY(container.save_process(process));
    }
    process.launch = Launch::create(loop_, spawner_, process);
    return process.launch->begin(process.key, std::move(plan), sources);
}

core::StdioLayout Runtime::stdio_layout(const StdioPaths& paths, std::span<const core::ExtraFd> files) {
    core::StdioLayout layout;
    layout.extra.assign(files.begin(), files.end());
    layout.plain_newlines = paths.plain_newlines;
    const std::string* texts[3] = {&paths.in, &paths.out, &paths.err};
    for (size_t i = 0; i < 3; ++i)
        layout.streams[i].mode = texts[i]->empty() ? core::StdioMode::kNull : core::StdioMode::kPipe;
    return layout;
}

core::Status Runtime::make_stdio(Container& container, Process& process) {
    const StdioPaths& paths = process.paths();
    StdioRequest request{paths.in,
                         paths.out,
                         paths.err,
                         paths.terminal,
                         paths.console,
                         container.stdio_drop,
                         &process.passed.descriptors};
    BERTH_ASSIGN(process.stdio, streams_.make_stdio(container.id.text(), process.exec_id().text(), request));
    if (process.stdin_closed) BERTH_TRY(process.stdio->close_stdin());
    if (process.console_rows != 0)
        BERTH_TRY(process.stdio->resize(process.console_rows, process.console_columns));
    return core::ok();
}

core::Result<sys::UniqueFd> Runtime::open_sub_cgroup(const Container& container, const std::string& path) {
    open_how how{};
    how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
    size_t begin = path.find_first_not_of('/');
    const char* relative = begin == std::string::npos ? "." : path.c_str() + begin;
    sys::UniqueFd directory(
        static_cast<int>(syscall(SYS_openat2, container.cgroup.leaf().get(), relative, &how, sizeof how)));
    if (!directory.valid()) return core::errno_error(errno, format("cgroup %s", quoted(path).c_str()));
    return directory;
}

core::Result<sys::UniqueFd> Runtime::open_cgroup_of(const Process& process) {
    sys::UniqueFd file(open(format("/proc/%d/cgroup", process.pid).c_str(), O_RDONLY | O_CLOEXEC));
    char text[limits::kPathBytes + 16];
    ssize_t count = file.valid() ? read(file.get(), text, sizeof text) : -1;
    BERTH_TRY(process.signal(0));  // still the same process: the pid was not reused before we read
    if (count <= 0) return core::errno_error(count < 0 ? errno : EIO, "read the init's cgroup");
    std::string_view line = core::trim(std::string_view(text, static_cast<size_t>(count)));
    size_t colons = line.find("::");
    if (colons == std::string_view::npos)
        return make_error(Code::kInternal, "the init's cgroup is not in cgroup v2");
    std::string path = cgroup_mount_ + std::string(line.substr(colons + 2));
    sys::UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!directory.valid()) return core::errno_error(errno, "open " + path);
    return directory;
}

core::Status Runtime::kill(const core::ContainerId& id, const core::ExecId& exec_id, int signal, bool all) {
    std::string where = context("kill", id, exec_id);
    auto found = find(id, exec_id);
    if (!found.ok()) return std::move(found).error().within(where);
    Process& process = **found;
    Container& container = *containers_[id.text()];
    bool everything = all;
    if (signal == SIGKILL && shares_pid_namespace(container)) {
        // The end of such an init takes nobody along; what is left of one that has ended is still its own.
        auto state = sys::cgroup_state(container.cgroup.outer);
        everything = everything || (state.ok() && state->populated && !container.deleting);
    }
    core::Status sent =
        everything && process.is_init() ? kill_all(container, signal) : process.signal(signal);
    if (!sent.ok()) return std::move(sent).error().within(where);
    return core::ok();
}

core::Result<std::vector<pid_t>> Runtime::list_pids(const Container& container) const {
    return sys::cgroup_procs_recursive(container.cgroup.outer, limits::kPids, limits::kCgroupsOfContainer);
}

core::Status Runtime::kill_all(Container& container, int signal) {
    if (signal == SIGKILL) return sys::kill_cgroup(container.cgroup.outer);
    BERTH_ASSIGN(std::vector<pid_t> pids, list_pids(container));
    if (pids.empty()) return make_error(Code::kNotFound, "no process is left");
    std::vector<sys::UniqueFd> pidfds;
    for (pid_t pid : pids) pidfds.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    // A pid may have been reused between the list and the pidfd: only what a second list still shows is
    // signalled.
    BERTH_ASSIGN(std::vector<pid_t> still, list_pids(container));
    for (size_t i = 0; i < pids.size(); ++i) {
        if (!pidfds[i].valid() || !std::binary_search(still.begin(), still.end(), pids[i])) continue;
        (void)syscall(SYS_pidfd_send_signal, pidfds[i].get(), signal, nullptr, 0);
    }
    return core::ok();
}

void Runtime::pause(const core::ContainerId& id, Done<core::Unit> done) {
    freeze(id, FreezeGoal::kFrozen, std::move(done));
}
void Runtime::resume(const core::ContainerId& id, Done<core::Unit> done) {
    freeze(id, FreezeGoal::kThawed, std::move(done));
}

void Runtime::freeze(const core::ContainerId& id, FreezeGoal goal, Done<core::Unit> done) {
    bool freezing = goal == FreezeGoal::kFrozen;
    std::string where = context(freezing ? "pause" : "resume", id, core::ExecId());
    if (auto allowed = may_change(); !allowed.ok()) return done(std::move(allowed).error().within(where));
    auto found = find(id);
    if (!found.ok()) return done(std::move(found).error().within(where));
    Container& container = **found;
    TaskStatus expected = freezing ? TaskStatus::kRunning : TaskStatus::kPaused;
    bool startable = freezing && container.status() == TaskStatus::kCreated;
    if ((container.status() != expected && !startable) || container.freeze_job != nullptr ||
        container.deleting) {
        const char* why = freezing ? "the container is not running" : "the container is not paused";
        return done(make_error(Code::kFailedPrecondition, where + ": " + why));
    }
    auto shared = containers_[id.text()];
    container.freeze_job = FreezeJob::begin(
        loop_, container.cgroup.outer, goal,
        [this, shared, freezing, where, done = std::move(done)](core::Status status) mutable {
            shared->freeze_job.reset();
            if (!status.ok()) return done(std::move(status).error().within(where));
            shared->paused = freezing;
            save_or_log(*shared);
            v1::Event event = shared->event(core::ExecId());
            if (freezing) {
                event.mutable_paused();
            } else {
                event.mutable_resumed();
            }
            events_.emit(std::move(event), shared.get());
            done(core::Unit());
        });
}

core::Result<ProcessState> Runtime::state(const core::ContainerId& id, const core::ExecId& exec_id) {
    BERTH_ASSIGN(Process * process, find(id, exec_id));
    const Container& container = *containers_[id.text()];
    ProcessState state;
    state.status = process->is_init() ? container.status() : process->status;
    if (!process->is_init() && process->status == TaskStatus::kUnknown) state.status = TaskStatus::kCreated;
    if (!process->is_init() && process->status == TaskStatus::kRunning && container.paused)
        state.status = TaskStatus::kPaused;
    state.pid = process->pid;
    state.bundle = container.bundle;
    state.stdio = process->paths();
    state.exited = process->exit.has_value();
    state.exit = process->exit.value_or(ExitRecord{});
    return state;
}

core::Result<std::vector<PidEntry>> Runtime::pids(const core::ContainerId& id) {
    BERTH_ASSIGN(Container * container, find(id));
    BERTH_ASSIGN(std::vector<pid_t> pids, list_pids(*container));
    std::vector<PidEntry> entries;
    for (pid_t pid : pids) {
        PidEntry entry{pid, ""};
        for (const auto& [exec_id, process] : container->execs) {
            if (process->pid == pid && !process->exit) entry.exec_id = exec_id;
        }
        entries.push_back(std::move(entry));
    }
    return entries;
}

core::Status Runtime::resize(const core::ContainerId& id, const core::ExecId& exec_id, uint32_t rows,
                             uint32_t columns) {
    std::string where = context("resize", id, exec_id);
    auto found = find(id, exec_id);
    if (!found.ok()) return std::move(found).error().within(where);
    Process& process = **found;
    if (!process.paths().terminal)
        return make_error(Code::kFailedPrecondition, where + ": the process has no terminal");
    if (process.exit) return make_error(Code::kNotFound, where + ": process already finished");
    process.console_rows = rows;
    process.console_columns = columns;
    if (process.stdio == nullptr) return core::ok();
    auto resized = process.stdio->resize(rows, columns);
    if (!resized.ok()) return std::move(resized).error().within(where);
    return core::ok();
}

core::Status Runtime::close_stdin(const core::ContainerId& id, const core::ExecId& exec_id) {
    std::string where = context("close stdin of", id, exec_id);
    auto found = find(id, exec_id);
    if (!found.ok()) return std::move(found).error().within(where);
    Process& process = **found;
    if (process.stdio != nullptr) {
        if (auto closed = process.stdio->close_stdin(); !closed.ok())
            return std::move(closed).error().within(where);
    }
    process.stdin_closed = true;  // an exec that starts later begins with its input at the end
    save_or_log(*containers_[id.text()]);
    return core::ok();
}

core::Result<uint64_t> Runtime::wait(const core::ContainerId& id, const core::ExecId& exec_id,
                                     core::Callback<void(const ExitRecord&)> waiter) {
    auto found = find(id, exec_id);
    if (!found.ok()) return std::move(found).error().within(context("wait", id, exec_id));
    return (*found)->add_waiter(std::move(waiter));
}

void Runtime::cancel_wait(const core::ContainerId& id, const core::ExecId& exec_id, uint64_t waiter) {
    if (auto found = find(id, exec_id); found.ok()) (*found)->remove_waiter(waiter);
}

}  // namespace berth::runtime
