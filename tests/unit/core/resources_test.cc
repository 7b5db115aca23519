#include "agent/core/resources.h"

#include <doctest/doctest.h>

#include "agent/core/unified.h"

using namespace berth::core;

namespace {

std::string answer(std::string_view json) {
    auto resources = parse_resources_text(json, "r");
    if (!resources.ok())
        return std::string(code_name(resources.error().code)) + ": " + resources.error().message;
    return serialize_resources(*resources);
}

constexpr const char* kTheTen =
    "; allowed are cpu.max.burst, cpu.uclamp.max, cpu.uclamp.min, memory.high, memory.low, memory.max, "
    "memory.min, "
    "memory.oom.group, memory.swap.max and pids.max";

}  // namespace

TEST_CASE("every property survives reading and writing") {
    const char* rows[] = {
        "{}",
        R"({"devices":[]})",
        R"({"devices":[{"allow":false,"type":"a","access":"rwm"},{"allow":true,"type":"c","major":10,"minor":200,"access":"rw"},{"allow":true,"type":"b","major":0,"access":"m"}]})",
        R"({"memory":{"limit":-1,"reservation":2,"swap":3,"kernel":4,"kernelTCP":5,"swappiness":6,"disableOOMKiller":true,"useHierarchy":false,"checkBeforeUpdate":true}})",
        R"({"cpu":{"shares":1,"quota":-1,"period":3,"burst":4,"realtimeRuntime":-5,"realtimePeriod":6,"cpus":"0-1","mems":"0","idle":1}})",
        R"({"pids":{"limit":0}})",
        R"({"blockIO":{"weight":10,"leafWeight":11,"weightDevice":[{"major":8,"minor":0,"weight":1,"leafWeight":2}],"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1}],"throttleWriteBpsDevice":[{"major":8,"minor":1,"rate":2}],"throttleReadIOPSDevice":[{"major":8,"minor":2,"rate":3}],"throttleWriteIOPSDevice":[{"major":8,"minor":3,"rate":18446744073709551615}]}})",
        R"({"hugepageLimits":[{"pageSize":"2MB","limit":1},{"pageSize":"1GB","limit":2}]})",
        R"({"network":{"classID":1,"priorities":[{"name":"eth0","priority":2}]}})",
        R"({"rdma":{"mlx5_1":{"hcaHandles":3,"hcaObjects":4}}})",
        R"({"unified":{"cpu.max.burst":"0","memory.max":"max","pids.max":"5"}})",
    };
    for (const char* row : rows) CHECK(answer(row) == row);
}

