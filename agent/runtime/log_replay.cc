#include "agent/runtime/log_replay.h"

#include <cstdint>
#include <memory>

namespace berth::runtime {
namespace {

core::MemoryEvents counters_of(const v1::MemoryCounters& from) {
    core::MemoryEvents counters = known_counters(from);
    for (const pb::Counter& other : from.other()) {
        if (other.key() == "sock_throttled") {
            counters.sock_throttled = other.value();
        } else {
            counters.others.emplace_back(other.key(), other.value());
        }
    }
    return counters;
}

}  // namespace

void Runtime::LogReplay::read() {
    EventHub& events = runtime_.events_;
    last_ = events.last_sequence();
    for (uint64_t sequence = events.first_sequence(); sequence <= events.last_sequence(); ++sequence) {
        auto encoded = events.read(sequence);
        v1::Event event;
        if (!encoded || !event.ParseFromString(*encoded)) continue;
        if (oldest_ns_ == 0) oldest_ns_ = sequence == 1 ? INT64_MIN : event.time_unix_ns();
        auto found = runtime_.containers_.find(event.container_id());
        if (found == runtime_.containers_.end()) continue;
        Container& container = *found->second;
        if (event.time_unix_ns() < container.created_at_ns) continue;  // of an older container of that id
        told_.insert(name_of(event.what_case(), event.container_id(), event.exec_id()));
        if (event.has_deleted()) deleted_.emplace(event.container_id(), event.exec_id());
        // The last one is read again: it has the counters that the state file has no field for.
        if (event.has_memory() && sequence >= container.memory_sequence) {
            container.memory_total = counters_of(event.memory().total());
            container.memory_local = counters_of(event.memory().local());
            container.memory_sequence = sequence;
        }
        Process* process = container.find_process(event.exec_id());
        if (process != nullptr && event.has_exited()) take_exit(container, *process, event);
    }
}

void Runtime::LogReplay::take_exit(Container& container, Process& process, const v1::Event& event) {
    if (process.exit || event.exited().pid() != static_cast<uint32_t>(process.pid)) return;
    process.exit = ExitRecord{event.exited().exit_status(), event.exited().exited_at_unix_ns(),
                              event.exited().oom_likely()};
    process.status = TaskStatus::kStopped;
    runtime_.keys_.erase(process.key);  // the keeper's own report of it is acknowledged as nobody's
    runtime_.save_or_log(container);
}

void Runtime::LogReplay::tell() {
    for (auto& [id, container] : runtime_.containers_) {
        // What was evicted from the log was told.
        bool has_all = oldest_ns_ < container->created_at_ns;
        tell_process(*container, container->init(), has_all);
        for (const auto& [exec_id, process] : container->execs) tell_process(*container, *process, has_all);
    }
}

void Runtime::LogReplay::tell_process(Container& container, Process& process, bool has_all) {
    const std::string& id = container.id.text();
    const std::string& exec_id = process.exec_id().text();
    auto is_told = [&](v1::Event::WhatCase what) { return told_.contains(name_of(what, id, exec_id)); };
    auto pid = static_cast<uint32_t>(process.pid);
    if (has_all && process.is_init() && !is_told(v1::Event::kCreated)) {
        v1::Event event = container.event(process.exec_id());
        event.mutable_created()->set_pid(pid);
        runtime_.events_.emit(std::move(event), &container);
    }
    // These two are known exactly, however long ago the container was created and what was evicted since.
    if (!process.is_init() && process.added_sequence > last_) {
        v1::Event event = container.event(process.exec_id());
        event.mutable_exec_added();
        runtime_.events_.emit(std::move(event), &container);
    }
    bool start_is_told = process.start_sequence != 0 && process.start_sequence <= last_;
    if (process.status == TaskStatus::kRunning && !start_is_told) runtime_.tell_start(container, process);
}

void Runtime::LogReplay::finish_deletions() {
    for (const auto& [id, exec_id] : deleted_) {
        auto found = runtime_.containers_.find(id);
        if (found == runtime_.containers_.end()) continue;
        std::shared_ptr<Container> container = found->second;
        Process* process = container->find_process(exec_id);
        // One without an exit is a newer exec of the same id.
        if (process == nullptr || !process->exit) continue;
        if (process->is_init()) {
            runtime_.forget(*container);
        } else {
            runtime_.release_process(*container, *process);
            container->execs.erase(exec_id);
            runtime_.save_or_log(*container);
        }
    }
}

}  // namespace berth::runtime
