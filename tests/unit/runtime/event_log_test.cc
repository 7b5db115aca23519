#include "agent/runtime/event_log.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "agent/runtime/event_hub.h"
#include "tests/support/runtime/single_step.h"

using namespace berth;
using runtime::EventLog;

namespace {

constexpr size_t kEntries = 8;
constexpr size_t kBytes = 64 + kEntries * 16 + 5000;

struct Memory {
    alignas(8) std::byte bytes[kBytes] = {};
    std::span<std::byte> span() { return bytes; }
};

// The n-th entry's content: of differing length, and recognisable.
std::string entry(uint64_t n) {
    return std::string(1 + (n * 397) % 1500, static_cast<char>('a' + n % 26)) + std::to_string(n);
}

uint64_t append(EventLog& log, const std::string& text) {
    return log.append(std::as_bytes(std::span(text)));
}

void check_content(const EventLog& log) {
    CHECK(log.last_sequence() + 1 >= log.first_sequence());
    for (uint64_t n = log.first_sequence(); n <= log.last_sequence(); ++n) CHECK(log.read(n) == entry(n));
    CHECK_FALSE(log.read(log.first_sequence() - 1));
    CHECK_FALSE(log.read(log.next_sequence()));
}

}  // namespace

TEST_CASE("an empty log") {
    auto memory = std::make_unique<Memory>();
    EventLog log;
    CHECK(log.open(memory->span(), kEntries));
    CHECK(log.first_sequence() == 1);
    CHECK(log.last_sequence() == 0);
    CHECK(log.next_sequence() == 1);
    CHECK_FALSE(log.read(0));
    CHECK_FALSE(log.read(1));
}

TEST_CASE("entries are numbered from 1, the oldest go first, by count and by bytes") {
    auto memory = std::make_unique<Memory>();
    EventLog log;
    log.open(memory->span(), kEntries);
    SUBCASE("count") {
        for (uint64_t n = 1; n <= 20; ++n) {
            CHECK(append(log, "x" + std::to_string(n)) == n);
            CHECK(log.first_sequence() == (n > kEntries ? n - kEntries + 1 : 1));
        }
        CHECK(log.read(20) == "x20");
        CHECK_FALSE(log.read(12));
    }
    SUBCASE("bytes") {
        std::string large(2400, 'l');
        append(log, large);
        append(log, large);
        CHECK(log.first_sequence() == 1);
        append(log, large);
        CHECK(log.first_sequence() == 2);
        append(log, std::string(limits::kEventBytes, 'm'));
        CHECK(log.first_sequence() == 4);
        CHECK(log.read(4) == std::string(limits::kEventBytes, 'm'));
    }
}

TEST_CASE("what is kept is intact, and found again after a restart, over many wraps") {
    auto memory = std::make_unique<Memory>();
    auto log = std::make_unique<EventLog>();
    log->open(memory->span(), kEntries);
    for (uint64_t n = 1; n <= 1000; ++n) {
        REQUIRE(append(*log, entry(n)) == n);
        check_content(*log);
        if (n % 7 == 0) {
            log = std::make_unique<EventLog>();
            REQUIRE(log->open(memory->span(), kEntries));
            REQUIRE(log->last_sequence() == n);
            check_content(*log);
        }
    }
}

TEST_CASE("the size that the product uses keeps as many entries as it says") {
    std::vector<uint64_t> words(limits::kEventLogBytes / 8);
    EventLog log;
    log.open(std::as_writable_bytes(std::span(words)));
    std::string text(400, 'e');
    for (int i = 0; i < 6000; ++i) append(log, text);
    CHECK(log.last_sequence() - log.first_sequence() + 1 == limits::kEventLogEntries);
}

// Long entries fill the ring, of short ones it holds all that it may keep in a part of a lap.
TEST_CASE("what is told to be unused is of no visible entry, and all that is not is used") {
    for (size_t longest : {1500, 200}) {
        auto memory = std::make_unique<Memory>();
        auto log = std::make_unique<EventLog>();
        log->open(memory->span(), kEntries);
        CHECK(log->unused()[0].size() == 5000);
        bool two_parts = false;
        for (uint64_t n = 1; n <= 1000; ++n) {
            append(*log, entry(n).substr(0, 1 + n * 397 % longest));
            size_t visible = 0;
            size_t unused = 0;
            for (std::span<std::byte> bytes : log->unused()) {
                unused += bytes.size();
                std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
            }
            two_parts |= !log->unused()[0].empty() && !log->unused()[1].empty();
            if (n % 3 == 0) {
                log = std::make_unique<EventLog>();
                REQUIRE(log->open(memory->span(), kEntries));
            }
            for (uint64_t kept = log->first_sequence(); kept <= n; ++kept) {
                visible += log->read(kept)->size();
                CHECK(log->read(kept) == entry(kept).substr(0, 1 + kept * 397 % longest));
            }
            // What alignment and the end of a lap leave over belongs to neither.
            CHECK(unused + visible <= 5000);
            CHECK(unused + visible + 8 * kEntries + longest >= 5000);
        }
        CHECK(two_parts == (longest == 200));
    }
}