TEST_CASE("wrong types and ranges are named by their JSON path") {
    const struct {
        const char* json;
        const char* expected;
    } rows[] = {
        {"", "INVALID_ARGUMENT: r: JSON: The document is empty. (at offset 0)"},
        {"[]", "INVALID_ARGUMENT: r: must be an object"},
        {"null", "INVALID_ARGUMENT: r: must be an object"},
        {R"({"memory":[]})", "INVALID_ARGUMENT: r.memory: must be an object"},
        {R"({"memory":{"limit":"5"}})",
         "INVALID_ARGUMENT: r.memory.limit: must be a number from -9223372036854775808 to "
         "9223372036854775807"},
        {R"({"memory":{"limit":1.5}})",
         "INVALID_ARGUMENT: r.memory.limit: must be a number from -9223372036854775808 to "
         "9223372036854775807"},
        {R"({"memory":{"limit":1e3}})",
         "INVALID_ARGUMENT: r.memory.limit: must be a number from -9223372036854775808 to "
         "9223372036854775807"},
        {R"({"memory":{"disableOOMKiller":1}})",
         "INVALID_ARGUMENT: r.memory.disableOOMKiller: must be true or false"},
        {R"({"cpu":{"shares":-1}})",
         "INVALID_ARGUMENT: r.cpu.shares: must be a number from 0 to 18446744073709551615"},
        {R"({"cpu":{"shares":18446744073709551616}})",
         "INVALID_ARGUMENT: r.cpu.shares: must be a number from 0 to 18446744073709551615"},
        {R"({"cpu":{"cpus":5}})", "INVALID_ARGUMENT: r.cpu.cpus: must be a string"},
        {"{\"cpu\":{\"cpus\":\"0\\u0000\"}}", "INVALID_ARGUMENT: r.cpu.cpus: contains a NUL byte"},
        {R"({"pids":{"limit":true}})",
         "INVALID_ARGUMENT: r.pids.limit: must be a number from -9223372036854775808 to 9223372036854775807"},
        {R"({"blockIO":{"weight":65536}})",
         "INVALID_ARGUMENT: r.blockIO.weight: must be a number from 0 to 65535"},
        {R"({"blockIO":{"throttleReadBpsDevice":{}}})",
         "INVALID_ARGUMENT: r.blockIO.throttleReadBpsDevice: must be an array"},
        {R"({"blockIO":{"throttleReadBpsDevice":[{"minor":0,"rate":1}]}})",
         "INVALID_ARGUMENT: r.blockIO.throttleReadBpsDevice[0].major: is missing"},
        {R"({"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0}]}})",
         "INVALID_ARGUMENT: r.blockIO.throttleReadBpsDevice[0].rate: is missing"},
        {R"({"blockIO":{"weightDevice":[{"major":4096,"minor":0,"weight":10}]}})",
         "INVALID_ARGUMENT: r.blockIO.weightDevice[0].major: must be a number from 0 to 4095"},
        {R"({"blockIO":{"weightDevice":[{"major":8,"minor":0},{"major":8,"minor":0,"weight":10}]}})",
         "INVALID_ARGUMENT: r.blockIO.weightDevice[1].minor: device 8:0 is given twice, with different "
         "values"},
        {R"({"hugepageLimits":[{"pageSize":"2MB","PageSize":"1GB","limit":1}]})",
         "INVALID_ARGUMENT: r.hugepageLimits[0].pageSize: is given twice, as \"pageSize\" and \"PageSize\""},
        {R"({"hugepageLimits":[{"limit":1}]})", "INVALID_ARGUMENT: r.hugepageLimits[0].pageSize: is missing"},
        {R"({"hugepageLimits":[{"pageSize":"2MB"}]})",
         "INVALID_ARGUMENT: r.hugepageLimits[0].limit: is missing"},
        {R"({"hugepageLimits":[{"pageSize":"../x","limit":1}]})",
         "INVALID_ARGUMENT: r.hugepageLimits[0].pageSize: \"../x\" is not a number followed by KB, MB or GB"},
        {R"({"hugepageLimits":[{"pageSize":"0MB","limit":1}]})",
         "INVALID_ARGUMENT: r.hugepageLimits[0].pageSize: \"0MB\" is not a number followed by KB, MB or GB"},
        {R"({"hugepageLimits":[{"pageSize":"2mb","limit":1}]})",
         "INVALID_ARGUMENT: r.hugepageLimits[0].pageSize: \"2mb\" is not a number followed by KB, MB or GB"},
        {R"({"hugepageLimits":[{"pageSize":"2MB","limit":1},{"pageSize":"2MB","limit":1}]})",
         "INVALID_ARGUMENT: r.hugepageLimits[1].pageSize: 2MB is given twice"},
        {R"({"rdma":{"a b":{"hcaHandles":1}}})",
         "INVALID_ARGUMENT: r.rdma[\"a b\"]: is not the name of an rdma device"},
        {R"({"rdma":{"a":{}}})", "INVALID_ARGUMENT: r.rdma[\"a\"]: has neither hcaHandles nor hcaObjects"},
        {R"({"rdma":{"a":{"hcaHandles":4294967296}}})",
         "INVALID_ARGUMENT: r.rdma[\"a\"].hcaHandles: must be a number from 0 to 4294967295"},
        {R"({"devices":{}})", "INVALID_ARGUMENT: r.devices: must be an array"},
        {R"({"devices":[5]})", "INVALID_ARGUMENT: r.devices[0]: must be an object"},
        {R"({"devices":[null]})", "INVALID_ARGUMENT: r.devices[0].allow: is missing"},
        {R"({"devices":[{"access":"r"}]})", "INVALID_ARGUMENT: r.devices[0].allow: is missing"},
        {R"({"devices":[{"allow":true}]})",
         "INVALID_ARGUMENT: r.devices[0].access: must name at least one of r, w, m"},
        {R"({"devices":[{"allow":true,"access":""}]})",
         "INVALID_ARGUMENT: r.devices[0].access: must name at least one of r, w, m"},
        {R"({"devices":[{"allow":true,"access":"rx"}]})",
         "INVALID_ARGUMENT: r.devices[0].access: \"rx\" has letters other than r, w and m"},
        {R"({"devices":[{"allow":true,"access":"rwa"}]})",
         "INVALID_ARGUMENT: r.devices[0].access: \"rwa\" has letters other than r, w and m"},
        {R"({"devices":[{"allow":true,"type":"p","access":"r"}]})",
         "INVALID_ARGUMENT: r.devices[0].type: \"p\" is not a, c, u or b"},
        {R"({"devices":[{"allow":true,"major":-2,"access":"r"}]})",
         "INVALID_ARGUMENT: r.devices[0].major: must be a number from -1 to 4095"},
        {R"({"devices":[{"allow":true,"minor":1048576,"access":"r"}]})",
         "INVALID_ARGUMENT: r.devices[0].minor: must be a number from -1 to 1048575"},
        {R"({"unified":[]})", "INVALID_ARGUMENT: r.unified: must be an object"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.json);
        CHECK(answer(row.json) == row.expected);
    }
    CHECK(answer(R"({"pids":{"limit":1},"pids":{"limit":2}})").starts_with("INVALID_ARGUMENT: r: JSON: "));
    CHECK(
        answer(R"({"unified":{"pids.max":"1","pids.max":"2"}})").starts_with("INVALID_ARGUMENT: r: JSON: "));
}

