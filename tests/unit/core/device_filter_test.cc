#include "agent/core/device_filter.h"

#include <doctest/doctest.h>

#include "agent/core/device_nodes.h"
#include "agent/core/resources.h"
#include "tests/support/core/bpf_eval.h"

using namespace berth::core;
using berth::test::run_device_program;

namespace {

std::vector<DeviceRule> rules_of(const char* json) {
    auto resources = parse_resources_text(std::string("{\"devices\":") + json + "}", "resources");
    REQUIRE_MESSAGE(resources.ok(), (resources.ok() ? "" : resources.error().message));
    return *resources->devices;
}

struct Question {
    char type;
    uint32_t major;
    uint32_t minor;
    const char* access;
    bool allowed;
};

void ask(const char* json, const std::vector<DeviceNumber>& attached,
         const std::vector<Question>& questions) {
    CAPTURE(json);
    auto program = build_device_filter(rules_of(json), attached);
    REQUIRE_MESSAGE(program.ok(), (program.ok() ? "" : program.error().message));
    for (const Question& q : questions) {
        CAPTURE(q.type);
        CAPTURE(q.major);
        CAPTURE(q.minor);
        CAPTURE(q.access);
        auto outcome = run_device_program(*program, q.type, q.major, q.minor, q.access);
        CHECK(outcome.valid);
        CHECK(outcome.allowed == q.allowed);
    }
}

// What an engine's default spec begins with.
constexpr const char* kDenyAll = R"({"allow":false,"access":"rwm"})";

std::string after_deny_all(const std::string& rules) {
    return std::string("[") + kDenyAll + (rules.empty() ? "" : ",") + rules + "]";
}

}  // namespace

TEST_CASE("the default nodes are allowed, everything else is denied") {
    for (const std::string& json : {std::string("[]"), after_deny_all("")}) {
        ask(json.c_str(), {},
            {
                {'c', 1, 3, "rwm", true},    {'c', 1, 5, "rwm", true},    {'c', 1, 7, "rw", true},
                {'c', 1, 8, "r", true},      {'c', 1, 9, "rw", true},     {'c', 5, 0, "rw", true},
                {'c', 5, 1, "rw", true},     {'c', 5, 2, "rw", true},     {'c', 136, 0, "rw", true},
                {'c', 143, 999, "rw", true}, {'c', 135, 0, "r", false},   {'c', 144, 0, "r", false},
                {'c', 1, 1, "r", false},     {'c', 1, 4, "rw", false},    {'c', 5, 3, "r", false},
                {'c', 10, 200, "rw", false}, {'c', 10, 229, "rw", false}, {'c', 4, 3, "r", false},
                {'b', 1, 3, "r", false},     {'b', 136, 0, "rw", false},  {'b', 8, 0, "r", false},
                {'c', 10, 200, "m", true},   {'c', 10, 200, "rm", false}, {'b', 8, 0, "m", false},
                {'c', 1, 3, "", true},       {'c', 10, 200, "", true},    {'b', 8, 0, "", false},
            });
    }
}

TEST_CASE("asked and allowed, bit by bit") {
    ask(after_deny_all(R"({"allow":true,"type":"c","major":10,"minor":200,"access":"r"})").c_str(), {},
        {{'c', 10, 200, "r", true},
         {'c', 10, 200, "w", false},
         {'c', 10, 200, "rw", false},
         {'c', 10, 200, "rm", true},
         {'c', 10, 200, "", true},
         {'c', 10, 201, "r", false},
         {'c', 11, 200, "r", false},
         {'b', 10, 200, "r", false}});
    // Two rules add up.
    ask(after_deny_all(R"({"allow":true,"type":"c","major":10,"minor":200,"access":"r"},
                          {"allow":true,"type":"c","major":10,"minor":200,"access":"w"})")
            .c_str(),
        {}, {{'c', 10, 200, "rw", true}, {'c', 10, 200, "r", true}, {'c', 10, 200, "w", true}});
}

