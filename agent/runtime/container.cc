#include "agent/runtime/container.h"

#include "agent/core/text.h"
#include "agent/runtime/create_job.h"
#include "agent/runtime/freeze_job.h"
#include "agent/runtime/hook_run.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/stdio.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

template <typename Entry, typename Value>
void add_entry(Entry& entry, const std::string& key, const Value& value) {
    entry.set_key(key);
    entry.set_value(value);
}

void fill_counters(const core::MemoryEvents& from, v1::MemoryCounters& to) {
    to.set_low(from.low);
    to.set_high(from.high);
    to.set_max(from.max);
    to.set_oom(from.oom);
    to.set_oom_kill(from.oom_kill);
    to.set_oom_group_kill(from.oom_group_kill);
    if (from.sock_throttled != 0) add_entry(*to.add_other(), "sock_throttled", from.sock_throttled);
    for (const auto& [key, value] : from.others) add_entry(*to.add_other(), key, value);
}

void fill_state(const Process& process, pb::state::Process& out) {
    out.set_exec_id(process.exec_id().text());
    out.set_key(process.key);
    out.set_pid(process.pid);
    out.set_status(static_cast<uint32_t>(process.status));
    out.set_terminal(process.paths().terminal);
    out.set_plain_newlines(process.paths().plain_newlines);
    // A string is allocated even for an empty value.
    if (!process.paths().in.empty()) out.set_stdin(process.paths().in);
    if (!process.paths().out.empty()) out.set_stdout(process.paths().out);
    if (!process.paths().err.empty()) out.set_stderr(process.paths().err);
    if (!process.spec_json.empty()) out.set_spec(process.spec_json);
    out.set_stdin_closed(process.stdin_closed);
    out.set_is_owners(process.is_owners);
    out.set_added_sequence(process.added_sequence);
    out.set_start_sequence(process.start_sequence);
    out.set_remove_when_ended(process.remove_when_ended);
    out.set_with_descriptors(process.with_passed_files);
    if (!process.sub_cgroup.empty()) out.set_sub_cgroup(process.sub_cgroup);
    if (process.exit) {
        out.set_exit_status(process.exit->status);
        out.set_exited_at_ns(process.exit->at_unix_ns);
        out.set_oom_likely(process.exit->oom_likely);
    }
}

template <typename Counters>
void fill_counters_state(const core::MemoryEvents& from, Counters& to) {
    to.set_low(from.low);
    to.set_high(from.high);
    to.set_max(from.max);
    to.set_oom(from.oom);
    to.set_oom_kill(from.oom_kill);
    to.set_oom_group_kill(from.oom_group_kill);
}

}  // namespace

Container::Container(Runtime& runtime, core::ContainerId id_value)
    : id(std::move(id_value)), runtime_(runtime) {}

Container::~Container() {
    if (memory != nullptr) memory->retire();
    if (hook_run != nullptr) hook_run->cancel();
    if (freeze_job != nullptr) freeze_job->abandon();
}

Process* Container::find_process(std::string_view exec_id) {
    if (exec_id.empty()) return init_.get();
    auto found = execs.find(std::string(exec_id));
    return found == execs.end() ? nullptr : found->second.get();
}

const Process* Container::find_process(std::string_view exec_id) const {
    return const_cast<Container*>(this)->find_process(exec_id);
}

TaskStatus Container::status() const {
    if (init_ == nullptr || create_job != nullptr) return TaskStatus::kUnknown;
    if (init_->status == TaskStatus::kStopped) return TaskStatus::kStopped;
    if (paused) return TaskStatus::kPaused;
    if (freeze_job != nullptr && freeze_job->freezing()) return TaskStatus::kPausing;
    return init_->status;
}

