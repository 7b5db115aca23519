#include "agent/keeper/restart_policy.h"

#include <doctest/doctest.h>

#include <initializer_list>

using berth::keeper::RestartPolicy;

namespace {
constexpr int64_t kMs = 1'000'000;
}  // namespace

TEST_CASE("crashes in a row wait longer, and the third means safe mode") {
    RestartPolicy policy;
    struct Row {
        int64_t delay_ms;
        bool safe_mode;
    };
    int64_t now_ns = 1000 * kMs;
    for (Row row : {Row{0, false}, Row{100, false}, Row{1000, true}, Row{5000, true}, Row{5000, true}}) {
        CHECK(policy.on_crash(now_ns) == now_ns + row.delay_ms * kMs);
        CHECK(policy.safe_mode() == row.safe_mode);
        now_ns += 10'000 * kMs;
    }
    CHECK(policy.crashes() == 5);
}

TEST_CASE("only a child that said it was ready and served for a minute starts the count anew") {
    RestartPolicy policy;
    CHECK(policy.on_crash(0) == 0);
    CHECK(policy.on_crash(0) == 100 * kMs);
    // Long life without being ready does not count.
    CHECK(policy.on_crash(100 * RestartPolicy::kSettledNs) == 100 * RestartPolicy::kSettledNs + 1000 * kMs);
    CHECK(policy.safe_mode());
    policy.on_ready(0);
    CHECK(policy.on_crash(RestartPolicy::kSettledNs - 1) == RestartPolicy::kSettledNs - 1 + 5000 * kMs);
    policy.on_ready(0);
    CHECK(policy.on_crash(RestartPolicy::kSettledNs) == RestartPolicy::kSettledNs);
    CHECK(policy.crashes() == 1);
    CHECK(!policy.safe_mode());
    // And its readiness was that child's alone.
    CHECK(policy.on_crash(3 * RestartPolicy::kSettledNs) == 3 * RestartPolicy::kSettledNs + 100 * kMs);
}

TEST_CASE("an end on purpose starts the count anew") {
    RestartPolicy policy;
    for (int i = 0; i < 4; ++i) CHECK(policy.on_crash(0) >= 0);
    policy.on_purpose();
    CHECK(!policy.safe_mode());
    CHECK(policy.on_crash(5) == 5);
}
