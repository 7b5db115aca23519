#include "agent/berthctl/unified_keys.h"

#include <doctest/doctest.h>

#include "agent/berthctl/json_text.h"
#include "agent/core/cpu_weight.h"

namespace {

std::string moved(std::string_view resources) {
    auto document = berth::core::parse_json(resources);
    REQUIRE(document.ok());
    bool changed = berth::ctl::move_unified_keys(*document, *document);
    std::string text = berth::ctl::json_text_of(*document);
    CHECK(changed == (text != resources));
    return text;
}

}  // namespace

TEST_CASE("keys of unified with a property of their own go there") {
    struct Case {
        std::string_view before;
        std::string_view after;
    };
    const Case cases[] = {
        {R"({"unified":{"cpu.max":"10000 100000","pids.max":"9"}})",
         R"({"unified":{"pids.max":"9"},"cpu":{"quota":10000,"period":100000}})"},
        {R"({"cpu":{"quota":5,"period":7},"unified":{"cpu.max":"max"}})",
         R"({"cpu":{"quota":-1,"period":7},"unified":{}})"},
        {R"({"unified":{"cpuset.cpus":"0-1","cpuset.mems":"0","cpu.idle":"1"}})",
         R"({"unified":{},"cpu":{"idle":1,"cpus":"0-1","mems":"0"}})"},
        {R"({"unified":{"io.max":"8:0 riops=333 wiops=444\n7:1 rbps=max\n"}})",
         R"({"unified":{},"blockIO":{"throttleReadIOPSDevice":[{"major":8,"minor":0,"rate":333}],)"
         R"("throttleWriteIOPSDevice":[{"major":8,"minor":0,"rate":444}],)"
         R"("throttleReadBpsDevice":[{"major":7,"minor":1,"rate":0}]}})"},
    };
    for (const Case& each : cases) CHECK(moved(each.before) == each.after);
}

TEST_CASE("what the kernel would not take, and keys of the agent's, stay") {
    for (std::string_view text :
         {R"({})", R"({"unified":7})", R"({"unified":{"memory.high":"1","foo.bar":"1","cgroup.procs":"1"}})",
          R"({"unified":{"cpu.max":"a"}})", R"({"unified":{"cpu.max":"1 "}})",
          R"({"unified":{"cpu.max":"-1"}})", R"({"unified":{"cpu.max":7}})",
          R"({"unified":{"cpu.weight":"0"}})", R"({"unified":{"cpu.weight":"10001"}})",
          R"({"unified":{"cpu.idle":"2"}})", R"({"unified":{"cpuset.cpus":""}})",
          R"({"unified":{"io.max":"8 rbps=1"}})", R"({"unified":{"io.max":"8:0 rbps"}})",
          R"({"unified":{"io.max":"8:0 bps=1"}})",
          R"({"blockIO":{"weight":10},"unified":{"io.max":"8:0 rbps=1\u000a8:1 rbps=x"}})"}) {
        CHECK(moved(text) == text);
    }
}

TEST_CASE("every weight is that of some shares") {
    for (uint32_t weight = 1; weight <= 10'000; ++weight) {
        std::string text = moved(R"({"unified":{"cpu.weight":")" + std::to_string(weight) + R"("}})");
        auto document = berth::core::parse_json(text);
        REQUIRE(document.ok());
        REQUIRE((*document)["cpu"]["shares"].IsUint());
        REQUIRE(berth::core::cpu_weight_from_shares((*document)["cpu"]["shares"].GetUint()) == weight);
    }
}