TEST_CASE("a block device that is listed again with the same values is one entry") {
    auto resources = parse_resources_text(
        R"({"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5},{"major":8,"minor":0,"rate":5}]}})",
        "r");
    REQUIRE(resources.ok());
    CHECK(resources->block_io.read_bps == std::vector<ThrottleDevice>{{8, 0, 5}});
}

TEST_CASE("the letter a in a rule that denies is all access") {
    auto resources = parse_resources_text(R"({"devices":[{"allow":false,"access":"ra"}]})", "r");
    REQUIRE(resources.ok());
    CHECK(resources->devices->at(0).access == kAccessAll);
}

TEST_CASE("a key in other letter cases is that key, as for hosts that read specs with Go") {
    auto resources =
        parse_resources_text(R"({"Pids":{"LIMIT":7},"hugepageLimits":[{"pagesize":"2MB","limit":1}]})", "r");
    REQUIRE(resources.ok());
    CHECK(resources->pids_limit == 7);
    CHECK(resources->hugepage_limits.at(0).page_size == "2MB");
    // Two objects are one, as there; what is in both contradicts itself. null is nothing.
    resources = parse_resources_text(
        R"({"cpu":{"shares":9,"CPUS":null},"CPU":{"Cpus":"0"},"pids":null,"PIDS":{"limit":7}})", "r");
    REQUIRE(resources.ok());
    CHECK(resources->cpu.shares == 9u);
    CHECK(resources->cpu.cpus == "0");
    CHECK(resources->pids_limit == 7);
    CHECK(answer(R"({"cpu":{"shares":9},"CPU":{"Shares":9}})") ==
          R"(INVALID_ARGUMENT: r.cpu.shares: is given twice, as "shares" and "Shares")");
    CHECK(answer(R"({"cpu":{},"CPU":{},"Cpu":{}})") ==
          R"(INVALID_ARGUMENT: r.cpu: is given twice, as "cpu" and "Cpu")");
    CHECK(answer(R"({"unified":{"pids.max":"1"},"Unified":{"pids.max":"2"}})") ==
          "INVALID_ARGUMENT: r.unified: is given twice, in different letter cases");
    // Names that a spec's author chooses are not keys.
    CHECK(parse_resources_text(R"({"rdma":{"a":{"hcaHandles":1},"A":{"hcaHandles":1}}})", "r").ok());
}