void Container::keep_for_execs(core::ContainerSpec full) {
    spec = core::ContainerSpec();
    spec.process = std::move(full.process);
    spec.oci_version = std::move(full.oci_version);
    spec.hooks = std::move(full.hooks);
    spec.process.args = {};
    spec.process.env = {};
    spec.process.warnings = {};
    spec.process.ignored = {};
    spec.berth = full.berth;
    // That there is one; the rules are in the compiled profile.
    if (full.seccomp) {
        spec.seccomp.emplace();
        spec.seccomp->listener_path = std::move(full.seccomp->listener_path);
        spec.seccomp->listener_metadata = std::move(full.seccomp->listener_metadata);
    }
    spec.namespaces = std::move(full.namespaces);
    spec.id_map = std::move(full.id_map);
    spec.personality = full.personality;
    spec.memory_policy = std::move(full.memory_policy);
}

v1::Event Container::event(const core::ExecId& exec_id) const {
    v1::Event event;
    event.set_container_id(id.text());
    event.set_exec_id(exec_id.text());
    event.set_namespace_(containerd_namespace);
    return event;
}

void Container::check_memory() {
    if (memory == nullptr) return;
    if (auto reading = memory->read(); reading) on_memory(*reading);
}

void Container::on_memory(const MemoryReading& reading) {
    core::MemoryEvents total_increase = core::memory_events_since(memory_total, reading.total);
    core::MemoryEvents local_increase = core::memory_events_since(memory_local, reading.local);
    if (total_increase.empty() && local_increase.empty()) return;
    memory_total = reading.total;
    memory_local = reading.local;
    v1::Event grown = event(core::ExecId());
    v1::MemoryEvents& out = *grown.mutable_memory();
    fill_counters(memory_total, *out.mutable_total());
    fill_counters(memory_local, *out.mutable_local());
    fill_counters(total_increase, *out.mutable_total_increase());
    fill_counters(local_increase, *out.mutable_local_increase());
    memory_sequence = runtime_.events().emit(std::move(grown), this);
    if (auto saved = save(create_job != nullptr); !saved.ok()) {
        sys::log(sys::LogLevel::kError, "state.write", "%s: %s", id.text().c_str(),
                 saved.error().message.c_str());
    }
}

void Container::fill_memory(v1::MemoryEvents& out) const {
    fill_counters(memory_total, *out.mutable_total());
    fill_counters(memory_local, *out.mutable_local());
}

core::Status Container::save(bool creating) const {
    pb::state::Container state;
    state.set_version(kStateVersion);
    state.set_id(id.text());
    state.set_containerd_namespace(containerd_namespace);
    state.set_bundle(bundle);
    state.set_creating(creating);
    state.set_cgroup_path(cgroup_path);
    state.set_two_cgroup_levels(cgroup.two_levels());
    if (init_ != nullptr) fill_state(*init_, *state.add_processes());
    for (const auto& [exec_id, process] : execs) fill_state(*process, *state.add_processes());
    state.set_paused(paused);
    state.set_created_at_ns(created_at_ns);
    state.set_resources_json(resources_json);
    fill_counters_state(memory_total, *state.mutable_memory_total());
    fill_counters_state(memory_local, *state.mutable_memory_local());
    state.set_memory_sequence(memory_sequence);
    state.set_stdio_drop(stdio_drop);
    state.set_is_owners(is_owners);
    for (const auto& [key, value] : annotations) add_entry(*state.add_annotations(), key, value);
    state.set_exit_oom_kill_local(exit_oom_kill_local);
    state.set_update_undo(update_undo);
    state.set_name(name);
    return state_log_.append(runtime_.config().run_dir, id.text(), state.SerializeAsString(),
                             &runtime_.open_state_file());
}

core::Status Container::save_process(const Process& process, bool removed) const {
    pb::state::Container change;
    pb::state::Process& changed = *change.add_processes();
    if (removed) {
        changed.set_exec_id(process.exec_id().text());
        changed.set_removed(true);
    } else {
        fill_state(process, changed);
    }
    change.set_exit_oom_kill_local(exit_oom_kill_local);
    if (state_log_.append_change(runtime_.config().run_dir, id.text(), change.SerializeAsString(),
                                 &runtime_.open_state_file())) {
        return core::ok();
    }
    return save();
}

}  // namespace berth::runtime
