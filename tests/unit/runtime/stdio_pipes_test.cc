// The pipes under the streams, killed at every system call.
#include "agent/runtime/stdio_pipes.h"

#include <doctest/doctest.h>
#include <sys/poll.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/support/runtime/agent_process.h"
#include "tests/support/runtime/map_store.h"
#include "tests/support/runtime/single_step.h"

using namespace berth;
using runtime::InputPipes;
using runtime::Ledger;
using runtime::OutputPipes;
using runtime::PipeTools;
using runtime::SlotUse;

namespace {

constexpr const char* kName = "c/x/stdio//out@0/";

struct Bench {
    Bench() : tools(*PipeTools::create()) {
        ledger.open(std::as_writable_bytes(std::span(memory)));
        ledger.allocate(SlotUse::kOutput, 0);
        int fds[2];
        REQUIRE(pipe2(fds, O_CLOEXEC) == 0);
        process = sys::UniqueFd(fds[1]);
        out = std::make_unique<OutputPipes>(tools, *ledger.find(0), store, kName);
        out->set_source(sys::UniqueFd(fds[0]));
        REQUIRE(out->prepare().ok());
    }
    void write_bytes(size_t count) {
        std::vector<std::byte> bytes(count);
        for (std::byte& each : bytes) each = test::pattern(written++);
        REQUIRE(write(process.get(), bytes.data(), count) == static_cast<ssize_t>(count));
    }
    std::vector<uint64_t> memory = std::vector<uint64_t>(64);
    PipeTools tools;
    Ledger ledger;
    test::MapStore store;
    sys::UniqueFd process;
    std::unique_ptr<OutputPipes> out;
    std::vector<std::byte> buffer = std::vector<std::byte>(65'536);
    uint64_t written = 0;
};

bool matches(std::span<const std::byte> bytes, uint64_t offset) {
    for (std::byte each : bytes) {
        if (each != test::pattern(offset++)) return false;
    }
    return true;
}

}  // namespace

TEST_CASE("output passes in order, small and large, and stays until it is dropped") {
    Bench bench;
    uint64_t at = 0;
    for (size_t size : {1u, 65'536u, 4'096u, 49'152u, 60'001u, 3u, 65'536u}) {
        bench.write_bytes(size);
        size_t got = 0;
        while (got < size) {
            auto taken = bench.out->take(bench.buffer, 65'536);
            REQUIRE(taken.state == OutputPipes::State::kData);
            CHECK(matches(std::span(bench.buffer).first(taken.bytes), at));
            at += taken.bytes;
            got += taken.bytes;
        }
        CHECK(bench.out->take(bench.buffer, 65'536).state == OutputPipes::State::kWaiting);
    }
    CHECK(bench.out->end() == at);
    CHECK(bench.out->base() == 0);
    bench.out->drop_below(100'000);
    CHECK(bench.out->base() == 100'000);
    auto replay = bench.out->replay(123'456);
    REQUIRE(replay.ok());
    std::vector<std::byte> rest(at - 123'456);
    REQUIRE(read(replay->read.get(), rest.data(), rest.size()) == static_cast<ssize_t>(rest.size()));
    CHECK(matches(rest, 123'456));
    bench.process.reset();
    CHECK(bench.out->take(bench.buffer, 65'536).state == OutputPipes::State::kEnd);
}

TEST_CASE("a limit holds back, and nothing is lost by it") {
    Bench bench;
    bench.write_bytes(65'536);
    uint64_t at = 0;
    CHECK(bench.out->take(bench.buffer, 0).state == OutputPipes::State::kFull);
    for (size_t limit : {1u, 7u, 10'000u, 50'000u, 65'536u}) {
        auto taken = bench.out->take(bench.buffer, limit);
        REQUIRE(taken.state == OutputPipes::State::kData);
        CHECK(taken.bytes <= limit);
        CHECK(matches(std::span(bench.buffer).first(taken.bytes), at));
        at += taken.bytes;
    }
    CHECK(at == 65'536);
}

TEST_CASE("one-byte writes: a whole window fits, read one by one") {
    Bench bench;
    uint64_t count = bench.out->window();
    CHECK(count == runtime::kRetainedPipeBytes / 2);
    for (uint64_t i = 0; i < count; ++i) {
        std::byte byte = test::pattern(i);
        if (write(bench.process.get(), &byte, 1) != 1) FAIL("write");
        auto taken = bench.out->take(bench.buffer, 65'536);
        if (taken.state != OutputPipes::State::kData || taken.bytes != 1) FAIL("stopped at " << i);
    }
    CHECK(bench.out->end() == count);
    CHECK(runtime::pipe_bytes(sys::FdRef(bench.store.fds[std::string(kName) + "rr"])) == count);
}

TEST_CASE("mixed sizes: a whole window fits, whatever the cuts") {
    for (size_t size : {2'049u, 4'095u, 4'097u, 6'145u, 49'152u, 49'153u, 53'249u, 65'536u}) {
        CAPTURE(size);
        Bench bench;
        while (bench.out->end() < bench.out->window()) {
            bench.write_bytes(size);
            for (;;) {
                auto taken = bench.out->take(bench.buffer, 65'536);
                if (taken.state == OutputPipes::State::kWaiting) break;
                if (taken.state != OutputPipes::State::kData) FAIL("stopped at " << bench.out->end());
            }
        }
    }
}

TEST_CASE("a full pipe says so, and goes on after a drop") {
    Bench bench;
    OutputPipes::State state = OutputPipes::State::kData;
    uint64_t at = 0;
    while (state != OutputPipes::State::kFull) {
        pollfd room{bench.process.get(), POLLOUT, 0};
        if (poll(&room, 1, 0) == 1) bench.write_bytes(4096);
        auto taken = bench.out->take(bench.buffer, 65'536);
        state = taken.state;
        CHECK(matches(std::span(bench.buffer).first(taken.bytes), at));
        at += taken.bytes;
    }
    CHECK(bench.out->end() >= bench.out->window());
    bench.out->drop_below(bench.out->end());
    CHECK(bench.out->take(bench.buffer, 65'536).state == OutputPipes::State::kData);
}

TEST_CASE("a process that steals from its own pipe confuses nobody else") {
    Bench bench;
    bench.write_bytes(1000);
    std::string path = "/proc/self/fd/" + std::to_string(bench.process.get());
    sys::UniqueFd thief(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char stolen[500];
    REQUIRE(read(thief.get(), stolen, sizeof(stolen)) == 500);
    auto taken = bench.out->take(bench.buffer, 65'536);
    CHECK(taken.bytes == 500);
    CHECK(bench.out->end() == 500);
}

// ---- killed at every system call ----

namespace {

// One agent's life: recovers, sends what the client lacks, takes, sends, acknowledges some, until the end.
// The client is a socket of {offset, length, bytes}.
void output_agent(const test::Keeper& keeper, std::span<std::byte> ledger_memory, int client) {
    auto tools = PipeTools::create();
    if (!tools.ok()) _exit(2);
    Ledger ledger;
    ledger.open(ledger_memory);
    test::RemoteStore store(keeper.agent_end());
    OutputPipes out(*tools, *ledger.find(0), store, kName);
    for (const auto& [name, fd] : keeper.fds) {
        if (!out.adopt(std::string_view(name).substr(std::string_view(kName).size()), test::copy_fd(fd)))
            _exit(3);
    }
    out.recover();
    if (!out.prepare().ok()) _exit(4);
    std::vector<std::byte> buffer(65'536);
    auto send = [&](uint64_t offset, size_t count) {
        uint64_t header[2] = {offset, count};
        if (write(client, header, sizeof(header)) != sizeof(header)) _exit(5);
        size_t done = 0;
        while (done < count) {
            ssize_t sent = write(client, buffer.data() + done, count - done);
            if (sent <= 0) _exit(6);
            done += static_cast<size_t>(sent);
        }
    };
    uint64_t from = out.base();
    if (from < out.end()) {
        auto replay = out.replay(from);
        if (!replay.ok()) _exit(7);
        for (uint64_t at = from; at < out.end();) {
            ssize_t got = read(replay->read.get(), buffer.data(), buffer.size());
            if (got <= 0) _exit(8);
            send(at, static_cast<size_t>(got));
            at += static_cast<uint64_t>(got);
        }
    }
    size_t limits[] = {65'536, 20'000, 65'536, 1, 300};
    for (size_t round = 0;; ++round) {
        auto taken = out.take(buffer, limits[round % 5]);
        if (taken.state == OutputPipes::State::kEnd) break;
        if (taken.state != OutputPipes::State::kData) _exit(9);
        send(out.end() - taken.bytes, taken.bytes);
        if (round % 2 == 1) out.drop_below(out.end() - std::min<uint64_t>(out.end() - out.base(), 77));
    }
    out.drop_below(out.end());
}

// What the client has: fills `have`, checks every byte. False: something was wrong.
bool drain_client(int socket, std::vector<bool>& have) {
    for (;;) {
        uint64_t header[2];
        ssize_t got = recv(socket, header, sizeof(header), MSG_DONTWAIT | MSG_WAITALL);
        if (got != sizeof(header)) return true;  // a cut header: killed there
        std::vector<std::byte> bytes(header[1]);
        size_t done = 0;
        while (done < bytes.size()) {
            got = recv(socket, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
            if (got <= 0) return matches(std::span(bytes).first(done), header[0]);
            done += static_cast<size_t>(got);
        }
        if (!matches(bytes, header[0]) || header[0] + header[1] > have.size()) return false;
        for (uint64_t i = 0; i < header[1]; ++i) have[header[0] + i] = true;
    }
}

}  // namespace

TEST_CASE("output: killed at the n-th system call, for every n, nothing is lost or doubled") {
    constexpr size_t kTotal = 230'000;
    size_t kills = 0;
    for (size_t n = 1;; ++n) {
        CAPTURE(n);
        test::SharedMemory ledger_memory(4096);
        Ledger ledger;
        ledger.open(ledger_memory.bytes());
        ledger.allocate(SlotUse::kOutput, 0);
        test::Keeper keeper;
        int fds[2];
        REQUIRE(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
        sys::UniqueFd process(fds[1]);
        keeper.fds[std::string(kName) + "src"] = sys::UniqueFd(fds[0]);
        fcntl(fds[1], F_SETPIPE_SZ, 1 << 20);
        for (size_t at = 0; at < kTotal;) {
            std::vector<std::byte> bytes(std::min<size_t>(kTotal - at, at % 3 == 0 ? 70'000 : 100));
            for (std::byte& each : bytes) each = test::pattern(at++);
            REQUIRE(write(process.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
        }
        process.reset();
        std::vector<bool> have(kTotal);
        bool killed = false;
        uint64_t acknowledged = 0;
        for (int life = 0; life < 2; ++life) {
            test::Socketpair client;
            int size = 4 << 20;
            setsockopt(client.second.get(), SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
            auto code = [&] { output_agent(keeper, ledger_memory.bytes(), client.second.get()); };
            if (life == 0) {
                killed = test::run_until_system_call(n, code);
            } else {
                CHECK_FALSE(test::run_until_system_call(SIZE_MAX, code));
            }
            keeper.receive();
            CHECK(drain_client(client.first.get(), have));
            // What the agent dropped, the client must have had.
            acknowledged = ledger.find(0)->base();
            for (uint64_t i = 0; i < acknowledged; ++i) {
                if (!have[i]) FAIL("byte " << i << " was dropped unsent");
            }
        }
        CHECK(std::all_of(have.begin(), have.end(), [](bool one) { return one; }));
        CHECK(ledger.find(0)->record().end == kTotal);
        CHECK(acknowledged == kTotal);
        if (!killed) break;
        ++kills;
    }
    MESSAGE("killed at " << kills << " points");
    CHECK(kills > 100);
}

namespace {

void input_agent(const test::Keeper& keeper, std::span<std::byte> ledger_memory, uint64_t total) {
    auto tools = PipeTools::create();
    if (!tools.ok()) _exit(2);
    Ledger ledger;
    ledger.open(ledger_memory);
    test::RemoteStore store(keeper.agent_end());
    InputPipes in(*tools, *ledger.find(0), store, kName);
    for (const auto& [name, fd] : keeper.fds) {
        if (!in.adopt(std::string_view(name).substr(std::string_view(kName).size()), test::copy_fd(fd)))
            _exit(3);
    }
    in.recover();
    if (in.closed()) return;
    if (!in.prepare().ok()) _exit(4);
    in.move();
    for (size_t round = 0; in.total() < total; ++round) {
        std::vector<std::byte> bytes(std::min<uint64_t>(total - in.total(), round % 2 == 0 ? 9'000 : 70'000));
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = test::pattern(in.total() + i);
        in.put(bytes);
        if (in.move() == InputPipes::State::kGone) _exit(5);
    }
    in.end();
    if (!in.closed()) _exit(6);
}

}  // namespace

TEST_CASE("input: killed at the n-th system call, for every n, nothing is lost or doubled") {
    constexpr size_t kTotal = 200'000;
    size_t kills = 0;
    for (size_t n = 1;; ++n) {
        CAPTURE(n);
        test::SharedMemory ledger_memory(4096);
        Ledger ledger;
        ledger.open(ledger_memory.bytes());
        ledger.allocate(SlotUse::kInput, 0);
        test::Keeper keeper;
        int fds[2];
        REQUIRE(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
        sys::UniqueFd process(fds[0]);
        fcntl(fds[1], F_SETPIPE_SZ, 1 << 20);
        keeper.fds[std::string(kName) + "sink"] = sys::UniqueFd(fds[1]);
        auto code = [&] { input_agent(keeper, ledger_memory.bytes(), kTotal); };
        bool killed = test::run_until_system_call(n, code);
        keeper.receive();
        CHECK_FALSE(test::run_until_system_call(SIZE_MAX, code));
        keeper.receive();
        std::vector<std::byte> got(kTotal + 100'000);
        size_t count = 0;
        ssize_t more;
        while ((more = read(process.get(), got.data() + count, got.size() - count)) > 0) {
            count += static_cast<size_t>(more);
        }
        CHECK(more == 0);  // the end of file, not a wait for more
        CHECK(count == kTotal);
        CHECK(matches(std::span(got).first(std::min(count, kTotal)), 0));
        if (!killed) break;
        ++kills;
    }
    MESSAGE("killed at " << kills << " points");
    CHECK(kills > 50);
}
