#include "agent/wire/status.h"

#include <doctest/doctest.h>

#include <string>

namespace berth::wire {
namespace {

TEST_CASE("UTF-8") {
    const std::string good[] = {"",
                                "plain",
                                "\xC2\x80",
                                "\xDF\xBF",
                                "\xE0\xA0\x80",
                                "\xED\x9F\xBF",
                                "\xEE\x80\x80",
                                "\xEF\xBF\xBF",
                                "\xF0\x90\x80\x80",
                                "\xF4\x8F\xBF\xBF"};
    for (const std::string& text : good) CHECK(is_utf8(text));
    const std::string bad[] = {"\x80",         "\xBF",     "\xC0\x80",         "\xC1\xBF",
                               "\xC2",         "\xC2g",    "\xE0\x80\x80",     "\xE0\x9F\xBF",
                               "\xED\xA0\x80", "\xE2\x82", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                               "\xF5\x80\x80", "\xFF",     "ok\xFE",           "\xF0\x90\x80"};
    for (const std::string& text : bad) CHECK(!is_utf8(text));
}

TEST_CASE("a status message is one decodable line") {
    CHECK(status_message("create \"w\xC3\xA9"
                         "b\": EINVAL") ==
          "create \"w\xC3\xA9"
          "b\": EINVAL");
    CHECK(status_message("a\nb\tc\x7F"
                         "d\xFF\xC3") == "a?b?c?d??");
    CHECK(status_message(std::string(1, '\0')) == "?");
    CHECK(status_message(std::string(5000, 'x')).size() == kStatusMessageBytes);
    // A character is never cut in two.
    std::string cut = status_message(std::string(kStatusMessageBytes - 1, 'x') + "\xC3\xA9");
    CHECK(cut.size() == kStatusMessageBytes - 1);
}

TEST_CASE("codes") {
    CHECK(code_to_wire(core::Code::kUnimplemented) == 12);
    CHECK(code_from_wire(14) == core::Code::kUnavailable);
    CHECK(code_from_wire(15) == core::Code::kUnknown);
    CHECK(code_from_wire(-1) == core::Code::kUnknown);
}

}  // namespace
}  // namespace berth::wire
