#include "agent/core/smbios.h"

#include <doctest/doctest.h>

#include <string>

using berth::core::find_oem_string;

namespace {

std::string structure(uint8_t type, std::string_view formatted,
                      std::initializer_list<std::string_view> strings) {
    std::string bytes;
    bytes.push_back(static_cast<char>(type));
    bytes.push_back(static_cast<char>(4 + formatted.size()));
    bytes.append(2, '\0');
    bytes.append(formatted);
    for (std::string_view text : strings) bytes.append(text).push_back('\0');
    if (strings.size() == 0) bytes.push_back('\0');
    bytes.push_back('\0');
    return bytes;
}

std::optional<std::string> find(const std::string& table) {
    std::optional<std::string_view> found =
        find_oem_string(std::as_bytes(std::span(table.data(), table.size())), "berth.secret=");
    if (!found) return std::nullopt;
    return std::string(*found);
}

}  // namespace

TEST_CASE("the first OEM string with the prefix is found, whatever comes before it") {
    const std::string table =
        structure(0, std::string(20, 'x'), {"vendor", "berth.secret=in the wrong type"}) +
        structure(1, std::string(23, '\0'), {}) +
        structure(11, "\x03", {"other", "berth.secret=abc", "berth.secret=later"}) + structure(127, "", {});
    CHECK(find(table) == "abc");
    CHECK(find(structure(11, "\x01", {"berth.secret="})) == "");
}

TEST_CASE("no such string is nothing") {
    CHECK(find("") == std::nullopt);
    CHECK(find(structure(11, "\x01", {"berth.secre"})) == std::nullopt);
    CHECK(find(structure(127, "", {}) + structure(11, "\x01", {"berth.secret=behind the end"})) ==
          std::nullopt);
}

TEST_CASE("a truncated or lying table is nothing, at every length") {
    const std::string table =
        structure(1, std::string(23, '\1'), {"a"}) + structure(11, "\x01", {"berth.secret=abcdef"});
    for (size_t length = 0; length + 2 < table.size(); ++length) {
        CAPTURE(length);
        CHECK(find(table.substr(0, length)) == std::nullopt);
    }
    std::string short_header = table;
    short_header[1] = 3;
    CHECK(find(short_header) == std::nullopt);
    std::string long_header = table;
    long_header[1] = static_cast<char>(0xff);
    CHECK(find(long_header) == std::nullopt);
}
