#include "agent/runtime/ledger.h"

#include <doctest/doctest.h>

#include <cstring>
#include <set>
#include <vector>

#include "tests/support/runtime/single_step.h"

using namespace berth;
using runtime::Ledger;
using runtime::LedgerSlot;
using runtime::SlotUse;
using runtime::StreamRecord;

TEST_CASE("slots are zeroed, distinct, and run out") {
    std::vector<uint64_t> memory(4 * 8);
    Ledger ledger;
    ledger.open(std::as_writable_bytes(std::span(memory)));
    CHECK(ledger.size() == 4);
    std::set<uint32_t> indices;
    for (int i = 0; i < 4; ++i) {
        auto index = ledger.allocate(SlotUse::kOutput, runtime::kSlotDropPolicy);
        REQUIRE(index);
        indices.insert(*index);
        LedgerSlot* slot = ledger.find(*index);
        REQUIRE(slot != nullptr);
        CHECK(slot->flags() == runtime::kSlotDropPolicy);
        CHECK(slot->record() == StreamRecord{});
        slot->commit({5, 6, 7});
        slot->set_base(9);
    }
    CHECK(indices.size() == 4);
    CHECK_FALSE(ledger.allocate(SlotUse::kInput, 0));
    CHECK(ledger.find(4) == nullptr);
    ledger.free(2);
    ledger.free(2);
    ledger.free(99);
    CHECK(ledger.find(2) == nullptr);
    CHECK(ledger.used() == 3);
    CHECK(ledger.allocate(SlotUse::kInput, 0) == 2);
    CHECK(ledger.find(2)->base() == 0);
    CHECK(ledger.find(2)->record() == StreamRecord{});
    CHECK(ledger.find(2)->use() == SlotUse::kInput);
}

TEST_CASE("a restart finds the slots, and frees what nobody names") {
    std::vector<uint64_t> memory(8 * 8);
    Ledger ledger;
    ledger.open(std::as_writable_bytes(std::span(memory)));
    for (int i = 0; i < 5; ++i) ledger.allocate(SlotUse::kOutput, 0);
    ledger.find(3)->commit({100, 0, 0});
    Ledger again;
    again.open(std::as_writable_bytes(std::span(memory)));
    CHECK(again.used() == 5);
    again.free_all_but({3, 1});
    CHECK(again.used() == 2);
    REQUIRE(again.find(3) != nullptr);
    CHECK(again.find(3)->record().end == 100);
}

TEST_CASE("killed between any two instructions, a record is the old one or the new one") {
    test::SharedMemory memory(4096);
    Ledger reader;
    reader.open(memory.bytes());
    bool wrong = false;
    uint64_t last = 0;
    test::single_step(
        [&] {
            Ledger ledger;
            ledger.open(memory.bytes());
            LedgerSlot* slot = ledger.find(*ledger.allocate(SlotUse::kOutput, 0));
            for (uint32_t n = 1; n <= 20; ++n) slot->commit({uint64_t{n} << 32, n, n * 3});
        },
        [&] {
            LedgerSlot* slot = reader.find(0);
            if (slot == nullptr) return;
            const StreamRecord& record = slot->record();
            uint64_t n = record.end >> 32;
            wrong |= record.stale != n || record.depth != n * 3 || n < last || n > last + 1;
            last = n;
        });
    CHECK_FALSE(wrong);
    CHECK(last == 20);
}
