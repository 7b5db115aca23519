#include "agent/core/cgroup_plan.h"

#include <doctest/doctest.h>

#include "tests/support/core/plan_rows.h"

using namespace berth::core;
using namespace berth::test;

namespace {

struct Row {
    const char* request;
    const char* expected;
};

void check_create(const CgroupFacts& facts, std::initializer_list<Row> rows) {
    for (const Row& row : rows) {
        CAPTURE(row.request);
        CHECK(planned("", row.request, facts, PlanMode::kCreate) == row.expected);
    }
}

struct UpdateRow {
    const char* stored;
    const char* request;
    FileContents current;
    const char* expected;
};

void check_update(std::initializer_list<UpdateRow> rows) {
    for (const UpdateRow& row : rows) {
        CAPTURE(row.stored);
        CAPTURE(row.request);
        CgroupFacts facts = full_facts();
        facts.current = row.current;
        CHECK(planned(row.stored, row.request, facts, PlanMode::kUpdate) == row.expected);
    }
}

}  // namespace

TEST_CASE("an empty request writes nothing") {
    check_create(full_facts(),
                 {{"{}", ""},
                  {R"({"memory":{},"cpu":{},"pids":{},"blockIO":{},"network":{},"unified":{}})", ""},
                  {R"({"memory":{"limit":0,"reservation":0,"swap":0}})", ""},
                  {R"({"cpu":{"shares":0,"quota":0,"period":0,"cpus":"","mems":""}})", ""},
                  {R"({"memory":null,"cpu":{"shares":null}})", ""}});
    check_create(CgroupFacts{}, {{"{}", ""}, {R"({"devices":[]})", ""}});
}

TEST_CASE("cpu: shares, quota, period, burst, idle, sets") {
    check_create(
        full_facts(),
        {{R"({"cpu":{"shares":1024}})", "cpu.weight=100"},
         {R"({"cpu":{"shares":2}})", "cpu.weight=1"},
         {R"({"cpu":{"shares":1}})", "cpu.weight=1"},
         {R"({"cpu":{"shares":18446744073709551615}})", "cpu.weight=10000"},
         {R"({"cpu":{"quota":50000,"period":200000}})", "cpu.max=50000 200000"},
         {R"({"cpu":{"quota":50000}})", "cpu.max=50000 100000"},
         {R"({"cpu":{"period":50000}})", "cpu.max=max 50000"},
         {R"({"cpu":{"quota":-1,"period":50000}})", "cpu.max=max 50000"},
         {R"({"cpu":{"quota":-1}})", "cpu.max=max 100000"},
         {R"({"cpu":{"quota":50000,"burst":50000}})", "cpu.max=50000 100000; cpu.max.burst=50000"},
         {R"({"cpu":{"burst":20000}})", "cpu.max.burst=20000"},
         {R"({"cpu":{"burst":0}})", "cpu.max.burst=0"},
         {R"({"cpu":{"idle":1}})", "cpu.idle=1"},
         {R"({"cpu":{"idle":1,"shares":512}})", "cpu.idle=1"},
         {R"({"cpu":{"idle":0,"shares":512}})", "cpu.idle=0; cpu.weight=59"},
         {R"({"cpu":{"idle":0,"shares":0}})", "cpu.idle=0"},  // 0 is no weight
         {R"({"cpu":{"cpus":"0-3,7","mems":"0"}})", "cpuset.cpus=0-3,7; cpuset.mems=0"},
         {R"({"unified":{"cpu.max.burst":"1000"},"cpu":{"burst":5,"quota":1000}})",
          "cpu.max=1000 100000; cpu.max.burst=1000"},
         {R"({"unified":{"cpu.uclamp.min":"12.5","cpu.uclamp.max":"100"}})",
          "cpu.uclamp.min=12.50; cpu.uclamp.max=max"},
         {R"({"cpu":{"quota":-2}})",
          "INVALID_ARGUMENT: cpu.quota: -2 is negative; only -1 (no limit) may be"},
         {R"({"cpu":{"quota":999}})",
          "INVALID_ARGUMENT: cpu.quota: 999 is below the kernel's least, 1000 microseconds"},
         {R"({"cpu":{"quota":9223372036854775807}})",
          "INVALID_ARGUMENT: cpu.quota: 9223372036854775807 is above the kernel's most, 17592186044415 "
          "microseconds"},
         {R"({"cpu":{"period":999}})",
          "INVALID_ARGUMENT: cpu.period: 999 is outside 1000 to 1000000 microseconds"},
         {R"({"cpu":{"period":1000001}})",
          "INVALID_ARGUMENT: cpu.period: 1000001 is outside 1000 to 1000000 microseconds"},
         {R"({"cpu":{"quota":50000,"burst":50001}})",
          "INVALID_ARGUMENT: cpu.burst: 50001 is above the quota 50000 (microseconds)"},
         {R"({"cpu":{"quota":17592186044415,"burst":1}})",
          "INVALID_ARGUMENT: cpu.burst: 1 and the quota 17592186044415 together are above the kernel's most, "
          "17592186044415 microseconds"},
         {R"({"cpu":{"burst":18446744073709551615}})",
          "INVALID_ARGUMENT: cpu.burst: 18446744073709551615 is above the kernel's most, 17592186044415 "
          "microseconds"},
         {R"({"cpu":{"idle":2}})", "INVALID_ARGUMENT: cpu.idle: 2 is neither 0 nor 1"},
         {R"({"cpu":{"idle":-1}})", "INVALID_ARGUMENT: cpu.idle: -1 is neither 0 nor 1"},
         {R"({"cpu":{"cpus":"0-"}})",
          "INVALID_ARGUMENT: cpu.cpus: \"0-\" is not a list of numbers and ranges like 0-3,7"},
         {R"({"cpu":{"cpus":"3-1"}})",
          "INVALID_ARGUMENT: cpu.cpus: \"3-1\" is not a list of numbers and ranges like 0-3,7"},
         {R"({"cpu":{"mems":"0\n1"}})",
          "INVALID_ARGUMENT: cpu.mems: \"0\\n1\" is not a list of numbers and ranges like 0-3,7"},
         {R"({"cpu":{"realtimeRuntime":950000}})",
          "INVALID_ARGUMENT: cpu.realtimeRuntime: cgroup v2 has no such setting"},
         {R"({"cpu":{"realtimePeriod":1000000}})",
          "INVALID_ARGUMENT: cpu.realtimePeriod: cgroup v2 has no such setting"},
         {R"({"cpu":{"realtimeRuntime":0,"realtimePeriod":0}})", ""}});
    check_create(
        full_facts("cpu.weight cpu.idle cpu.max cpu.max.burst cpuset.cpus cpuset.mems cpu.uclamp.min"),
        {{R"({"cpu":{"shares":2}})",
          "FAILED_PRECONDITION: cpu.shares: this guest has no cpu.weight (controller cpu)"},
         {R"({"cpu":{"quota":5000}})",
          "FAILED_PRECONDITION: cpu.quota: this guest has no cpu.max (controller cpu)"},
         {R"({"cpu":{"period":5000}})",
          "FAILED_PRECONDITION: cpu.period: this guest has no cpu.max (controller cpu)"},
         {R"({"cpu":{"burst":5}})",
          "FAILED_PRECONDITION: cpu.burst: this guest has no cpu.max.burst (controller cpu)"},
         {R"({"cpu":{"burst":0}})", ""},
         {R"({"cpu":{"idle":1}})",
          "FAILED_PRECONDITION: cpu.idle: this guest has no cpu.idle (controller cpu)"},
         {R"({"cpu":{"idle":0}})", ""},
         {R"({"cpu":{"cpus":"0"}})",
          "FAILED_PRECONDITION: cpu.cpus: this guest has no cpuset.cpus (controller cpuset)"},
         {R"({"cpu":{"mems":"0"}})",
          "FAILED_PRECONDITION: cpu.mems: this guest has no cpuset.mems (controller cpuset)"},
         {R"({"unified":{"cpu.uclamp.min":"5"}})",
          "FAILED_PRECONDITION: unified[\"cpu.uclamp.min\"]: this guest has no cpu.uclamp.min (controller "
          "cpu)"}});
}