TEST_CASE("a hub's log of a memfd keeps few pages, however many events went through it") {
    int fd = memfd_create("events", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    REQUIRE(ftruncate(fd, limits::kEventLogBytes) == 0);
    void* mapped = mmap(nullptr, limits::kEventLogBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(mapped != MAP_FAILED);
    std::span<std::byte> memory(static_cast<std::byte*>(mapped), limits::kEventLogBytes);
    auto hub = std::make_unique<runtime::EventHub>();
    CHECK(hub->open(memory));
    v1::Event event;
    event.set_container_id("a-container");
    event.mutable_deleted();
    size_t most = 0;
    for (int i = 0; i < 100'000; ++i) {
        hub->emit(event, nullptr);
        if (i % 1000 != 0) continue;
        struct stat status {};
        REQUIRE(fstat(fd, &status) == 0);
        most = std::max(most, static_cast<size_t>(status.st_blocks) * 512);
    }
    size_t live = limits::kEventLogEntries * (16 + hub->read(hub->last_sequence())->size() + 8);
    CHECK(most <= live + limits::kEventLogGiveBackBytes + 3 * 4096);
    CHECK(hub->last_sequence() - hub->first_sequence() + 1 == limits::kEventLogEntries);
    // Every entry is whole, also for the agent that comes after.
    for (int round = 0; round < 2; ++round) {
        for (uint64_t n = hub->first_sequence(); n <= hub->last_sequence(); ++n) {
            v1::Event kept;
            REQUIRE(kept.ParseFromString(*hub->read(n)));
            REQUIRE(kept.sequence() == n);
        }
        hub = std::make_unique<runtime::EventHub>();
        CHECK(hub->open(memory));
    }
    munmap(mapped, limits::kEventLogBytes);
    close(fd);
}

TEST_CASE("damage and another geometry begin a new log") {
    auto memory = std::make_unique<Memory>();
    EventLog log;
    log.open(memory->span(), kEntries);
    for (uint64_t n = 1; n <= 5; ++n) append(log, entry(n));
    auto damage = [&](size_t offset, uint64_t value) {
        auto copy = std::make_unique<Memory>(*memory);
        std::memcpy(copy->bytes + offset, &value, 8);
        EventLog other;
        CHECK_FALSE(other.open(copy->span(), kEntries));
        CHECK(other.last_sequence() == 0);
        CHECK(append(other, entry(1)) == 1);
        check_content(other);
    };
    damage(0, 42);                   // magic
    damage(8, 42);                   // bytes
    damage(16, 42);                  // entries
    damage(24, 6);                   // evicted > last
    damage(32, 5000);                // more than there can be
    damage(64 + 16 * 3, 3);          // position of entry 3: not aligned
    damage(64 + 16 * 3, 1 << 20);    // not in order
    damage(64 + 16 * 4 + 8, 0);      // length of entry 4
    damage(64 + 16 * 4 + 8, 99999);  // too long
    EventLog other;
    CHECK_FALSE(other.open(memory->span(), kEntries - 1));
}

TEST_CASE("killed between any two instructions, the log keeps every published entry") {
    test::SharedMemory memory(kBytes / 8 * 8);
    auto copy = std::make_unique<Memory>();
    std::vector<std::string> texts;
    for (uint64_t n = 0; n <= 14; ++n) texts.push_back(entry(n));
    uint64_t last = 0;
    bool wrong = false;
    size_t steps = test::single_step(
        [&] {
            EventLog log;
            log.open(memory.bytes(), kEntries);
            for (uint64_t n = 1; n <= 14; ++n) append(log, texts[n]);
        },
        [&] {
            // What a new agent would find now.
            std::memcpy(copy->bytes, memory.bytes().data(), memory.bytes().size());
            EventLog log;
            wrong |= !log.open(std::span(copy->bytes).first(memory.bytes().size()), kEntries);
            wrong |= log.last_sequence() < last || log.last_sequence() > last + 1;
            last = log.last_sequence();
            wrong |= log.last_sequence() > 3 && log.last_sequence() - log.first_sequence() < 1;
            for (uint64_t n = log.first_sequence(); n <= last; ++n) wrong |= log.read(n) != texts[n];
            // It goes on from there.
            wrong |= append(log, texts[last % 14]) != last + 1;
            wrong |= log.read(last + 1) != texts[last % 14];
        });
    CHECK_FALSE(wrong);
    CHECK(last == 14);
    CHECK(steps > 500);
    MESSAGE("instructions: " << steps);
}
