#include "agent/core/ids.h"

#include <doctest/doctest.h>

using berth::core::ContainerId;
using berth::core::ExecId;

TEST_CASE("a container id is a plain file name") {
    for (const char* good : {"a", "web-1", "A.b_c+d", "-x", "0123"}) {
        CAPTURE(good);
        CHECK(ContainerId::parse(good).ok());
    }
    for (const char* bad : {"", ".", "..", ".hidden", "a/b", "a b", "a\n", "\xc3\xa9"}) {
        CAPTURE(bad);
        CHECK(!ContainerId::parse(bad).ok());
    }
    CHECK(ContainerId::parse(std::string(128, 'x')).ok());
    CHECK(!ContainerId::parse(std::string(129, 'x')).ok());
    CHECK(!ContainerId::parse(std::string_view("a\0b", 3)).ok());
}

TEST_CASE("an empty exec id names the init") {
    CHECK(ExecId::parse("").value().is_init());
    CHECK(!ExecId::parse("e1").value().is_init());
    CHECK(ExecId::parse("..").error().message == "exec_id \"..\": must not begin with a dot");
}
