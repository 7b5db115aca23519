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
void serve(test::Keeper& keeper, std::span<std::byte> ledger, Sockets& sockets,
           std::optional<uint64_t> resume_offset) {
    auto loop = loop::Loop::create(64);
    if (!loop.ok()) _exit(2);
    test::RemoteStore store(keeper.agent_end());
    StreamTable table(**loop, store);
    if (!table.open(ledger).ok()) _exit(3);
    for (auto& [name, fd] : keeper.fds) {
        if (!table.adopt(name, fd)) _exit(4);
    }
    keeper.fds.clear();
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
pid_t start_writer(test::Keeper& keeper, int fd, uint64_t total) {
    return test::fork_agent([=, &keeper] {
        keeper.fds.clear();
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
pid_t start_reader(test::Keeper& keeper, int fd, uint64_t total) {
    return test::fork_agent([=, &keeper] {
        keeper.fds.clear();  // or it holds the write end of its own pipe
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

// What a client knows of both streams, over all its connections.
struct Progress {
    uint64_t total = 0;
    uint64_t received = 0;  // output that it has secured
    bool out_done = false;
    bool in_done = false;
    bool wrong = false;
};

// One connection of the client to each stream, with one agent.
class Life {
 public:
    Life(Progress& progress, Random& random, Sockets& sockets, std::optional<uint64_t> resume)
        : progress_(progress),
          random_(random),
          resume_(resume),
          output_(std::move(sockets.out.first), wire::StreamSender::kAgentOfOutput),
          input_(std::move(sockets.in.first), wire::StreamSender::kAgentOfInput) {
        output_.check = test::pattern;
        output_.keep = false;
    }

    // Takes and gives what there is, input and output up to the offset `until`. False: both were closed.
    bool step(uint64_t until) {
        bool is_open = output_step(until);
        is_open |= input_step(until);
        if (!is_open) return false;
        pollfd ready[] = {{output_.fd(), POLLIN, 0}, {input_.fd(), POLLIN, 0}};
        if (frame_.empty() || sent_ - input_.acked > 300'000) poll(ready, 2, 1);
        return true;
    }

 private:
    bool output_step(uint64_t until) {
        bool was_attached = output_.attached.has_value();
        bool is_open = output_.offset > until || output_.receive(1 + random_(200'000));
        if (output_.attached && !was_attached && !progress_.out_done) {
            // Never beyond what we have (a hole), never below what we secured.
            progress_.wrong |=
                *output_.attached > progress_.received || (resume_ && *output_.attached != *resume_);
        }
        progress_.wrong |= output_.pattern_broken || output_.malformed || output_.lost > 0;
        progress_.received = std::max(progress_.received, output_.offset);
        if (output_.attached && output_.offset - unacked_since_ > random_(400'000)) {
            unacked_since_ = output_.offset;
            output_.ack(output_.offset);
        }
        if (output_.has_eof) output_.ack(output_.offset);
        progress_.out_done |= output_.closed == 0u;
        return is_open;
    }

    bool input_step(uint64_t until) {
        bool is_open = input_.receive();
        progress_.wrong |= input_.malformed;
        progress_.in_done |= input_.closed == 0u;
        if (!input_.attached || eof_sent_) return is_open;
        sent_ = std::max(sent_, *input_.attached);
        uint64_t end = std::min(progress_.total, until);
        if (frame_.empty() && sent_ < end && sent_ - input_.acked < 500'000) {
            size_t count = std::min<uint64_t>(end - sent_, 1 + random_(random_(2) == 0 ? 65'536 : 200));
            auto header = wire::encode_stream_header(
                {.type = wire::StreamFrameType::kData, .length = static_cast<uint32_t>(count)});
            for (uint8_t byte : header) frame_.push_back(std::byte{byte});
            for (size_t i = 0; i < count; ++i) frame_.push_back(test::pattern(sent_++));
        } else if (frame_.empty() && sent_ == progress_.total) {
            eof_sent_ = input_.eof();
        }
        ssize_t done = send(input_.fd(), frame_.data(), frame_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done > 0) frame_.erase(frame_.begin(), frame_.begin() + done);
        return is_open;
    }

    Progress& progress_;
    Random& random_;
    std::optional<uint64_t> resume_;
    StreamClient output_;
    StreamClient input_;
    uint64_t sent_ = 0;
    uint64_t unacked_since_ = 0;
    bool eof_sent_ = false;
    std::vector<std::byte> frame_;  // partly sent
};

bool has_ended(pid_t child, int& status) {
    return waitpid(child, &status, WNOHANG) == child;
}

}  // namespace

TEST_CASE("agents killed at random: no byte of output or input lost, none doubled") {
    bool is_long = getenv("BERTH_LONG_TESTS") != nullptr;
    const int wanted_kills = is_long ? 200 : 30;
    Progress progress;
    progress.total = static_cast<uint64_t>(wanted_kills) * 240'000;
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
    pid_t writer = start_writer(keeper, out[1], progress.total);
    close(out[1]);
    pid_t reader = start_reader(keeper, in[0], progress.total);
    close(in[0]);

    Random random;
    bool reader_ended = false;
    int kills = 0, reader_status = -1, status = 0;
    double deadline = now_seconds() + 300;
    // The client is done before the process is: its last bytes are secured then, and still to be delivered.
    auto is_over = [&] { return progress.out_done && progress.in_done && reader_ended; };
    while (!is_over() && !progress.wrong && now_seconds() < deadline) {
        Sockets sockets;
        std::optional<uint64_t> resume;
        if (kills % 2 == 1 && !progress.out_done) resume = progress.received;
        pid_t agent = test::fork_agent([&] { serve(keeper, ledger_memory.bytes(), sockets, resume); });
        sockets.out.second.reset();
        sockets.in.second.reset();
        Life life(progress, random, sockets, resume);
        // What is sent in one life is bounded, so that a fast machine kills as often.
        uint64_t until = kills < wanted_kills ? static_cast<uint64_t>(kills + 1) * 240'000 - 1 : UINT64_MAX;
        double kill_at = until == UINT64_MAX ? deadline : now_seconds() + double(random(8000)) / 1e6;
        while (now_seconds() < kill_at && !is_over()) {
            bool is_open = life.step(until);
            keeper.receive();
            if (!reader_ended) reader_ended = has_ended(reader, reader_status);
            if (!is_open && !(progress.out_done && progress.in_done)) break;
        }
        kill(agent, SIGKILL);
        REQUIRE(waitpid(agent, &status, 0) == agent);
        progress.wrong |= !WIFSIGNALED(status);
        ++kills;
        keeper.receive();
    }
    CHECK_FALSE(progress.wrong);
    CHECK(progress.out_done);
    CHECK(progress.in_done);
    CHECK(progress.received == progress.total);
    CHECK(kills > wanted_kills);
    CHECK(reader_ended);
    if (!reader_ended) kill(reader, SIGKILL);
    if (!reader_ended) REQUIRE(waitpid(reader, &reader_status, 0) == reader);
    CHECK(reader_status == 0);
    if (!progress.out_done) kill(writer, SIGKILL);
    REQUIRE(waitpid(writer, &status, 0) == writer);
    CHECK(status == 0);
    // An agent that comes later finds the input closed, in the keeper too.
    CHECK_FALSE(keeper.fds.contains(std::string(kIn) + "sink"));
    MESSAGE(kills << " agents killed, " << progress.received << " bytes out, as many in");
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