TEST_CASE("cpu on update: one of the two alone keeps the other, the burst order, idle and weight") {
    check_update({
        {R"({"cpu":{"quota":50000,"period":200000}})",
         R"({"cpu":{"quota":70000}})",
         {},
         "cpu.max=70000 200000"},
        {R"({"cpu":{"quota":50000}})", R"({"cpu":{"period":20000}})", {}, "cpu.max=50000 20000"},
        {"", R"({"cpu":{"period":20000}})", {{"cpu.max", "30000 100000\n"}}, "cpu.max=30000 20000"},
        {"", R"({"cpu":{"quota":20000}})", {{"cpu.max", "max 50000\n"}}, "cpu.max=20000 50000"},
        {R"({"cpu":{"quota":50000}})", R"({"cpu":{"quota":-1}})", {}, "cpu.max=max 100000"},
        // The quota shrinks below the old burst: burst first. It grows: quota first.
        {R"({"cpu":{"quota":50000,"burst":40000}})",
         R"({"cpu":{"quota":20000,"burst":10000}})",
         {{"cpu.max", "50000 100000\n"}, {"cpu.max.burst", "40000\n"}},
         "cpu.max.burst=10000; cpu.max=20000 100000"},
        {R"({"cpu":{"quota":20000,"burst":10000}})",
         R"({"cpu":{"quota":50000,"burst":40000}})",
         {{"cpu.max", "20000 100000\n"}, {"cpu.max.burst", "10000\n"}},
         "cpu.max=50000 100000; cpu.max.burst=40000"},
        {R"({"cpu":{"quota":50000,"burst":40000}})",
         R"({"cpu":{"quota":20000}})",
         {{"cpu.max", "50000 100000\n"}, {"cpu.max.burst", "40000\n"}},
         "INVALID_ARGUMENT: cpu.burst: 40000 is above the quota 20000 (microseconds)"},
        {"",
         R"({"unified":{"cpu.max.burst":"30000"}})",
         {{"cpu.max", "20000 100000\n"}},
         "INVALID_ARGUMENT: cpu.burst: 30000 is above the quota 20000 (microseconds)"},
        {R"({"cpu":{"shares":512}})", R"({"cpu":{"idle":1}})", {}, "cpu.idle=1"},
        {R"({"cpu":{"shares":512,"idle":1}})", R"({"cpu":{"idle":0}})", {}, "cpu.idle=0; cpu.weight=59"},
        {R"({"cpu":{"shares":512,"idle":1}})", R"({"cpu":{"shares":1024}})", {}, ""},
        {"", R"({"cpu":{"shares":1024}})", {{"cpu.idle", "1\n"}}, ""},
        {"", R"({"cpu":{"shares":1024}})", {{"cpu.idle", "0\n"}}, "cpu.weight=100"},
    });
}

