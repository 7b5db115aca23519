#include "agent/berthctl/json_text.h"

#include <doctest/doctest.h>

#include "agent/core/json.h"

using berth::ctl::JsonText;

namespace {

void put_sample(JsonText& out) {
    out.begin_object();
    out.text("id", "web");
    out.number("big", UINT64_MAX);
    out.signed_number("low", INT64_MIN);
    out.boolean("on", true);
    out.begin_array("list");
    out.item("a");
    out.item(uint64_t{7});
    out.end_array();
    out.begin_object("empty");
    out.end_object();
    out.end_object();
}

}  // namespace

TEST_CASE("one line for programs") {
    JsonText out;
    put_sample(out);
    CHECK(
        out.str() ==
        R"({"id":"web","big":18446744073709551615,"low":-9223372036854775808,"on":true,"list":["a",7],"empty":{}})");
}

TEST_CASE("indented for people, and the same document") {
    JsonText compact;
    put_sample(compact);
    JsonText out(JsonText::Style::kIndented);
    put_sample(out);
    CHECK(out.str().starts_with("{\n  \"id\": \"web\",\n"));
    CHECK(out.str().find("\"empty\": {}\n}") != std::string::npos);
    auto one = berth::core::parse_json(compact.str());
    auto other = berth::core::parse_json(out.str());
    REQUIRE(one.ok());
    REQUIRE(other.ok());
    CHECK(*one == *other);
}

TEST_CASE("fractions as short as they can be") {
    JsonText out;
    out.begin_object();
    out.decimal("a", 0.54);
    out.decimal("b", 1.0 / 3);
    out.decimal("c", 0.1 + 0.2);
    out.decimal("d", 2);
    out.end_object();
    CHECK(out.str() == R"({"a":0.54,"b":0.3333333333333333,"c":0.30000000000000004,"d":2})");
}

TEST_CASE("text from elsewhere cannot end its string") {
    JsonText out;
    out.begin_object();
    out.text("k\"", std::string_view("\"\\\n\x1b\x7f\0x", 7));
    out.end_object();
    CHECK(out.str() == R"({"k\"":"\"\\\u000a\u001b\u007f\u0000x"})");
}