TEST_CASE("the last rule that speaks of a bit wins") {
    ask(R"([{"allow":true,"type":"c","major":10,"access":"rwm"},
            {"allow":false,"type":"c","major":10,"minor":200,"access":"w"}])",
        {},
        {{'c', 10, 200, "r", true},
         {'c', 10, 200, "w", false},
         {'c', 10, 200, "rw", false},
         {'c', 10, 201, "rwm", true}});
    ask(R"([{"allow":false,"type":"c","major":10,"minor":200,"access":"rwm"},
            {"allow":true,"type":"c","major":10,"access":"rw"}])",
        {}, {{'c', 10, 200, "rw", true}, {'c', 10, 200, "m", false}, {'c', 10, 201, "m", true}});
    ask(R"([{"allow":true,"type":"c","major":10,"minor":200,"access":"rwm"},{"allow":false,"access":"rwm"}])",
        {}, {{'c', 10, 200, "r", false}, {'c', 10, 200, "w", false}, {'c', 1, 3, "rwm", true}});
    // Nothing left: not even access(F_OK).
    ask(R"([{"allow":false,"type":"c","major":10,"minor":200,"access":"rwm"}])", {},
        {{'c', 10, 200, "", false}, {'c', 10, 200, "m", false}, {'c', 10, 201, "", true}});
}

TEST_CASE("a rule that names a default node takes it away, a wildcard does not") {
    ask(R"([{"allow":false,"type":"c","major":1,"minor":3,"access":"rwm"}])", {},
        {{'c', 1, 3, "r", false}, {'c', 1, 5, "rw", true}});
    ask(R"([{"allow":false,"type":"c","major":1,"access":"w"}])", {},
        {{'c', 1, 3, "w", false}, {'c', 1, 3, "r", true}, {'c', 5, 0, "rw", true}});
    ask(R"([{"allow":false,"type":"a","major":5,"minor":2,"access":"rw"}])", {}, {{'c', 5, 2, "r", false}});
    ask(R"([{"allow":false,"type":"c","access":"rwm"}])", {},
        {{'c', 1, 3, "rwm", true}, {'c', 10, 200, "m", true}, {'c', 10, 200, "r", false}});
    ask(after_deny_all(
            R"({"allow":false,"type":"c","major":1,"minor":3,"access":"rwm"},{"allow":false,"access":"w"})")
            .c_str(),
        {}, {{'c', 1, 3, "r", false}, {'c', 1, 5, "rw", true}});
}

TEST_CASE("wildcards: every character device, of block devices the attached") {
    const char* all = R"([{"allow":true,"access":"rwm"}])";
    ask(all, {},
        {{'c', 10, 200, "rwm", true},
         {'c', 4095, 1048575, "rwm", true},
         {'b', 8, 0, "r", false},
         {'b', 8, 0, "m", false},
         {'b', 254, 0, "rwm", false}});
    ask(all, {{254, 16}},
        {{'b', 254, 16, "rwm", true},
         {'b', 254, 0, "r", false},
         {'b', 254, 17, "r", false},
         {'c', 254, 16, "r", true}});
    ask(R"([{"allow":true,"type":"a","major":-1,"minor":-1,"access":"rw"}])", {{254, 16}},
        {{'b', 254, 16, "rw", true}, {'b', 254, 16, "m", false}});
    ask(R"([{"allow":true,"type":"b","access":"rwm"}])", {},
        {{'b', 8, 0, "m", true},
         {'b', 8, 0, "r", false},
         {'b', 8, 0, "rm", false},
         {'c', 10, 200, "r", false}});
    ask(R"([{"allow":true,"type":"b","major":254,"access":"rw"}])", {{254, 16}, {253, 0}},
        {{'b', 254, 16, "rw", true},
         {'b', 253, 0, "r", false},
         {'b', 254, 0, "r", false},
         {'b', 254, 0, "m", false}});
    ask(R"([{"allow":true,"type":"b","major":254,"minor":16,"access":"r"}])", {{254, 16}},
        {{'b', 254, 16, "r", true}, {'b', 254, 16, "w", false}});
    ask(R"([{"allow":true,"access":"rwm"},{"allow":false,"type":"b","access":"rwm"}])", {{254, 16}},
        {{'b', 254, 16, "r", false}, {'c', 10, 200, "rwm", true}});
    ask(R"([{"allow":true,"type":"b","major":8,"minor":0,"access":"m"}])", {},
        {{'b', 8, 0, "m", true}, {'b', 8, 0, "r", false}});
    ask(R"([{"allow":true,"type":"c","minor":200,"access":"r"}])", {},
        {{'c', 10, 200, "r", true}, {'c', 11, 200, "r", true}, {'c', 11, 201, "r", false}});
    ask(R"([{"allow":true,"type":"u","major":10,"minor":200,"access":"rwm"}])", {},
        {{'c', 10, 200, "rwm", true}});
}