TEST_CASE("memory: limit, reservation, the unified keys, page rounding") {
    check_create(
        full_facts(),
        {{R"({"memory":{"limit":67108864}})", "memory.max=67108864"},
         {R"({"memory":{"limit":33554433}})", "memory.max=33554432"},
         {R"({"memory":{"limit":9223372036854775807}})", "memory.max=max"},
         {R"({"memory":{"limit":-1}})", "memory.swap.max=max; memory.max=max"},
         {R"({"memory":{"reservation":1048576}})", "memory.low=1048576"},
         {R"({"memory":{"reservation":-1}})", "memory.low=max"},
         {R"({"memory":{"reservation":1048576},"unified":{"memory.low":"4096"}})", "memory.low=4096"},
         {R"({"memory":{"limit":67108864},"unified":{"memory.max":"33554432"}})", "memory.max=33554432"},
         {R"({"unified":{"memory.min":"4097","memory.low":"8191","memory.high":"max","memory.max":"max",)"
          R"("memory.oom.group":"1","memory.swap.max":"0"}})",
          "memory.oom.group=1; memory.low=4096; memory.min=4096; memory.swap.max=0; memory.high=max; "
          "memory.max=max"},
         {R"({"memory":{"limit":-2}})",
          "INVALID_ARGUMENT: memory.limit: -2 is negative; only -1 (no limit) may be"},
         {R"({"memory":{"reservation":-2}})",
          "INVALID_ARGUMENT: memory.reservation: -2 is negative; only -1 (no limit) may be"},
         {R"({"memory":{"kernel":1048576}})",
          "INVALID_ARGUMENT: memory.kernel: cgroup v2 has no such setting"},
         {R"({"memory":{"kernelTCP":1048576}})",
          "INVALID_ARGUMENT: memory.kernelTCP: cgroup v2 has no such setting"},
         {R"({"memory":{"swappiness":60}})",
          "INVALID_ARGUMENT: memory.swappiness: cgroup v2 has no such setting"},
         {R"({"memory":{"disableOOMKiller":true}})",
          "INVALID_ARGUMENT: memory.disableOOMKiller: cgroup v2 has no such setting"},
         {R"({"memory":{"useHierarchy":false}})",
          "INVALID_ARGUMENT: memory.useHierarchy: cgroup v2 is always hierarchical"},
         {R"({"memory":{"kernel":-1,"kernelTCP":-1,"swappiness":0,"disableOOMKiller":false,"useHierarchy":true}})",
          ""},
         {R"({"memory":{"limit":9223372036854775808}})",
          "INVALID_ARGUMENT: resources.memory.limit: must be a number from -9223372036854775808 to "
          "9223372036854775807"}});
    CgroupFacts large_pages = full_facts();
    large_pages.page_size = 65536;
    check_create(large_pages, {{R"({"memory":{"limit":33554433,"swap":33655432}})",
                                "memory.swap.max=65536; memory.max=33554432"}});
    check_create(
        full_facts("memory.max memory.low memory.high"),
        {{R"({"memory":{"limit":4096}})",
          "FAILED_PRECONDITION: memory.limit: this guest has no memory.max (controller memory)"},
         {R"({"memory":{"reservation":4096}})",
          "FAILED_PRECONDITION: memory.reservation: this guest has no memory.low (controller memory)"},
         {R"({"pids":{"limit":5},"unified":{"memory.high":"4096"}})",
          "FAILED_PRECONDITION: unified[\"memory.high\"]: this guest has no memory.high (controller "
          "memory)"}});
}

