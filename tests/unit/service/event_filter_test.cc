#include "agent/service/event_filter.h"

#include <doctest/doctest.h>

using berth::service::EventFilter;

namespace {

bool passes(const std::vector<std::string>& filters, const EventFilter::Fields& fields) {
    auto filter = EventFilter::parse(filters);
    REQUIRE(filter.ok());
    return filter->matches(fields);
}

const EventFilter::Fields kOom{"/tasks/oom", "k8s.io", "web"};
const EventFilter::Fields kExit{"/tasks/exit", "default", "db"};

}  // namespace

TEST_CASE("without filters every event passes") {
    CHECK(passes({}, kOom));
    CHECK(passes({""}, kExit));
}

TEST_CASE("a filter compares fields as containerd's do") {
    struct Row {
        const char* filter;
        bool oom;
        bool exit;
    };
    constexpr Row kRows[] = {
        {"topic==/tasks/oom", true, false},
        {"topic==\"/tasks/oom\"", true, false},
        {"topic!=/tasks/oom", false, true},
        {"topic~=\"^/tasks/\"", true, true},
        {"topic~=\"^/tasks/e\"", false, true},
        {"namespace==k8s.io", true, false},
        {"event.container_id==db", false, true},
        {"namespace==k8s.io,topic==/tasks/oom", true, false},
        {"namespace==k8s.io,topic==/tasks/exit", false, false},
        {"namespace", true, true},
        {"topic==\"a\\\"b\"", false, false},
    };
    for (const Row& row : kRows) {
        CAPTURE(row.filter);
        CHECK(passes({row.filter}, kOom) == row.oom);
        CHECK(passes({row.filter}, kExit) == row.exit);
    }
}

TEST_CASE("any one of several filters is enough") {
    CHECK(passes({"topic==/tasks/start", "topic==/tasks/oom"}, kOom));
    CHECK(!passes({"topic==/tasks/start", "topic==/tasks/delete"}, kOom));
}

TEST_CASE("a bare field holds when it is not empty") {
    CHECK(!passes({"namespace"}, {"/tasks/oom", "", "web"}));
}

TEST_CASE("what the filter cannot mean is refused with its text") {
    struct Row {
        const char* filter;
        const char* message;
    };
    constexpr Row kRows[] = {
        {"size==1", "filters: \"size==1\": only topic, namespace and event.container_id can be compared"},
        {"topic=/tasks/oom", "filters: \"topic=/tasks/oom\": the operators are ==, != and ~="},
        {"topic==", "filters: \"topic==\": a value is missing"},
        {"topic==\"/tasks", "filters: \"topic==\\\"/tasks\": a quote is not closed"},
        {"topic==\"a\"b", "filters: \"topic==\\\"a\\\"b\": a comma is missing"},
        {"topic==a,", "filters: \"topic==a,\": ends with a comma"},
        {"topic~=\"/tasks/.*\"",
         "filters: \"topic~=\\\"/tasks/.*\\\"\": ~= takes a plain prefix (\"^/tasks/\"), no other regular "
         "expression"},
    };
    for (const Row& row : kRows) {
        auto filter = EventFilter::parse({row.filter});
        REQUIRE(!filter.ok());
        CHECK(filter.error().message == row.message);
        CHECK(filter.error().code == berth::core::Code::kInvalidArgument);
    }
    CHECK(!EventFilter::parse(std::vector<std::string>(65, "topic")).ok());
    CHECK(!EventFilter::parse({std::string(1025, 'x')}).ok());
}