TEST_CASE("one block device that the host has not attached is refused") {
    auto refused =
        build_device_filter(rules_of(after_deny_all(R"({"allow":true,"type":"b","major":8,"minor":0,
                                                                  "access":"r"})")
                                         .c_str()),
                            {});
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == Code::kPermissionDenied);
    CHECK(refused.error().message ==
          "devices[1]: block device 8:0 is not attached to this guest by its host");
}

TEST_CASE("the machine's own root may name block devices, and still gets only what it named") {
    auto program = build_device_filter(
        rules_of(after_deny_all(R"({"allow":true,"type":"b","major":8,"minor":0,"access":"r"},
                                   {"allow":true,"type":"b","major":9,"access":"rwm"})")
                     .c_str()),
        {}, BlockDevices::kEvery);
    REQUIRE(program.ok());
    const struct {
        uint32_t major;
        uint32_t minor;
        const char* access;
        bool allowed;
    } rows[] = {
        {8, 0, "r", true}, {8, 0, "rw", false}, {8, 1, "r", false}, {9, 5, "rwm", true}, {10, 0, "r", false}};
    for (const auto& row : rows) {
        CAPTURE(row.major);
        auto outcome = run_device_program(*program, 'b', row.major, row.minor, row.access);
        CHECK(outcome.valid);
        CHECK(outcome.allowed == row.allowed);
    }
}

TEST_CASE("the largest list of rules fits, and agrees with a model for each device and access") {
    std::vector<DeviceRule> rules;
    uint32_t seed = 1;
    auto random = [&](uint32_t below) {
        seed = seed * 1103515245 + 12345;
        return (seed >> 16) % below;
    };
    for (int i = 0; i < 1024; ++i) {
        DeviceRule rule{
            .allow = random(2) == 0, .type = DeviceRuleType::kChar, .major = {}, .minor = {}, .access = 0};
        rule.major = 200 + random(4);
        if (random(3) != 0) rule.minor = random(4);
        rule.access = static_cast<uint8_t>(1 + random(7));
        rules.push_back(rule);
        if (i % 256 != 3) continue;
        // Compare after a few, and with more and more of them.
        auto program = build_device_filter(rules, {});
        REQUIRE(program.ok());
        for (uint32_t device = 0; device < 16; ++device) {
            uint32_t major = 200 + device / 4;
            uint32_t minor = device % 4;
            uint8_t model = kAccessMknod;
            for (const DeviceRule& r : rules) {
                if (r.major != major || (r.minor && *r.minor != minor)) continue;
                model = static_cast<uint8_t>(r.allow ? model | r.access : model & ~r.access);
            }
            for (const char* access : {"r", "w", "m", "rw", "rm", "wm", "rwm", ""}) {
                uint8_t asked = 0;
                for (const char* c = access; *c != 0; ++c) {
                    asked |= *c == 'r' ? kAccessRead : *c == 'w' ? kAccessWrite : kAccessMknod;
                }
                bool expected = model != 0 && (asked & model) == asked;
                auto outcome = run_device_program(*program, 'c', major, minor, access);
                CHECK(outcome.valid);
                CHECK(outcome.allowed == expected);
            }
        }
    }
    CHECK(rules.size() == 1024);
    CHECK(build_device_filter(rules, {}).ok());
}