TEST_CASE("memory.swap: every case of the table, on create") {
    check_create(
        full_facts(),
        {{R"({"memory":{"limit":536870912,"swap":1073741824}})",
          "memory.swap.max=536870912; memory.max=536870912"},
         {R"({"memory":{"limit":536870912,"swap":536870912}})", "memory.swap.max=0; memory.max=536870912"},
         {R"({"memory":{"limit":67108864,"swap":100663296}})",
          "memory.swap.max=33554432; memory.max=67108864"},
         {R"({"memory":{"limit":536870912,"swap":268435456}})",
          "INVALID_ARGUMENT: memory.swap: 268435456 (memory and swap together) is below the memory limit "
          "536870912"},
         {R"({"memory":{"swap":1073741824}})",
          "INVALID_ARGUMENT: memory.swap: 1073741824 is memory and swap together, but no memory limit is "
          "known to "
          "subtract from it"},
         {R"({"memory":{"limit":0,"swap":1073741824}})",
          "INVALID_ARGUMENT: memory.swap: 1073741824 is memory and swap together, but no memory limit is "
          "known to "
          "subtract from it"},
         {R"({"memory":{"swap":-1}})", "memory.swap.max=max"},
         {R"({"memory":{"swap":0}})", ""},
         {R"({"memory":{"limit":536870912,"swap":0}})", "memory.max=536870912"},
         {R"({"memory":{"limit":536870912}})", "memory.max=536870912"},
         {R"({"memory":{"limit":536870912,"swap":-1}})", "memory.swap.max=max; memory.max=536870912"},
         {R"({"memory":{"limit":-1}})", "memory.swap.max=max; memory.max=max"},
         {R"({"memory":{"limit":-1,"swap":0}})", "memory.swap.max=max; memory.max=max"},
         {R"({"memory":{"limit":-1,"swap":1073741824}})", "memory.swap.max=1073741824; memory.max=max"},
         {R"({"memory":{"limit":-1,"swap":-1}})", "memory.swap.max=max; memory.max=max"},
         {R"({"memory":{"swap":-2}})",
          "INVALID_ARGUMENT: memory.swap: -2 is negative; only -1 (no limit) may be"},
         {R"({"memory":{"limit":536870912,"swap":-2}})",
          "INVALID_ARGUMENT: memory.swap: -2 is negative; only -1 (no limit) may be"},
         {R"({"memory":{"limit":-2,"swap":5}})",
          "INVALID_ARGUMENT: memory.limit: -2 is negative; only -1 (no limit) may be"},
         {R"({"memory":{"limit":4096,"swap":9223372036854775807}})",
          "memory.swap.max=9223372036854767616; memory.max=4096"},
         {R"({"memory":{"limit":9223372036854775807,"swap":9223372036854775807}})",
          "memory.swap.max=0; memory.max=max"},
         {R"({"memory":{"limit":4096,"swap":9223372036854775808}})",
          "INVALID_ARGUMENT: resources.memory.swap: must be a number from -9223372036854775808 to "
          "9223372036854775807"},
         // unified["memory.max"] is the effective limit.
         {R"({"memory":{"limit":67108864,"swap":100663296},"unified":{"memory.max":"33554432"}})",
          "memory.swap.max=67108864; memory.max=33554432"},
         {R"({"memory":{"swap":100663296},"unified":{"memory.max":"33554432"}})",
          "memory.swap.max=67108864; memory.max=33554432"},
         {R"({"memory":{"swap":100663296},"unified":{"memory.max":"max"}})",
          "memory.swap.max=100663296; memory.max=max"},
         {R"({"unified":{"memory.max":"max"}})", "memory.swap.max=max; memory.max=max"},
         {R"({"memory":{"limit":33554432,"swap":67108864},"unified":{"memory.max":"134217728"}})",
          "INVALID_ARGUMENT: memory.swap: 67108864 (memory and swap together) is below the memory limit "
          "134217728"},
         // unified["memory.swap.max"] overrides what was computed, but does not excuse a contradiction.
         {R"({"memory":{"limit":67108864,"swap":100663296},"unified":{"memory.swap.max":"4096"}})",
          "memory.swap.max=4096; memory.max=67108864"},
         {R"({"memory":{"limit":-1},"unified":{"memory.swap.max":"0"}})",
          "memory.swap.max=0; memory.max=max"},
         {R"({"memory":{"limit":67108864,"swap":4096},"unified":{"memory.swap.max":"4096"}})",
          "INVALID_ARGUMENT: memory.swap: 4096 (memory and swap together) is below the memory limit "
          "67108864"}});
    check_create(full_facts("memory.swap.max"),
                 {{R"({"memory":{"limit":536870912,"swap":536870912}})", "memory.max=536870912"},
                  {R"({"memory":{"limit":536870912,"swap":-1}})", "memory.max=536870912"},
                  {R"({"memory":{"limit":-1}})", "memory.max=max"},
                  {R"({"memory":{"swap":-1}})", ""},
                  {R"({"memory":{"limit":536870912,"swap":1073741824}})",
                   "FAILED_PRECONDITION: memory.swap: this guest has no memory.swap.max (controller memory)"},
                  {R"({"unified":{"memory.swap.max":"0"}})",
                   "FAILED_PRECONDITION: unified[\"memory.swap.max\"]: this guest has no memory.swap.max "
                   "(controller memory)"}});
}

