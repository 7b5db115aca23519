#include "agent/runtime/runtime.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>

#include "agent/core/text.h"
#include "agent/runtime/create_job.h"
#include "agent/runtime/freeze_job.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/stdio.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/log.h"

namespace berth::runtime {

using core::Code;
using core::format;
using core::make_error;
using core::quoted;

Runtime::Runtime(loop::Loop& loop, KeeperLink& keeper, const core::AgentConfig& config)
    : loop_(loop), keeper_(keeper), config_(config), streams_(loop, keeper) {
    streams_.on_lost = [this](const StreamId& stream, uint64_t bytes) { report_lost_output(stream, bytes); };
}

Runtime::~Runtime() = default;

void Runtime::report_lost_output(const StreamId& stream, uint64_t bytes) {
    v1::Event lost;
    lost.set_container_id(stream.container);
    lost.set_exec_id(stream.exec);
    lost.mutable_stdio_lost()->set_stream(static_cast<v1::Stream>(stream.kind));
    lost.mutable_stdio_lost()->set_bytes(bytes);
    events_.emit(std::move(lost), nullptr);
}

std::string Runtime::context(const char* verb, const core::ContainerId& id, const core::ExecId& exec_id) {
    if (exec_id.is_init()) return format("%s %s", verb, quoted(id.text()).c_str());
    return format("%s %s in %s", verb, quoted(exec_id.text()).c_str(), quoted(id.text()).c_str());
}

core::Status Runtime::may_change() const {
    if (shutting_down_) return make_error(Code::kUnavailable, "the guest is shutting down");
    return core::ok();
}

core::Result<Container*> Runtime::find(const core::ContainerId& id) {
    auto found = containers_.find(id.text());
    if (found == containers_.end() || found->second->create_job != nullptr) {
        return make_error(Code::kNotFound, format("container %s: not found", quoted(id.text()).c_str()));
    }
    return found->second.get();
}

core::Result<Process*> Runtime::find(const core::ContainerId& id, const core::ExecId& exec_id) {
    BERTH_ASSIGN(Container * container, find(id));
    Process* process = container->find_process(exec_id.text());
    if (process == nullptr) {
        return make_error(Code::kNotFound, format("exec %s in %s: not found", quoted(exec_id.text()).c_str(),
                                                  quoted(id.text()).c_str()));
    }
    return process;
}

void Runtime::create(CreateRequest request, Done<uint32_t> done) {
    std::string where = context("create", request.id, core::ExecId());
    if (auto allowed = may_change(); !allowed.ok()) return done(std::move(allowed).error().within(where));
    if (auto found = containers_.find(request.id.text()); found != containers_.end()) {
        CreateJob* job = found->second->create_job.get();
        if (job != nullptr && job->queue(request, done)) return;
        return done(make_error(Code::kAlreadyExists, where + ": a container of that id exists"));
    }
    if (containers_.size() >= limits::kContainers) {
        return done(make_error(Code::kResourceExhausted,
                               format("%s: %zu containers exist, at most %zu", where.c_str(),
                                      containers_.size(), limits::kContainers)));
    }
    auto container = std::make_shared<Container>(*this, request.id);
    containers_.emplace(request.id.text(), container);
    container->create_job =
        std::make_unique<CreateJob>(*this, *container, std::move(request), std::move(done));
    container->create_job->begin();
}

core::Status Runtime::add_exec(ExecRequest request) {
    std::string where = context("exec", request.id, request.exec_id);
    BERTH_TRY(may_change());
    auto found = find(request.id);
    if (!found.ok()) return std::move(found).error().within(where);
    Container& container = **found;
    TaskStatus status = container.status();
    if (container.deleting ||
        (status != TaskStatus::kRunning && status != TaskStatus::kPaused && status != TaskStatus::kCreated)) {
        return make_error(Code::kFailedPrecondition, where + ": the container is not running");
    }
    if (container.execs.contains(request.exec_id.text())) {
        return make_error(Code::kAlreadyExists, where + ": an exec of that id exists");
    }
    if (container.execs.size() >= limits::kExecsPerContainer) {
        return make_error(Code::kResourceExhausted,
                          format("%s: %zu execs exist, at most %zu", where.c_str(), container.execs.size(),
                                 limits::kExecsPerContainer));
    }
    auto parsed = core::parse_process_spec(request.process_json);
    if (!parsed.ok()) return std::move(parsed).error().within(where);
    request.stdio.terminal = request.stdio.terminal || parsed->terminal;
    StdioRequest stdio{request.stdio.in,
                       request.stdio.out,
                       request.stdio.err,
                       request.stdio.terminal,
                       request.stdio.console,
                       container.stdio_drop,
                       nullptr};
    if (auto checked = check_stdio(stdio, request.passed.descriptors.size()); !checked.ok()) {
        return std::move(checked).error().within(where);
    }
    auto process = std::make_unique<Process>(container, request.exec_id, std::move(request.stdio));
    process->spec_json = std::move(request.process_json);
    process->spec = std::make_unique<core::ProcessSpec>(std::move(*parsed));
    process->with_passed_files = !request.passed.empty();
    process->passed = std::move(request.passed);
    process->sub_cgroup = std::move(request.sub_cgroup);
    process->remove_when_ended = request.remove_when_ended;
    process->is_owners = request.is_owners;
    Process& exec = *process;
    container.execs.emplace(request.exec_id.text(), std::move(process));
    // The streams are there from here on, so that a client can attach before Start.
    core::Status begun = make_stdio(container, exec);
    exec.added_sequence = events_.last_sequence() + 1;  // the state first, as with a start
    give_key(container, exec);                          // its Start has nothing to write down then
    if (begun.ok()) begun = container.save_process(exec);
    if (!begun.ok()) {
        keys_.erase(exec.key);
        exec.stdio.reset();
        streams_.discard_process(request.id.text(), request.exec_id.text());
        container.execs.erase(request.exec_id.text());
        return std::move(begun).error().within(where);
    }
    v1::Event added = container.event(request.exec_id);
    added.mutable_exec_added();
    events_.emit(std::move(added), &container);
    return core::ok();
}

void Runtime::start(const core::ContainerId& id, const core::ExecId& exec_id, Done<uint32_t> done) {
    std::string where = context("start", id, exec_id);
    if (auto allowed = may_change(); !allowed.ok()) return done(std::move(allowed).error().within(where));
    auto found = find(id, exec_id);
    if (!found.ok()) return done(std::move(found).error().within(where));
    Process& process = **found;
    Container& container = *containers_[id.text()];
    TaskStatus expected = process.is_init() ? TaskStatus::kCreated : TaskStatus::kUnknown;
    if (process.status != expected || process.starting || process.exit) {
        return done(make_error(Code::kFailedPrecondition, where + ": already started"));
    }
    if (container.deleting) return done(make_error(Code::kFailedPrecondition, where + ": is being deleted"));
    if (container.paused || container.freeze_job != nullptr) {
        // A process cloned into a frozen cgroup would hang.
        return done(make_error(Code::kFailedPrecondition, where + ": the container is paused"));
    }
    // In a created one, too, as runc and crun have it: its init waits in its namespaces, on its own root.
    TaskStatus status = container.status();
    if (!process.is_init() && status != TaskStatus::kRunning && status != TaskStatus::kCreated) {
        return done(make_error(Code::kFailedPrecondition, where + ": the container is not running"));
    }
    process.starting = true;
    process.on_started = std::move(done);
    core::Status begun = process.is_init() ? start_init(container) : start_exec(container, process);
    if (!begun.ok()) {
        process.starting = false;
        process.end_launch();
        process.on_started.take()(std::move(begun).error().within(where));
    }
}

core::Status Runtime::start_init(Container& container) {
    Process& init = container.init();
    if (init.launch == nullptr) {
        return make_error(Code::kFailedPrecondition, "it did not survive the agent's restart");
    }
    // For an agent that comes after us (adopt_gate): with its plan in the store it was not let go, without
    // its gate it was.
    keeper_.drop_then(container.plan_name(core::ExecId()), [this, kept = containers_[container.id.text()]] {
        Process& waiting = kept->init();
        if (waiting.launch == nullptr || !waiting.starting) return;  // it ended meanwhile
        if (auto going = waiting.launch->go(); !going.ok()) {
            return on_process_failed(*kept, waiting, std::move(going).error());
        }
        keeper_.drop(kept->launch_prefix(core::ExecId()));
        waiting.launch_is_stored = false;
    });
    return core::ok();
}

void Runtime::on_process_executed(Container& container, Process& process) {
    process.status = TaskStatus::kRunning;
    process.spec_json = std::string();
    process.spec.reset();
    process.end_launch();
    if (process.stdio != nullptr) process.stdio->close_child_fds();
    process.passed = PassedFiles();  // as long as we hold an end of a pipe, its end of file does not come
    tell_start(container, process);
    // Of a Start that an agent before us had begun.
    if (process.launch_is_stored) keeper_.drop(container.launch_prefix(process.exec_id()));
    process.launch_is_stored = false;
    if (process.is_init() && container.spec.hooks.has(core::HookKind::kPoststart))
        return run_poststart_hooks(container);
    finish_start(container, process);
}

// The state first, with the number that the event will have: whichever of the two a crash leaves, the next
// agent knows whether the event is in the log.
void Runtime::tell_start(Container& container, Process& process) {
    process.start_sequence = events_.last_sequence() + 1;
    log_unless_saved(container, container.save_process(process));
    v1::Event started = container.event(process.exec_id());
    (process.is_init() ? started.mutable_started() : started.mutable_exec_started())
        ->set_pid(static_cast<uint32_t>(process.pid));
    events_.emit(std::move(started), &container);
}

void Runtime::run_start_hooks(Container& container) {
    Container* raw = &container;
    container.hook_run =
        HookRun::begin(*this, containers_[container.id.text()], {core::HookKind::kStartContainer}, "created",
                       HookRun::OnFailure::kStop, [this, raw](core::Status status) {
                           Process& init = raw->init();
                           raw->hook_run.reset();
                           if (status.ok()) status = init.launch->go();
                           // It waits at its gate, and ends when that closes.
                           if (!status.ok()) on_process_failed(*raw, init, std::move(status).error());
                       });
}

void Runtime::run_poststart_hooks(Container& container) {
    Container* raw = &container;
    bool fatal = core::poststart_failure_is_fatal(container.spec.oci_version);
    container.hook_run = HookRun::begin(
        *this, containers_[container.id.text()], {core::HookKind::kPoststart}, "running",
        fatal ? HookRun::OnFailure::kStop : HookRun::OnFailure::kWarn, [this, raw](core::Status status) {
            Process& init = raw->init();
            raw->hook_run.reset();
            if (!status.ok()) {
                (void)sys::kill_cgroup(raw->cgroup.outer);
                return on_process_failed(*raw, init, std::move(status).error());
            }
            finish_start(*raw, init);
        });
}

void Runtime::finish_start(Container& container, Process& process) {
    process.starting = false;
    if (process.on_started) process.on_started.take()(static_cast<uint32_t>(process.pid));
    if (process.held_exit) {
        core::ProcessRecord record = *process.held_exit;
        process.held_exit.reset();
        finish_exit(container, process, record);
    }
}

void Runtime::on_process_failed(Container& container, Process& process, core::Error error) {
    // EBUSY: the container made cgroups below its own, and the kernel lets no process into a cgroup that has
    // some (no internal processes). Its init lives in one that takes processes.
    if (!process.is_init() && !process.retried_in_init_cgroup && process.pid == 0 && error.err == EBUSY &&
        process.sub_cgroup.empty()) {
        process.retried_in_init_cgroup = true;
        process.end_launch();
        if (auto again = start_exec(container, process); again.ok()) return;
    }
    // Stuck in its set-up: it does not look at its gate. An exec may have none.
    bool is_held = process.is_init() && error.code != Code::kDeadlineExceeded;
    if (!is_held && process.pidfd.valid()) (void)process.signal(SIGKILL);
    // It was killed while a hook of its start ran.
    if (process.is_init() && container.hook_run != nullptr)
        std::exchange(container.hook_run, nullptr)->cancel();
    process.starting = false;
    process.end_launch();
    if (process.stdio != nullptr) process.stdio->close_child_fds();
    process.passed = PassedFiles();
    if (process.launch_is_stored) keeper_.drop(container.launch_prefix(process.exec_id()));
    process.launch_is_stored = false;
    auto done = process.on_started.take();
    std::string where = context("start", container.id, process.exec_id());
    if (!process.is_init()) {
        process.start_failed = true;
        if (process.pid == 0 || process.held_exit) record_failed_exec(container, process);
    }
    if (done && process.is_init() && process.pid != 0 && !process.held_exit && !process.exit) {
        // Whoever is told so deletes it at once: it has to be over by then.
        process.start_error = std::move(error).within(where);
        process.on_started = std::move(done);
        return;
    }
    if (done) done(std::move(error).within(where));
    if (process.is_init() && process.held_exit) {
        core::ProcessRecord record = *process.held_exit;
        process.held_exit.reset();
        finish_exit(container, process, record);
    }
}

void Runtime::record_failed_exec(Container& container, Process& process) {
    if (process.held_exit) keeper_.acknowledge_exit(process.held_exit->key);
    process.held_exit.reset();
    if (process.key != 0) keys_.erase(process.key);
    process.status = TaskStatus::kStopped;
    process.spec.reset();
    process.exit = ExitRecord{core::kExitSetupFailed, unix_time_ns(), false};
    process.pidfd.reset();
    log_unless_saved(container, container.save_process(process));
    process.wake_waiters();
    remove_when_ended(process);
    if (container.on_execs_ended && !has_live_exec(container)) container.on_execs_ended.take()();
}

void Runtime::cancel_launch(const core::ContainerId& id, const core::ExecId& exec_id, const void* caller,
                            core::Error why) {
    auto found = containers_.find(id.text());
    if (found == containers_.end()) return;
    Container& container = *found->second;
    if (exec_id.is_init()) {
        if (container.create_job != nullptr) container.create_job->cancel(caller, std::move(why));
        return;
    }
    Process* process = container.find_process(exec_id.text());
    if (process == nullptr || !process->starting) return;
    on_process_failed(container, *process, std::move(why));
}

void Runtime::on_exit(const core::ProcessRecord& record) {
    if (auto hook = hook_runs_.find(record.key); hook != hook_runs_.end()) {
        std::shared_ptr<HookRun> run = hook->second;
        keeper_.acknowledge_exit(record.key);
        return run->on_exit(record);
    }
    auto found = keys_.find(record.key);
    if (found == keys_.end()) {
        // A process whose creation was taken back.
        keeper_.acknowledge_exit(record.key);
        return;
    }
    Container& container = *found->second.first;
    Process* process = container.find_process(found->second.second);
    BERTH_CHECK(process != nullptr);
    if (container.create_job != nullptr || process->starting) {
        // Its launch tells first what became of it (end of file, or the failed step).
        process->held_exit = record;
        return;
    }
    finish_exit(container, *process, record);
}

void Runtime::finish_exit(Container& container, Process& process, const core::ProcessRecord& record) {
    if (process.start_failed) {
        process.held_exit = record;
        return record_failed_exec(container, process);
    }
    // The OOM kill that ended it must be in the log before its exit.
    container.check_memory();
    ExitRecord exit;
    bool by_signal = WIFSIGNALED(record.wait_status);
    exit.status = by_signal ? 128u + static_cast<uint32_t>(WTERMSIG(record.wait_status))
                            : static_cast<uint32_t>(WEXITSTATUS(record.wait_status));
    exit.at_unix_ns = record.exited_realtime_ns;
    exit.oom_likely = by_signal && WTERMSIG(record.wait_status) == SIGKILL &&
                      container.memory_local.oom_kill > container.exit_oom_kill_local;
    container.exit_oom_kill_local = container.memory_local.oom_kill;
    process.exit = exit;
    process.status = TaskStatus::kStopped;
    process.pidfd.reset();
    process.end_launch();
    v1::Event exited = container.event(process.exec_id());
    v1::Exited& out = *exited.mutable_exited();
    out.set_pid(static_cast<uint32_t>(process.pid));
    out.set_exit_status(exit.status);
    out.set_exited_at_unix_ns(exit.at_unix_ns);
    out.set_oom_likely(exit.oom_likely);
    events_.emit(std::move(exited), &container);
    log_unless_saved(container, container.save_process(process));
    keys_.erase(record.key);
    keeper_.acknowledge_exit(record.key);
    process.wake_waiters();
    if (process.start_error && process.on_started) {
        core::Error error = std::move(*process.start_error);
        process.start_error.reset();
        process.on_started.take()(std::move(error));
    }
    remove_when_ended(process);
    if (container.on_execs_ended && !has_live_exec(container)) container.on_execs_ended.take()();
}

bool Runtime::has_live_exec(const Container& container) {
    for (const auto& [exec_id, process] : container.execs) {
        if (process->key != 0 && process->pid != 0 && !process->exit) return true;
    }
    return false;
}

void Runtime::save_or_log(const Container& container) {
    log_unless_saved(container, container.save());
}

void Runtime::log_unless_saved(const Container& container, const core::Status& saved) {
    if (saved.ok()) return;
    sys::log(sys::LogLevel::kError, "state.write", "%s: %s", container.id.text().c_str(),
             saved.error().message.c_str());
}

bool Runtime::shutdown(bool now) {
    if (shutting_down_) return true;
    if (!containers_.empty() && !now) return false;
    shutting_down_ = true;
    keeper_.shutdown(config_.is_helper != 0 ? core::ShutdownMode::kExitHelper
                                            : core::ShutdownMode::kPowerOff);
    return true;
}

}  // namespace berth::runtime
