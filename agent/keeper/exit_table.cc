#include "agent/keeper/exit_table.h"

#include "agent/core/limits.h"

namespace berth::keeper {

void ExitTable::add(uint64_t key, int32_t pid, sys::UniqueFd pidfd, ProcessState state) {
    forget(key);
    Process& process = processes_[key];
    process.record.key = key;
    process.record.pid = pid;
    if (state == ProcessState::kRunning) {
        process.pidfd = std::move(pidfd);
        key_of_pid_[pid] = key;
        return;
    }
    core::ProcessRecord lost;
    lost.wait_status = kLostStatus;
    mark_exited(process, take_unregistered(pid).value_or(lost));
}

bool ExitTable::on_reaped(core::ProcessRecord exit) {
    auto found = key_of_pid_.find(exit.pid);
    if (found == key_of_pid_.end()) {
        remember_unregistered(exit);
        return false;
    }
    Process& process = processes_[found->second];
    key_of_pid_.erase(found);
    mark_exited(process, exit);
    return true;
}

bool ExitTable::acknowledge(uint64_t key) {
    auto found = processes_.find(key);
    if (found == processes_.end() || !found->second.has_exited) return false;
    processes_.erase(found);
    return true;
}

bool ExitTable::forget(uint64_t key) {
    auto found = processes_.find(key);
    if (found == processes_.end()) return false;
    if (!found->second.has_exited) key_of_pid_.erase(found->second.record.pid);
    processes_.erase(found);
    return true;
}

Process* ExitTable::next_after(std::optional<uint64_t> key) {
    auto found = key ? processes_.upper_bound(*key) : processes_.begin();
    return found == processes_.end() ? nullptr : &found->second;
}

Process* ExitTable::next_untold() {
    while (!untold_.empty()) {
        auto found = processes_.find(untold_.front());
        if (found != processes_.end() && found->second.has_exited && !found->second.is_told)
            return &found->second;
        untold_.pop_front();
    }
    return nullptr;
}

void ExitTable::forget_told() {
    for (auto& [key, process] : processes_) process.is_told = false;
    untold_.clear();
}

void ExitTable::mark_exited(Process& process, const core::ProcessRecord& exit) {
    process.record.wait_status = exit.wait_status;
    process.record.exited_realtime_ns = exit.exited_realtime_ns;
    process.has_exited = true;
    process.pidfd.reset();
    untold_.push_back(process.record.key);
}

void ExitTable::remember_unregistered(const core::ProcessRecord& exit) {
    if (unregistered_.size() >= limits::kUnregisteredExits) unregistered_.pop_front();
    unregistered_.push_back(exit);
}

std::optional<core::ProcessRecord> ExitTable::take_unregistered(int32_t pid) {
    // The newest first: an older entry of the same number is another process.
    for (auto entry = unregistered_.rbegin(); entry != unregistered_.rend(); ++entry) {
        if (entry->pid != pid) continue;
        core::ProcessRecord found = *entry;
        unregistered_.erase(std::next(entry).base());
        return found;
    }
    return std::nullopt;
}

}  // namespace berth::keeper