TEST_CASE("memory.swap: every case of the table, on update") {
    constexpr const char* kStored = R"({"memory":{"limit":536870912,"swap":1073741824}})";
    const FileContents held = {{"memory.max", "536870912\n"}, {"memory.swap.max", "536870912\n"}};
    check_update({
        {R"({"memory":{"limit":536870912}})",
         R"({"memory":{"swap":1073741824}})",
         {},
         "memory.swap.max=536870912"},
        {kStored, R"({"memory":{"limit":268435456}})", held,
         "memory.swap.max=805306368; memory.max=268435456"},
        {kStored, R"({"memory":{"limit":805306368}})", held,
         "memory.max=805306368; memory.swap.max=268435456"},
        {kStored, R"({"memory":{"limit":2147483648}})", held,
         "INVALID_ARGUMENT: memory.swap: 1073741824 (memory and swap together) is below the memory limit "
         "2147483648"},
        {kStored, R"({"unified":{"memory.max":"2147483648"}})", held,
         "INVALID_ARGUMENT: memory.swap: 1073741824 (memory and swap together) is below the memory limit "
         "2147483648"},
        {kStored, R"({"unified":{"memory.max":"268435456"}})", held,
         "memory.swap.max=805306368; memory.max=268435456"},
        {kStored, R"({"memory":{"limit":-1}})", held, "memory.max=max; memory.swap.max=1073741824"},
        {kStored, R"({"memory":{"limit":-1,"swap":-1}})", held, "memory.max=max; memory.swap.max=max"},
        {kStored, R"({"memory":{"swap":-1}})", held, "memory.swap.max=max"},
        {kStored, R"({"memory":{"swap":536870912}})", held, "memory.swap.max=0"},
        {kStored, R"({"memory":{"swap":4096}})", held,
         "INVALID_ARGUMENT: memory.swap: 4096 (memory and swap together) is below the memory limit "
         "536870912"},
        {kStored, R"({"memory":{"limit":2147483648,"swap":4294967296}})", held,
         "memory.max=2147483648; memory.swap.max=2147483648"},
        {kStored, R"({"memory":{"reservation":4096}})", held, "memory.low=4096"},
        {kStored, R"({"memory":{"limit":0,"swap":0}})", held, ""},
        {R"({"memory":{"limit":536870912}})", R"({"memory":{"limit":-1}})", held,
         "memory.max=max; memory.swap.max=max"},
        {R"({"memory":{"limit":-1}})", R"({"memory":{"swap":1073741824}})", {}, "memory.swap.max=1073741824"},
        // No limit was asked for: the file's counts, when it is finite.
        {"", R"({"memory":{"swap":1073741824}})", held, "memory.swap.max=536870912"},
        {"",
         R"({"memory":{"swap":1073741824}})",
         {{"memory.max", "max\n"}},
         "INVALID_ARGUMENT: memory.swap: 1073741824 is memory and swap together, but no memory limit is "
         "known to "
         "subtract from it"},
        {"",
         R"({"memory":{"swap":1073741824}})",
         {},
         "INVALID_ARGUMENT: memory.swap: 1073741824 is memory and swap together, but no memory limit is "
         "known to "
         "subtract from it"},
        // A swap limit given through unified is not a total: it stays until something else is asked.
        {R"({"memory":{"limit":536870912},"unified":{"memory.swap.max":"4096"}})",
         R"({"memory":{"limit":268435456}})", held, "memory.max=268435456"},
        {R"({"memory":{"limit":536870912},"unified":{"memory.swap.max":"4096"}})",
         R"({"memory":{"limit":-1}})", held, "memory.max=max"},
        {R"({"memory":{"limit":536870912},"unified":{"memory.swap.max":"4096"}})",
         R"({"memory":{"swap":1073741824}})", held, "memory.swap.max=536870912"},
        {kStored, R"({"unified":{"memory.swap.max":"8192"}})", held, "memory.swap.max=8192"},
    });
}

TEST_CASE("update orders the memory writes: raises before, memory.max last when it falls") {
    const FileContents small = {{"memory.max", "1048576"},
                                {"memory.high", "1048576"},
                                {"memory.low", "4096"},
                                {"memory.min", "4096"},
                                {"memory.swap.max", "4096"}};
    const FileContents large = {{"memory.max", "max"},
                                {"memory.high", "max"},
                                {"memory.low", "8388608"},
                                {"memory.min", "8388608"},
                                {"memory.swap.max", "max"}};
    constexpr const char* kAll =
        R"({"unified":{"memory.max":"2097152","memory.high":"2097152","memory.low":"8192",
                                     "memory.min":"8192","memory.swap.max":"8192","memory.oom.group":"0"}})";
    check_update({
        {"", kAll, small,
         "memory.oom.group=0; memory.max=2097152; memory.high=2097152; memory.swap.max=8192; "
         "memory.low=8192; "
         "memory.min=8192"},
        {"", kAll, large,
         "memory.oom.group=0; memory.min=8192; memory.low=8192; memory.swap.max=8192; memory.high=2097152; "
         "memory.max=2097152"},
    });
}

