#include "agent/berthctl/arguments.h"

#include <doctest/doctest.h>

using berth::ctl::Arguments;
using berth::ctl::Flag;

namespace {

constexpr Flag kCommand[] = {
    {"tty", 't', Flag::Kind::kSwitch, {}},
    {"env", 'e', Flag::Kind::kValue, {}},
};
constexpr Flag kGlobal[] = {{"json", 'j', Flag::Kind::kSwitch, {}}, {"address", 'a', Flag::Kind::kValue, {}}};

berth::core::Status parse(Arguments& arguments, const std::vector<std::string_view>& words,
                          Arguments::Order order = Arguments::Order::kMixed) {
    const Flag* tables[] = {kCommand, kGlobal};
    const size_t sizes[] = {std::size(kCommand), std::size(kGlobal)};
    return arguments.parse(words, tables, sizes, order);
}

}  // namespace

TEST_CASE("flags and words mix, values follow a blank or an equals sign") {
    Arguments arguments;
    REQUIRE(parse(arguments, {"web", "--env", "A=1", "-e", "B=2", "--env=C=3", "-t", "rest"}).ok());
    CHECK(arguments.words() == std::vector<std::string_view>{"web", "rest"});
    CHECK(arguments.values("env") == std::vector<std::string_view>{"A=1", "B=2", "C=3"});
    CHECK(arguments.value("env") == "C=3");
    CHECK(arguments.has("tty"));
    CHECK_FALSE(arguments.has("json"));
    CHECK(arguments.value("address", "default") == "default");
}

TEST_CASE("short flags may be clustered, the last one with a value") {
    for (const auto& words : std::vector<std::vector<std::string_view>>{{"-tj"},
                                                                        {"-jt"},
                                                                        {"-t", "-j"},
                                                                        {"-tje", "A=1"},
                                                                        {"-tje=A=1"},
                                                                        {"-tjeA=1"},
                                                                        {"-jteA=1", "web"}}) {
        Arguments arguments;
        REQUIRE(parse(arguments, words).ok());
        CHECK(arguments.has("tty"));
        CHECK(arguments.has("json"));
        CHECK(arguments.value("env", "A=1") == "A=1");
    }
}

TEST_CASE("from the first word on a command line is left alone") {
    Arguments arguments;
    REQUIRE(parse(arguments, {"-t", "web", "ls", "-t", "--unknown", "--", "x"},
                  Arguments::Order::kStopAtFirstWord)
                .ok());
    CHECK(arguments.words() == std::vector<std::string_view>{"web", "ls", "-t", "--unknown", "--", "x"});
    CHECK(arguments.has("tty"));
}

TEST_CASE("two dashes end the flags; one dash is a word") {
    Arguments arguments;
    REQUIRE(parse(arguments, {"-", "--", "-t", "--env"}).ok());
    CHECK(arguments.words() == std::vector<std::string_view>{"-", "-t", "--env"});
    CHECK_FALSE(arguments.has("tty"));
}

TEST_CASE("a value may be empty, and may begin with a dash") {
    Arguments arguments;
    REQUIRE(parse(arguments, {"--address=", "--env", "-1"}).ok());
    CHECK(arguments.has("address"));
    CHECK(arguments.value("address", "default").empty());
    CHECK(arguments.value("env") == "-1");
}

TEST_CASE("what was parsed before stays, and a later value wins") {
    Arguments arguments;
    REQUIRE(parse(arguments, {"--address", "one", "-j"}).ok());
    REQUIRE(parse(arguments, {"--address", "two"}).ok());
    CHECK(arguments.has("json"));
    CHECK(arguments.value("address") == "two");
}

TEST_CASE("wrong command lines are told by name") {
    struct Case {
        std::vector<std::string_view> words;
        std::string_view message;
    };
    const Case cases[] = {
        {{"--nonsense"}, "unknown flag \"--nonsense\""},
        {{"-x"}, "unknown flag \"-x\""},
        {{"-te"}, "--env needs a value"},
        {{"-tx"}, "unknown flag \"-tx\""},
        {{"-jt=yes"}, "--tty takes no value"},
        {{"-t-"}, "unknown flag \"-t-\""},
        {{"--t"}, "unknown flag \"--t\""},
        {{"--tty=yes"}, "--tty takes no value"},
        {{"-t=yes"}, "--tty takes no value"},
        {{"web", "--env"}, "--env needs a value"},
        {{"---"}, "unknown flag \"---\""},
    };
    for (const Case& each : cases) {
        CAPTURE(each.message);
        Arguments arguments;
        berth::core::Status status = parse(arguments, each.words);
        REQUIRE_FALSE(status.ok());
        CHECK(status.error().code == berth::core::Code::kInvalidArgument);
        CHECK(status.error().message == each.message);
    }
}
