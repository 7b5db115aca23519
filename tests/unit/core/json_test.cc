#include "agent/core/json.h"

#include <doctest/doctest.h>

#include "agent/core/limits.h"

using namespace berth::core;

namespace {

std::string error_of(std::string_view text) {
    auto parsed = parse_json(text);
    return parsed.ok() ? "" : parsed.error().message;
}

}  // namespace

TEST_CASE("parse_json takes one value and nothing else") {
    CHECK(error_of("{}") == "");
    CHECK(error_of(" [1, 2] \n") == "");
    CHECK(error_of(R"({"a": {"b": 1}, "c": {"b": 2}})") == "");
    const struct {
        std::string_view text;
        std::string_view error;
    } rows[] = {
        {"", "JSON: The document is empty. (at offset 0)"},
        {"{} {}", "JSON: The document root must not be followed by other values. (at offset 3)"},
        {"{\"a\": 1", "JSON: Missing a comma or '}' after an object member. (at offset 7)"},
        {"{\"a\": }", "JSON: Invalid value. (at offset 6)"},
        {"{\"a\": 1,}", "JSON: Missing a name for object member. (at offset 8)"},
        {"{\"a\": \"\x80\"}", "JSON: not UTF-8 at offset 7"},
        {"{\"a\": 1, \"a\": 2}", "JSON: the key \"a\" occurs twice in one object"},
        {"[{\"x\": {\"a\\u0062\": 1, \"ab\": 2}}]", "JSON: the key \"ab\" occurs twice in one object"},
        {std::string_view("{\"a\": 1}\0{}", 11), "JSON: a NUL byte at offset 8"},
        {"// no\n{}", "JSON: Invalid value. (at offset 0)"},
        {"{\"a\": NaN}", "JSON: Invalid value. (at offset 6)"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.text);
        CHECK(error_of(row.text) == row.error);
    }
}

TEST_CASE("parse_json takes UTF-8 as RFC 3629 has it, wherever it stands") {
    const struct {
        std::string_view bytes;
        bool is_valid;
    } rows[] = {
        {"\x7f", true},
        {"\xc2\x80", true},
        {"\xdf\xbf", true},
        {"\xe0\xa0\x80", true},
        {"\xed\x9f\xbf", true},
        {"\xee\x80\x80", true},
        {"\xef\xbf\xbf", true},
        {"\xf0\x90\x80\x80", true},
        {"\xf4\x8f\xbf\xbf", true},
        {"\x80", false},
        {"\xbf", false},
        {"\xc0\x80", false},
        {"\xc1\xbf", false},
        {"\xc2", false},
        {"\xc2\x41", false},
        {"\xe0\x9f\xbf", false},
        {"\xe1\x80", false},
        {"\xe1\x80\x41", false},
        {"\xed\xa0\x80", false},
        {"\xf0\x8f\xbf\xbf", false},
        {"\xf1\x80\x80", false},
        {"\xf4\x90\x80\x80", false},
        {"\xf5\x80\x80\x80", false},
        {"\xff", false},
    };
    for (const auto& row : rows) {
        for (size_t before = 0; before < 10; ++before) {
            std::string text = "\"" + std::string(before, 'a') + std::string(row.bytes);
            CAPTURE(row.bytes);
            CAPTURE(before);
            std::string error = format("JSON: not UTF-8 at offset %zu", before + 1);
            CHECK(error_of(text + "\"") == (row.is_valid ? "" : error));
            // At the very end there is nothing to look at behind it.
            CHECK(error_of(text).starts_with(row.is_valid ? "JSON: Missing a closing quotation" : error));
        }
    }
}

TEST_CASE("parse_json finds a twin among many keys, and deep down") {
    std::string object = "{\"twin\": 1";
    for (int i = 0; i < 40; ++i) object += format(", \"k%d\": [%d]", i, i);
    CHECK(error_of(object + "}") == "");
    CHECK(error_of("[1, {\"a\": [[" + object + ", \"twin\": 2}]]}]") ==
          "JSON: the key \"twin\" occurs twice in one object");
}