TEST_CASE("checkBeforeUpdate refuses a limit below what is in use") {
    const FileContents used = {{"memory.current", "8388608\n"}, {"memory.swap.current", "65536\n"}};
    check_update({
        {"", R"({"memory":{"limit":4194304,"checkBeforeUpdate":true}})", used,
         "FAILED_PRECONDITION: memory.limit: 4194304 is below the 8388608 bytes in use (checkBeforeUpdate)"},
        {"", R"({"memory":{"limit":4194304,"swap":4198400,"checkBeforeUpdate":true}})", used,
         "FAILED_PRECONDITION: memory.swap: 4198400 is below the 8454144 bytes of memory and swap in use "
         "(checkBeforeUpdate)"},
        {"",
         R"({"memory":{"checkBeforeUpdate":true},"unified":{"memory.max":"4611686018427387904","memory.swap.max":"4611686018427387904"}})",
         used, "memory.swap.max=4611686018427387904; memory.max=4611686018427387904"},
        {"", R"({"memory":{"checkBeforeUpdate":true},"unified":{"memory.max":"4194304"}})", used,
         "FAILED_PRECONDITION: memory.limit: 4194304 is below the 8388608 bytes in use (checkBeforeUpdate)"},
        {"", R"({"memory":{"limit":4194304}})", used, "memory.max=4194304"},
        {"", R"({"memory":{"limit":8388608,"checkBeforeUpdate":true}})", used, "memory.max=8388608"},
        {"", R"({"memory":{"limit":-1,"checkBeforeUpdate":true}})", used,
         "memory.swap.max=max; memory.max=max"},
        {"", R"({"memory":{"limit":4194304,"checkBeforeUpdate":true}})", {}, "memory.max=4194304"},
        {"", R"({"memory":{"limit":16777216,"swap":16781312,"checkBeforeUpdate":true}})", used,
         "FAILED_PRECONDITION: memory.swap: leaves 4096 bytes of swap, below the 65536 in use "
         "(checkBeforeUpdate)"},
        {R"({"memory":{"checkBeforeUpdate":true}})", R"({"memory":{"limit":4194304}})", used,
         "FAILED_PRECONDITION: memory.limit: 4194304 is below the 8388608 bytes in use (checkBeforeUpdate)"},
        {R"({"memory":{"checkBeforeUpdate":true}})",
         R"({"memory":{"limit":4194304,"checkBeforeUpdate":false}})", used, "memory.max=4194304"},
    });
    CgroupFacts facts = full_facts();
    facts.current = used;
    CHECK(planned("", R"({"memory":{"limit":4194304,"checkBeforeUpdate":true}})", facts, PlanMode::kCreate) ==
          "memory.max=4194304");
}

TEST_CASE("pids, io, hugetlb, rdma, network") {
    CgroupFacts no_bfq = full_facts("io.bfq.weight hugetlb.2MB.rsvd.max");
    check_create(
        full_facts(),
        {{R"({"pids":{"limit":-1}})", "pids.max=max"},
         {R"({"pids":{"limit":0}})", "pids.max=1"},
         {R"({"pids":{"limit":1}})", "pids.max=1"},
         {R"({"pids":{"limit":20}})", "pids.max=20"},
         {R"({"pids":{"limit":20},"unified":{"pids.max":"7"}})", "pids.max=7"},
         {R"({"unified":{"pids.max":"max"}})", "pids.max=max"},
         {R"({"unified":{"pids.max":"0"}})",
          "INVALID_ARGUMENT: unified[\"pids.max\"]: 0 would keep the container's own init out"},
         {R"({"pids":{"limit":-2}})",
          "INVALID_ARGUMENT: pids.limit: -2 is negative; only -1 (no limit) may be"},
         {R"({"pids":{"limit":4194305}})",
          "INVALID_ARGUMENT: pids.limit: 4194305 is above the kernel's most, 4194304"},
         {R"({"blockIO":{"weight":100}})", "io.bfq.weight=100"},
         {R"({"blockIO":{"weight":9}})", "INVALID_ARGUMENT: blockIO.weight: 9 is outside 10 to 1000"},
         {R"({"blockIO":{"weight":1001}})", "INVALID_ARGUMENT: blockIO.weight: 1001 is outside 10 to 1000"},
         {R"({"blockIO":{"weight":0,"leafWeight":0}})", ""},
         {R"({"blockIO":{"leafWeight":10}})",
          "INVALID_ARGUMENT: blockIO.leafWeight: cgroup v2 has no such setting"},
         {R"({"blockIO":{"weightDevice":[{"major":8,"minor":0,"weight":200}]}})", "io.bfq.weight=8:0 200"},
         {R"({"blockIO":{"weightDevice":[{"major":8,"minor":0,"leafWeight":200}]}})",
          "INVALID_ARGUMENT: blockIO.weightDevice[0].leafWeight: cgroup v2 has no such setting"},
         {R"({"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1048576},{"major":8,"minor":16,"rate":0}],
                         "throttleWriteIOPSDevice":[{"major":8,"minor":0,"rate":100}]}})",
          "io.max=8:0 rbps=1048576 wiops=100; io.max=8:16 rbps=max"},
         {R"({"blockIO":{"throttleWriteBpsDevice":[{"major":8,"minor":0,"rate":18446744073709551615}],
                         "throttleReadIOPSDevice":[{"major":8,"minor":0,"rate":5}]}})",
          "io.max=8:0 wbps=18446744073709551615 riops=5"},
         {R"({"hugepageLimits":[{"pageSize":"2MB","limit":4194304}]})",
          "hugetlb.2MB.rsvd.max=4194304; hugetlb.2MB.max=4194304"},
         {R"({"hugepageLimits":[{"pageSize":"1GB","limit":18446744073709551615}]})", "hugetlb.1GB.max=max"},
         {R"({"hugepageLimits":[{"pageSize":"64KB","limit":0}]})",
          "FAILED_PRECONDITION: hugepageLimits: this guest has no hugetlb.64KB.max (controller hugetlb)"},
         {R"({"rdma":{"mlx5_1":{"hcaHandles":3,"hcaObjects":10000},"mlx5_2":{"hcaObjects":5}}})",
          "rdma.max=mlx5_1 hca_handle=3 hca_object=10000; rdma.max=mlx5_2 hca_object=5"},
         {R"({"network":{"classID":1048577}})",
          "INVALID_ARGUMENT: network.classID: cgroup v2 has no such setting"},
         {R"({"network":{"priorities":[{"name":"eth0","priority":500}]}})",
          "INVALID_ARGUMENT: network.priorities: cgroup v2 has no such setting"},
         {R"({"network":{"classID":0,"priorities":[]}})", ""}});
    check_create(no_bfq, {{R"({"blockIO":{"weight":100}})", "io.weight=default 910"},
                          {R"({"blockIO":{"weightDevice":[{"major":8,"minor":0,"weight":1000}]}})",
                           "io.weight=8:0 10000"},
                          {R"({"hugepageLimits":[{"pageSize":"2MB","limit":0}]})", "hugetlb.2MB.max=0"}});
    check_create(
        full_facts("io.bfq.weight io.weight io.max pids.max rdma.max"),
        {{R"({"blockIO":{"weight":100}})",
          "FAILED_PRECONDITION: blockIO.weight: this guest has no io.weight (controller io)"},
         {R"({"blockIO":{"throttleReadIOPSDevice":[{"major":8,"minor":0,"rate":1}]}})",
          "FAILED_PRECONDITION: blockIO.throttleReadIOPSDevice: this guest has no io.max (controller io)"},
         {R"({"pids":{"limit":5}})",
          "FAILED_PRECONDITION: pids.limit: this guest has no pids.max (controller pids)"},
         {R"({"rdma":{"a":{"hcaHandles":1}}})",
          "FAILED_PRECONDITION: rdma[\"a\"]: this guest has no rdma.max (controller rdma)"}});
    check_update({{"", R"({"unified":{"pids.max":"0"}})", {}, "pids.max=0"},
                  {"", R"({"pids":{"limit":0}})", {}, "pids.max=1"}});
}