TEST_CASE("truncated text is an error at every length") {
    std::string whole =
        R"({"memory":{"limit":5},"unified":{"pids.max":"7"},"devices":[{"allow":true,"type":"c","access":"rwm"}]})";
    REQUIRE(parse_resources_text(whole, "r").ok());
    for (size_t length = 0; length < whole.size(); ++length) {
        CAPTURE(length);
        CHECK(!parse_resources_text(std::string_view(whole).substr(0, length), "r").ok());
    }
    CHECK(!parse_resources_text(whole + "x", "r").ok());
}

TEST_CASE("lists have limits, and are named") {
    std::string rules = R"({"devices":[)";
    for (int i = 0; i < 1025; ++i) rules += std::string(i == 0 ? "" : ",") + R"({"allow":true,"access":"r"})";
    CHECK(answer(rules + "]}") ==
          "RESOURCE_EXHAUSTED: r.devices: has 1025 elements, more than the limit of 1024");
    std::string nested = R"({"memory":)";
    for (int i = 0; i < 100000; ++i) nested += "[";
    CHECK(answer(nested).starts_with("INVALID_ARGUMENT: r: JSON: is nested deeper than "));
}

TEST_CASE("unknown properties are told, not refused") {
    std::vector<std::string> skipped;
    auto resources = parse_resources_text(
        R"({"new":1,"memory":{"limit":5,"newer":{}},"devices":[{"allow":true,"access":"r","x":0}]})",
        "linux.resources", &skipped);
    REQUIRE(resources.ok());
    CHECK(resources->memory.limit == 5);
    CHECK(skipped == std::vector<std::string>{"linux.resources.devices[0].x", "linux.resources.memory.newer",
                                              "linux.resources.new"});
}

TEST_CASE("unified: ten keys and no other") {
    size_t count = 0;
    for (const UnifiedKey& key : unified_keys()) {
        CHECK(find_unified_key(key.name) == &key);
        CHECK(key.name.starts_with(key.controller));
        ++count;
    }
    CHECK(count == 10);
    const std::string keys[] = {"cpu.weight",
                                "cpu.weight/x",
                                "../x",
                                "memory",
                                "foo.bar",
                                "cgroup.procs",
                                "cgroup.kill",
                                "Memory.max",
                                "MEMORY.MAX",
                                " memory.max",
                                "memory.max ",
                                "memory.max\n",
                                "",
                                "memory.max/",
                                "memory/max",
                                "io.max",
                                "pids.max.",
                                "hugetlb.2MB.max",
                                std::string("memory.max\0", 11)};
    for (const std::string& key : keys) {
        CAPTURE(key);
        Status status = check_unified("u", key, "1");
        REQUIRE(!status.ok());
        CHECK(status.error().code == Code::kInvalidArgument);
        CHECK(status.error().message.find("]: is not a key that this agent writes") != std::string::npos);
        CHECK(status.error().message.ends_with(kTheTen));
    }
    CHECK(check_unified("u", "foo.bar", "1").error().message ==
          std::string("u[\"foo.bar\"]: is not a key that this agent writes") + kTheTen);
    CHECK(check_unified("u", std::string(100000, 'k'), "1").error().message.size() < 700);
    CHECK(answer(R"({"unified":{"foo.bar":7}})") ==
          std::string("INVALID_ARGUMENT: r.unified[\"foo.bar\"]: is not a key that this agent writes") +
              kTheTen);
    CHECK(answer(R"({"unified":{"memory.max":7}})") ==
          std::string("INVALID_ARGUMENT: r.unified[\"memory.max\"]: must be a string, not a number") +
              kTheTen);
    CHECK(answer(R"({"unified":{"memory.max":null}})") ==
          std::string("INVALID_ARGUMENT: r.unified[\"memory.max\"]: must be a string, not null") + kTheTen);
    CHECK(answer(R"({"unified":{"memory.max":["max"]}})") ==
          std::string("INVALID_ARGUMENT: r.unified[\"memory.max\"]: must be a string, not an array") +
              kTheTen);
}

