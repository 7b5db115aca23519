// Deletion: of containers and execs, and of whatever is known of them.
#include <malloc.h>
#include <signal.h>

#include "agent/core/text.h"
#include "agent/runtime/cgroup_teardown.h"
#include "agent/runtime/hook_run.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/update_job.h"
#include "agent/sys/log.h"

namespace berth::runtime {

using core::Code;
using core::make_error;

void Runtime::remove(const core::ContainerId& id, const core::ExecId& exec_id, Done<DeleteOutcome> done) {
    std::string where = context("delete", id, exec_id);
    auto found = find(id, exec_id);
    if (!found.ok()) return done(std::move(found).error().within(where));
    Process& process = **found;
    Container& container = *containers_[id.text()];
    if (container.deleting) return done(make_error(Code::kFailedPrecondition, where + ": is being deleted"));
    if (process.starting && process.is_init()) {
        return done(make_error(Code::kFailedPrecondition, where + ": is being started"));
    }
    if (process.is_init() && process.status == TaskStatus::kCreated)
        return remove_unstarted(container, std::move(done));
    bool never_started = !process.is_init() && process.status == TaskStatus::kUnknown && !process.starting;
    if (process.status != TaskStatus::kStopped && !never_started) {
        return done(make_error(Code::kFailedPrecondition, where + ": is not stopped"));
    }
    if (!process.is_init()) return done(remove_exec(container, process));
    if (container.update_job != nullptr) {
        // rmdir waits for whoever is inside a file of the cgroup: first the write has to end.
        UpdateJob& update = *container.update_job;
        update.cancel(make_error(Code::kFailedPrecondition, "the container is being deleted"));
        return update.when_over(
            [this, id, exec_id, done = std::move(done)]() mutable { remove(id, exec_id, std::move(done)); });
    }
    for (const auto& [other_id, other] : container.execs) {
        if (other->starting || (other->status == TaskStatus::kRunning && shares_pid_namespace(container))) {
            // They are killed with the cgroup below; their exits are awaited there.
            (void)other->signal(SIGKILL);
        }
    }
    container.deleting = true;
    container.check_memory();
    auto shared = containers_[id.text()];
    CgroupTeardown::begin(
        loop_, cgroup_place(container.cgroup_path), std::move(container.cgroup.outer),
        [this, shared, where, done = std::move(done)](core::Status status) mutable {
            if (!status.ok()) {
                shared->deleting = false;
                if (auto open = open_cgroup_dirs(*shared, shared->cgroup.two_levels()); !open.ok()) {
                    sys::log(sys::LogLevel::kError, "cgroup.open", "%s", open.error().message.c_str());
                }
                return done(std::move(status).error().within(where));
            }
            // Every exit is told before the deletion: those of execs that went with the cgroup are on their
            // way.
            auto finish = [this, shared, done = std::move(done)]() mutable {
                if (!shared->spec.hooks.has(core::HookKind::kPoststop)) return done(finish_remove(*shared));
                shared->hook_run = HookRun::begin(
                    *this, shared, {core::HookKind::kPoststop}, "stopped", HookRun::OnFailure::kWarn,
                    [this, shared, done = std::move(done)](core::Status) mutable {
                        shared->hook_run.reset();
                        done(finish_remove(*shared));
                    });
            };
            if (!has_live_exec(*shared)) return finish();
            shared->on_execs_ended = std::move(finish);
        });
}

// Nothing of it has run: whoever deletes it ends it. Its exit is told before its deletion, like any other.
void Runtime::remove_unstarted(Container& container, Done<DeleteOutcome> done) {
    std::string where = context("delete", container.id, core::ExecId());
    if (auto killed = container.init().signal(SIGKILL);
        !killed.ok() && killed.error().code != Code::kNotFound) {
        return done(std::move(killed).error().within(where));
    }
    container.deleting = true;  // no Start from here on
    auto shared = containers_[container.id.text()];
    container.init().add_waiter([this, shared, done = std::move(done)](const ExitRecord&) mutable {
        shared->deleting = false;
        remove(shared->id, core::ExecId(), std::move(done));
    });
}

bool Runtime::shares_pid_namespace(const Container& container) const {
    const core::NamespaceSpec* pid = container.spec.find_namespace(core::kNewPid);
    return pid == nullptr || !pid->path.empty();
}

// Later: whoever calls this looks at the process once more.
void Runtime::remove_when_ended(Process& process) {
    if (!process.remove_when_ended) return;
    ended_execs_.emplace_back(process.container().id.text(), process.exec_id().text());
    ended_execs_task_.post();
}

void Runtime::remove_ended_execs() {
    auto ended = std::move(ended_execs_);
    ended_execs_.clear();
    for (const auto& [id, exec_id] : ended) {
        auto found = containers_.find(id);
        if (found == containers_.end()) continue;
        Process* process = found->second->find_process(exec_id);
        if (process != nullptr && process->exit) remove_exec(*found->second, *process);
    }
}

DeleteOutcome Runtime::remove_exec(Container& container, Process& process) {
    DeleteOutcome outcome{process.pid, process.exit.value_or(ExitRecord{})};
    v1::Event deleted = container.event(process.exec_id());
    deleted.mutable_deleted();
    events_.emit(std::move(deleted), &container);
    release_process(container, process);
    auto removed = container.execs.extract(process.exec_id().text());
    log_unless_saved(container, container.save_process(process, true));
    return outcome;
}

void Runtime::release_process(Container& container, Process& process) {
    process.end_launch();
    if (process.launch_is_stored) keeper_.drop(container.launch_prefix(process.exec_id()));
    // What was not read yet stays readable for a while.
    process.stdio.reset();
    streams_.remove_process(container.id.text(), process.exec_id().text());
    if (process.key != 0) keys_.erase(process.key);
}

DeleteOutcome Runtime::finish_remove(Container& container) {
    DeleteOutcome outcome{container.init().pid, container.init().exit.value_or(ExitRecord{})};
    v1::Event deleted = container.event(core::ExecId());
    deleted.mutable_deleted();
    events_.emit(std::move(deleted), &container);
    forget(container);
    return outcome;
}

void Runtime::forget(Container& container) {
    if (container.memory != nullptr) container.memory->retire();
    container.memory.reset();
    for (auto& [exec_id, process] : container.execs) release_process(container, *process);
    release_process(container, container.init());
    open_state_file_.close();
    remove_state(config_.run_dir, container.id.text());
    containers_.erase(container.id.text());
    trim_heap_later();
}

void Runtime::on_heap_trim() {
    malloc_trim(0);
}

}  // namespace berth::runtime