TEST_CASE("merging is by kernel file: newer beats older in either spelling") {
    CHECK(merged(R"({"memory":{"limit":4096}})", R"({"unified":{"memory.max":"8192"}})") ==
          R"({"unified":{"memory.max":"8192"}})");
    CHECK(merged(R"({"unified":{"memory.max":"8192"}})", R"({"memory":{"limit":4096}})") ==
          R"({"memory":{"limit":4096}})");
    CHECK(merged("", R"({"memory":{"limit":4096},"unified":{"memory.max":"8192"}})") ==
          R"({"unified":{"memory.max":"8192"}})");
    CHECK(merged(R"({"unified":{"memory.low":"8192"}})", R"({"memory":{"reservation":-1}})") ==
          R"({"memory":{"reservation":-1}})");
    CHECK(merged(R"({"memory":{"limit":4096,"swap":8192}})", R"({"unified":{"memory.swap.max":"0"}})") ==
          R"({"memory":{"limit":4096},"unified":{"memory.swap.max":"0"}})");
    CHECK(merged(R"({"unified":{"pids.max":"5"}})", R"({"pids":{"limit":0}})") == R"({"pids":{"limit":0}})");
    CHECK(merged(R"({"cpu":{"burst":5}})", R"({"unified":{"cpu.max.burst":"0"}})") ==
          R"({"unified":{"cpu.max.burst":"0"}})");
    // Unset values change nothing.
    CHECK(merged(R"({"unified":{"memory.max":"8192"}})", R"({"memory":{"limit":0,"swap":0}})") ==
          R"({"unified":{"memory.max":"8192"}})");
    CHECK(merged(R"({"cpu":{"shares":5,"cpus":"0"}})", R"({"cpu":{"shares":0,"cpus":"","quota":2000}})") ==
          R"({"cpu":{"shares":5,"quota":2000,"cpus":"0"}})");
    CHECK(
        merged(
            R"({"blockIO":{"weight":20,"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1}]}})",
            R"({"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":2},{"major":8,"minor":1,"rate":3}]}})") ==
        R"({"blockIO":{"weight":20,"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":2},{"major":8,"minor":1,"rate":3}]}})");
    CHECK(
        merged(R"({"hugepageLimits":[{"pageSize":"2MB","limit":1}],"rdma":{"a":{"hcaHandles":1}}})",
               R"({"hugepageLimits":[{"pageSize":"2MB","limit":2}],"rdma":{"a":{"hcaObjects":2}}})") ==
        R"({"hugepageLimits":[{"pageSize":"2MB","limit":2}],"rdma":{"a":{"hcaHandles":1,"hcaObjects":2}}})");
    CHECK(merged(R"({"devices":[{"allow":false,"access":"rwm"}]})", R"({"pids":{"limit":3}})") ==
          R"({"devices":[{"allow":false,"type":"a","access":"rwm"}],"pids":{"limit":3}})");
    CHECK(merged(R"({"devices":[{"allow":false,"access":"rwm"}]})", R"({"devices":[]})") ==
          R"({"devices":[]})");
}