TEST_CASE("unified: the grammar of each value") {
    struct Row {
        const char* key;
        std::vector<std::string> good;
        std::vector<std::string> bad;
    };
    const std::vector<std::string> never = {"",
                                            " ",
                                            "max ",
                                            " max",
                                            "MAX",
                                            "Max",
                                            "-1",
                                            "+1",
                                            "01",
                                            "1\n",
                                            "1 ",
                                            " 1",
                                            "1\n2",
                                            "0x1",
                                            "1e3",
                                            "1K",
                                            "max\n",
                                            "nan",
                                            std::string("1\0", 2),
                                            std::string(65, '1'),
                                            std::string(100000, '1')};
    const Row rows[] = {
        {"memory.min",
         {"0", "1", "4096", "9223372036854775807", "max"},
         {"9223372036854775808", "18446744073709551616", "1.5"}},
        {"memory.low", {"0", "max"}, {"9223372036854775808"}},
        {"memory.high", {"0", "max"}, {"9223372036854775808"}},
        {"memory.max", {"0", "max"}, {"9223372036854775808"}},
        {"memory.swap.max", {"0", "max"}, {"9223372036854775808"}},
        {"memory.oom.group", {"0", "1"}, {"2", "max", "true", "00"}},
        {"pids.max", {"0", "1", "4194304", "max"}, {"4194305", "1.0"}},
        {"cpu.max.burst", {"0", "1", "17592186044415"}, {"17592186044416", "max", "1.0"}},
        {"cpu.uclamp.min",
         {"0", "0.0", "0.00", "1.5", "99.99", "100", "100.00", "max"},
         {"100.01", "101", "1.", ".5", "1.234", "1.-1", "00.1", "5%"}},
        {"cpu.uclamp.max", {"0", "33.33", "max"}, {"100.1", "1.0.0", "1,5"}},
    };
    for (const Row& row : rows) {
        CAPTURE(row.key);
        for (const std::string& value : row.good) {
            CAPTURE(value);
            CHECK(check_unified("u", row.key, value).ok());
        }
        for (const std::vector<std::string>* list : {&row.bad, &never}) {
            for (const std::string& value : *list) {
                CAPTURE(value);
                Status status = check_unified("u", row.key, value);
                REQUIRE(!status.ok());
                CHECK(status.error().code == Code::kInvalidArgument);
                CHECK(status.error().message.starts_with("u[\"" + std::string(row.key) + "\"]: "));
                CHECK(status.error().message.ends_with(kTheTen));
            }
        }
    }
    CHECK(check_unified("u", "memory.max", "64M").error().message ==
          std::string("u[\"memory.max\"]: \"64M\" is not a number of bytes below 2^63 or \"max\"") + kTheTen);
}

TEST_CASE("unified values as the kernel shows them") {
    const struct {
        const char* key;
        const char* value;
        const char* shown;
    } rows[] = {
        {"memory.max", "4095", "0"},
        {"memory.max", "4096", "4096"},
        {"memory.max", "8191", "4096"},
        {"memory.max", "max", "max"},
        {"memory.max", "9223372036854775807", "max"},
        {"memory.max", "9223372036854771711", "9223372036854767616"},
        {"memory.max", "9223372036854771712", "max"},
        {"cpu.uclamp.min", "0", "0.00"},
        {"cpu.uclamp.min", "1.5", "1.50"},
        {"cpu.uclamp.min", "99.99", "99.99"},
        {"cpu.uclamp.max", "100", "max"},
        {"cpu.uclamp.max", "max", "max"},
        {"pids.max", "7", "7"},
        {"cpu.max.burst", "7", "7"},
        {"memory.oom.group", "1", "1"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.value);
        CHECK(normalize_unified(*find_unified_key(row.key), row.value, 4096) == row.shown);
    }
}
