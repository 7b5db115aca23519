#include "agent/keeper/exit_table.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>

#include "agent/core/limits.h"

using berth::core::ProcessRecord;
using berth::keeper::ExitTable;
using berth::keeper::Process;
using berth::keeper::ProcessState;
using berth::sys::UniqueFd;

namespace {

ProcessRecord exit_of(int32_t pid, int32_t status, int64_t at_ns = 1) {
    return {.key = 0, .pid = pid, .wait_status = status, .exited_realtime_ns = at_ns};
}
UniqueFd make() {
    return UniqueFd(::eventfd(0, EFD_CLOEXEC));
}

}  // namespace

TEST_CASE("an exit is told once, and kept until it is acknowledged") {
    ExitTable table;
    table.add(5, 100, make(), ProcessState::kRunning);
    CHECK(table.next_untold() == nullptr);
    CHECK(!table.acknowledge(5));
    CHECK(table.on_reaped(exit_of(100, 0x700, 77)));
    Process* process = table.next_untold();
    REQUIRE(process != nullptr);
    CHECK(process->record.key == 5);
    CHECK(process->record.pid == 100);
    CHECK(process->record.wait_status == 0x700);
    CHECK(process->record.exited_realtime_ns == 77);
    CHECK(!process->pidfd.valid());
    process->is_told = true;
    CHECK(table.next_untold() == nullptr);
    CHECK(table.size() == 1);
    CHECK(table.acknowledge(5));
    CHECK(!table.acknowledge(5));
    CHECK(table.size() == 0);
}

TEST_CASE("exits are told in their order; a new agent is told again by the walk") {
    ExitTable table;
    for (int i = 1; i <= 3; ++i) table.add(static_cast<uint64_t>(i), 100 + i, make(), ProcessState::kRunning);
    CHECK(table.on_reaped(exit_of(103, 0)));
    CHECK(table.on_reaped(exit_of(101, 0)));
    CHECK(table.next_untold()->record.key == 3);
    table.next_untold()->is_told = true;
    CHECK(table.next_untold()->record.key == 1);
    table.forget_told();
    CHECK(table.next_untold() == nullptr);
    CHECK(table.next_after(std::nullopt)->record.key == 1);
    CHECK(table.next_after(1)->record.key == 2);
    CHECK(!table.next_after(1)->has_exited);
    CHECK(!table.next_after(2)->is_told);
    CHECK(table.next_after(3) == nullptr);
}

TEST_CASE("an exit before the registration is found, once") {
    ExitTable table;
    CHECK(!table.on_reaped(exit_of(200, 0x900, 5)));
    table.add(1, 200, make(), ProcessState::kReaped);
    CHECK(table.next_untold()->record.wait_status == 0x900);
    table.next_untold()->is_told = true;
    table.add(2, 200, make(), ProcessState::kReaped);
    CHECK(table.next_untold()->record.wait_status == ExitTable::kLostStatus);
}

TEST_CASE("a pid that is used again takes nothing from its predecessor") {
    ExitTable table;
    CHECK(!table.on_reaped(exit_of(300, 0x100)));
    table.add(1, 300, make(), ProcessState::kRunning);
    CHECK(table.next_untold() == nullptr);
    CHECK(table.on_reaped(exit_of(300, 0x200)));
    CHECK(table.next_untold()->record.wait_status == 0x200);
    // Of two unregistered ends of one number the later is meant.
    CHECK(!table.on_reaped(exit_of(300, 0x300)));
    CHECK(table.forget(1));
    table.add(2, 300, make(), ProcessState::kReaped);
    CHECK(table.next_untold()->record.wait_status == 0x300);
}

TEST_CASE("the unregistered exits are bounded; the oldest go") {
    ExitTable table;
    auto limit = static_cast<int32_t>(berth::limits::kUnregisteredExits);
    for (int32_t pid = 1; pid <= limit + 1; ++pid) CHECK(!table.on_reaped(exit_of(pid, 0x100)));
    table.add(1, 1, make(), ProcessState::kReaped);
    CHECK(table.next_untold()->record.wait_status == ExitTable::kLostStatus);
    table.next_untold()->is_told = true;
    table.add(2, 2, make(), ProcessState::kReaped);
    CHECK(table.next_untold()->record.wait_status == 0x100);
}

TEST_CASE("a forgotten process is nobody's, running or not") {
    ExitTable table;
    table.add(1, 400, make(), ProcessState::kRunning);
    table.add(2, 401, make(), ProcessState::kRunning);
    CHECK(table.on_reaped(exit_of(401, 0)));
    CHECK(table.forget(1));
    CHECK(table.forget(2));
    CHECK(!table.forget(2));
    CHECK(table.next_untold() == nullptr);
    CHECK(!table.on_reaped(exit_of(400, 0)));
    CHECK(table.size() == 0);
}