TEST_CASE("a plan says what may reclaim, what to read before, and whether devices changed") {
    auto plan = plan_resources({}, resources_of(R"({"cpu":{"idle":1,"quota":5000},"memory":{"limit":4096},
                                                   "devices":[{"allow":true,"access":"r"}]})"),
                               full_facts(), PlanMode::kUpdate);
    REQUIRE(plan.ok());
    CHECK(plan->devices_changed);
    CHECK(plan->snapshot_files ==
          std::vector<std::string>{"cpu.idle", "cpu.max", "cpu.weight", "memory.max"});
    REQUIRE(plan->writes.size() == 3);
    CHECK(plan->writes[0].label == "cgroup.write cpu.idle=1");
    CHECK(!plan->writes[0].may_reclaim);
    CHECK(plan->writes[2].label == "cgroup.write memory.max=4096");
    CHECK(plan->writes[2].may_reclaim);
    CHECK(!plan_resources({}, {}, full_facts(), PlanMode::kUpdate)->devices_changed);
}

namespace {

std::string restored(const char* request, size_t attempted, const FileContents& snapshot) {
    auto facts = full_facts();
    for (const auto& [file, content] : snapshot) facts.current[file] = content;
    auto plan = plan_resources({}, resources_of(request), facts, PlanMode::kUpdate);
    REQUIRE_MESSAGE(plan.ok(), (plan.ok() ? "" : plan.error().message));
    std::string text;
    for (const CgroupWrite& write : plan_restore(*plan, attempted, snapshot)) {
        CHECK(write.may_reclaim == write.file.starts_with("memory."));
        CHECK(write.label == "cgroup.restore " + write.file + "=" + write.value);
        text += (text.empty() ? "" : "; ") + write.file + "=" + write.value;
    }
    return text;
}

}  // namespace

TEST_CASE("the way back: old values in reverse order, as the kernel takes them") {
    constexpr const char* kMemory = R"({"memory":{"limit":8192,"swap":16384},"pids":{"limit":5}})";
    const FileContents held = {{"memory.max", "max\n"}, {"memory.swap.max", "4096\n"}, {"pids.max", "max\n"}};
    CHECK(restored(kMemory, 0, held) == "");
    CHECK(restored(kMemory, 1, held) == "memory.swap.max=4096");
    CHECK(restored(kMemory, 3, held) == "pids.max=max; memory.max=max; memory.swap.max=4096");
    CHECK(restored(kMemory, 99, held) == "pids.max=max; memory.max=max; memory.swap.max=4096");
    CHECK(restored(kMemory, 3, {{"pids.max", "7\n"}}) == "pids.max=7");
    CHECK(restored(R"({"cpu":{"cpus":"0","mems":"0"}})", 2,
                   {{"cpuset.cpus", "\n"}, {"cpuset.mems", "0-1\n"}}) == "cpuset.mems=0-1; cpuset.cpus=\n");
    CHECK(restored(R"({"cpu":{"quota":2000,"burst":1000}})", 2,
                   {{"cpu.max", "max 100000\n"}, {"cpu.max.burst", "0\n"}}) ==
          "cpu.max.burst=0; cpu.max=max 100000");
    // A weight reads 0 while idle; leaving idle would forget it.
    CHECK(restored(R"({"cpu":{"idle":1}})", 1, {{"cpu.idle", "0\n"}, {"cpu.weight", "59\n"}}) ==
          "cpu.idle=0; cpu.weight=59");
    CHECK(restored(R"({"cpu":{"idle":0,"shares":2}})", 2, {{"cpu.idle", "1\n"}, {"cpu.weight", "0\n"}}) ==
          "cpu.idle=1");
    CHECK(
        restored(
            R"({"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1},{"major":8,"minor":1,"rate":1}]}})",
            2,
            {{"io.max",
              "8:10 rbps=5 wbps=max riops=max wiops=max\n8:1 rbps=7 wbps=max riops=max wiops=max\n"}}) ==
        "io.max=8:1 rbps=7 wbps=max riops=max wiops=max; io.max=8:0 rbps=max wbps=max riops=max wiops=max");
    CHECK(restored(R"({"blockIO":{"weight":50,"weightDevice":[{"major":8,"minor":0,"weight":20}]}})", 2,
                   {{"io.bfq.weight", "default 100\n"}}) ==
          "io.bfq.weight=8:0 default; io.bfq.weight=default 100");
    CHECK(restored(R"({"blockIO":{"weight":50}})", 1, {{"io.bfq.weight", "100\n"}}) == "io.bfq.weight=100");
    CHECK(restored(R"({"rdma":{"a":{"hcaHandles":1},"b":{"hcaHandles":1}}})", 2,
                   {{"rdma.max", "a hca_handle=2 hca_object=2000\n"}}) ==
          "rdma.max=b hca_handle=max hca_object=max; rdma.max=a hca_handle=2 hca_object=2000");
    CHECK(restored(kMemory, 3, {{"pids.max", ""}, {"memory.max", "\n"}}) == "");
}
