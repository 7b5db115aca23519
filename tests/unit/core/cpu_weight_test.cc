#include "agent/core/cpu_weight.h"

#include <doctest/doctest.h>

using namespace berth::core;

TEST_CASE("cpu.weight from shares, by the opencontainers formula") {
    const struct {
        uint64_t shares;
        uint32_t weight;
    } rows[] = {
        {1, 1},         {2, 1},          {3, 2},          {10, 4},         {100, 17},
        {102, 17},      {128, 21},       {200, 29},       {256, 35},       {512, 59},
        {1000, 99},     {1023, 100},     {1024, 100},     {1025, 101},     {2000, 170},
        {2048, 174},    {4096, 303},     {8192, 532},     {22000, 1204},   {65536, 3023},
        {131072, 5478}, {262143, 10000}, {262144, 10000}, {262145, 10000}, {UINT64_MAX, 10000},
    };
    for (const auto& row : rows) {
        CAPTURE(row.shares);
        CHECK(cpu_weight_from_shares(row.shares) == row.weight);
    }
    // Every value between, against a sum and a hash that were computed with 40 digits.
    uint64_t sum = 0;
    uint32_t hash = 0;
    for (uint32_t shares = 3; shares < 262'144; ++shares) {
        uint32_t weight = cpu_weight_from_shares(shares);
        sum += weight;
        hash = hash * 31 + weight;
    }
    CHECK(sum == 1'405'368'459);
    CHECK(hash == 1'178'042'939);
}

TEST_CASE("io.weight from blockIO.weight") {
    const struct {
        uint16_t weight;
        uint32_t expected;
    } rows[] = {{10, 1}, {11, 11}, {17, 71}, {100, 910}, {123, 1142}, {500, 4950}, {1000, 10000}};
    for (const auto& row : rows) {
        CAPTURE(row.weight);
        CHECK(io_weight_from_blkio(row.weight) == row.expected);
    }
}