TEST_CASE("attached devices times rules has a bound") {
    std::vector<DeviceRule> rules(
        1024,
        DeviceRule{
            .allow = true, .type = DeviceRuleType::kAll, .major = {}, .minor = {}, .access = kAccessAll});
    std::vector<DeviceNumber> attached;
    for (uint32_t i = 0; i < 64; ++i) attached.push_back({254, i});
    auto program = build_device_filter(rules, attached);
    REQUIRE(!program.ok());
    CHECK(program.error().code == Code::kResourceExhausted);
}

TEST_CASE("device nodes are judged by number, not by path") {
    auto exists = [](uint32_t major, uint32_t minor) { return major == 10 && minor == 229; };
    struct Row {
        DeviceNodeRequest node;
        Code code;
        const char* message;
    };
    const Row rows[] = {
        {{"/dev/null", 'c', 1, 3}, Code::kOk, ""},
        {{"/dev/anything", 'c', 5, 1}, Code::kOk, ""},
        {{"/dev/ptmx", 'c', 5, 2}, Code::kOk, ""},
        {{"/dev/pts9", 'c', 143, 9}, Code::kOk, ""},
        {{"/dev/fuse", 'c', 10, 229}, Code::kOk, ""},
        {{"/odd/place", 'u', 10, 229}, Code::kOk, ""},
        {{"/dev/pipe", 'p', 0, 0}, Code::kOk, ""},
        {{"/dev/pipe", 'p', -5, 1 << 30}, Code::kOk, ""},
        {{"/dev/kvm", 'c', 10, 232},
         Code::kFailedPrecondition,
         "linux.devices[0] (\"/dev/kvm\"): this guest's kernel has no character device 10:232"},
        {{"/dev/null", 'c', 10, 232},
         Code::kFailedPrecondition,
         "linux.devices[0] (\"/dev/null\"): this guest's kernel has no character device 10:232"},
        {{"/dev/pts144", 'c', 144, 0},
         Code::kFailedPrecondition,
         "linux.devices[0] (\"/dev/pts144\"): this guest's kernel has no character device 144:0"},
        {{"/dev/sda", 'b', 8, 0},
         Code::kPermissionDenied,
         "linux.devices[0] (\"/dev/sda\"): block device 8:0 is not attached to this guest by its host"},
        {{"/dev/null", 'b', 1, 3},
         Code::kPermissionDenied,
         "linux.devices[0] (\"/dev/null\"): block device 1:3 is not attached to this guest by its host"},
        {{"/dev/x", 'c', 4096, 0},
         Code::kInvalidArgument,
         "linux.devices[0] (\"/dev/x\"): 4096:0 is outside 0:0 to 4095:1048575"},
        {{"/dev/x", 'c', 1, -1},
         Code::kInvalidArgument,
         "linux.devices[0] (\"/dev/x\"): 1:-1 is outside 0:0 to 4095:1048575"},
        {{"/dev/x", 'z', 1, 3},
         Code::kInvalidArgument,
         "linux.devices[0] (\"/dev/x\"): type \"z\" is not c, u, b or p"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.node.path);
        Status status = check_device_nodes({&row.node, 1}, "linux.devices", exists);
        CHECK((status.ok() ? Code::kOk : status.error().code) == row.code);
        CHECK((status.ok() ? "" : status.error().message) == row.message);
    }
    // What the machine's own root asks for: any node that there can be.
    for (const Row& row : rows) {
        CAPTURE(row.node.path);
        Status numbers = check_node_numbers(row.node, "linux.devices[0]");
        CHECK(numbers.ok() == (row.code != Code::kInvalidArgument));
        if (!numbers.ok()) CHECK(numbers.error().message == row.message);
    }
    const DeviceNodeRequest two[] = {rows[0].node, rows[8].node};
    CHECK(check_device_nodes(two, "linux.devices", exists).error().message.starts_with("linux.devices[1] "));
}