TEST_CASE("parse_json is bounded") {
    auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
    CHECK(error_of(nested(berth::limits::kJsonDepth)) == "");
    CHECK(error_of(nested(berth::limits::kJsonDepth + 1)) == "JSON: is nested deeper than 64");
    // Not closed at all, and far deeper than any stack would bear.
    CHECK(error_of(std::string(1'000'000, '[')) == "JSON: is nested deeper than 64");
    std::string many = "[";
    for (size_t i = 0; i < berth::limits::kJsonValues; ++i) many += "1,";
    many += "1]";
    CHECK(error_of(many) == "JSON: has more than 262144 values");
    auto large = parse_json(std::string(berth::limits::kSpecJsonBytes + 1, ' '));
    REQUIRE_FALSE(large.ok());
    CHECK(large.error().code == Code::kResourceExhausted);
    CHECK(large.error().message == "JSON: 4194305 bytes, more than the limit of 4194304");
}

namespace {

template <typename Read>
std::string read_error(std::string_view text, Read read) {
    auto document = parse_json(text);
    if (!document.ok()) return "bad test";
    JsonReport report;
    {
        JsonObject in(report, &*document, "top");
        read(in);
    }
    Status status = report.status();
    return status.ok() ? "" : status.error().message;
}

}  // namespace

TEST_CASE("JsonObject names the path of what is wrong") {
    auto number = [](JsonObject& in) {
        uint32_t value = 0;
        in.read("n", value);
    };
    auto small = [](JsonObject& in) {
        int32_t value = 0;
        in.read_between("n", value, -20, 19);
    };
    auto text = [](JsonObject& in) {
        std::string value;
        in.read("n", value);
    };
    auto flag = [](JsonObject& in) {
        bool value = false;
        in.read("n", value);
    };
    auto list = [](JsonObject& in) {
        std::vector<std::string> value;
        in.read("n", value, 2);
    };
    CHECK(read_error(R"({"n": 4294967295})", number) == "");
    CHECK(read_error(R"({"n": null})", number) == "");
    CHECK(read_error(R"({})", number) == "");
    CHECK(read_error(R"({"n": 4294967296})", number) == "top.n: must be a number from 0 to 4294967295");
    CHECK(read_error(R"({"n": -1})", number) == "top.n: must be a number from 0 to 4294967295");
    CHECK(read_error(R"({"n": 1.5})", number) == "top.n: must be a number from 0 to 4294967295");
    CHECK(read_error(R"({"n": 1e3})", number) == "top.n: must be a number from 0 to 4294967295");
    CHECK(read_error(R"({"n": "1"})", number) == "top.n: must be a number from 0 to 4294967295");
    CHECK(read_error(R"({"n": -21})", small) == "top.n: must be a number from -20 to 19");
    CHECK(read_error(R"({"n": 1})", text) == "top.n: must be a string");
    CHECK(read_error(R"({"n": "a\u0000b"})", text) == "top.n: contains a NUL byte");
    CHECK(read_error(R"({"n": 1})", flag) == "top.n: must be true or false");
    CHECK(read_error(R"({"n": ["a", 2]})", list) == "top.n[1]: must be a string");
    CHECK(read_error(R"({"n": {}})", list) == "top.n: must be an array");
    CHECK(read_error(R"({"n": ["a", "b", "c"]})", list) == "top.n: has 3 elements, more than the limit of 2");
    CHECK(read_error(R"([])", number) == "top: must be an object");
}

TEST_CASE("JsonObject keeps the first error and lists what nobody read") {
    auto document = parse_json(R"({"known": 1, "new\nline": {"deep": 1}, "other": 2})");
    REQUIRE(document.ok());
    JsonReport report;
    {
        JsonObject in(report, &*document, "top");
        uint8_t value = 0;
        in.read("known", value);
        CHECK(value == 1);
    }
    CHECK_FALSE(report.failed());
    CHECK(report.ignored() == std::vector<std::string>{R"(top["new\nline"])", "top.other"});
    report.fail(invalid("first"));
    report.fail(invalid("second"));
    CHECK(report.status().error().message == "first");
}
