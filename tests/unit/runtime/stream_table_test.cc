// Streams from the process's descriptor to the client's socket, over the kernel's ring.
#include "agent/runtime/stream_table.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>

#include <cstdlib>
#include <functional>

#include "tests/support/runtime/stream_guest.h"

using namespace berth;
using core::Code;
using runtime::StdioRequest;
using runtime::StreamKind;
using runtime::StreamTable;
using test::StreamClient;
using Guest = test::StreamGuest;
using test::as_bytes;
using test::kStreams;
using test::take_child;
using test::write_text;

TEST_CASE("stdio fields") {
    struct Row {
        const char* text;
        const char* error;  // null: fine
    } rows[] = {
        {"", nullptr},
        {"stream://", nullptr},
        {"file:///var/log/x", nullptr},
        {"fd:0", nullptr},
        {"fd:1", "stdout \"fd:1\": no such descriptor came with the request"},
        {"fd:-1", "stdout \"fd:-1\": no index of a descriptor"},
        {"stream://x", "stdout \"stream://x\": must be empty, stream://, vsock://PORT, file:///path or fd:N"},
        {"/run/fifo", "stdout \"/run/fifo\": must be empty, stream://, vsock://PORT, file:///path or fd:N"},
        {"file://host/x", "stdout \"file://host/x\": no absolute path"},
        {"vsock://", "stdout \"vsock://\": no port of the host"},
        {"vsock://1234", nullptr},
        {"vsock://2:1234", "stdout \"vsock://2:1234\": no port of the host"},
        {"vsock://0", "stdout \"vsock://0\": no port of the host"},
        {"vsock://4294967296", "stdout \"vsock://4294967296\": no port of the host"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.text);
        auto status = runtime::check_stdio({.out = row.text}, 1);
        CHECK(status.ok() == (row.error == nullptr));
        if (!status.ok()) CHECK(status.error().message == row.error);
    }
    auto status = runtime::check_stdio({.err = "stream://", .terminal = true}, 0);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().message == "stderr \"stream://\": a terminal has one output stream, stdout");
}

TEST_CASE("output: from the process to the client, acknowledged, to the end") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    sys::UniqueFd out = take_child(*stdio, 1);
    stdio->close_child_fds();
    CHECK((fcntl(out.get(), F_GETFL) & O_NONBLOCK) == 0);  // the process's end blocks
    write_text(out.get(), "hello ");
    auto client = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return client->receive() && client->text() == "hello "; });
    CHECK(client->attached == 0);
    CHECK(client->window == limits::kStreamWindowBytes / 2);
    write_text(out.get(), "world");
    guest.turn_until([&] { return client->receive() && client->text() == "hello world"; });
    CHECK_FALSE(client->has_eof);
    out.reset();
    guest.turn_until([&] { return client->receive() && client->has_eof; });
    guest.turns(20);
    CHECK_FALSE(client->closed);  // not before everything is acknowledged
    client->ack(11);
    guest.turn_until([&] { return client->receive() && client->closed; });
    CHECK(client->closed == 0);
    client->close();
    guest.turn_until([&] { return guest.table->attached() == 0; });

    SUBCASE("EOF and CLOSED come again on a reattach") {
        auto again = guest.connect(StreamKind::kStdout);
        guest.turn_until([&] { return again->receive() && again->closed; });
        CHECK(again->attached == 11);
        CHECK(again->has_eof);
        CHECK(again->closed == 0);
        CHECK(again->bytes.empty());
    }
    SUBCASE("also after a restart, and its pipes are no longer kept") {
        guest.restart();
        CHECK(guest.store.fds.count("c/web/stdio//out@1/rr") == 0);
        auto again = guest.connect(StreamKind::kStdout);
        guest.turn_until([&] { return again->receive() && again->closed; });
        CHECK(again->attached == 11);
        CHECK(again->closed == 0);
    }
}

TEST_CASE("nothing is spliced ahead while nobody is attached") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    int size = 0;
    write_text(stdio->child_fd(1), "waiting");
    guest.turns(20);
    REQUIRE(ioctl(guest.store.fds["c/web/stdio//out@1/src"].get(), FIONREAD, &size) == 0);
    CHECK(size == 7);
}

TEST_CASE("a reattach goes on at the oldest byte not acknowledged, or where it says") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    write_text(stdio->child_fd(1), "0123456789");
    auto client = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return client->receive() && client->bytes.size() == 10; });
    client->ack(4);
    guest.turns(20);
    client->close();
    guest.turn_until([&] { return guest.table->attached() == 0; });
    bool restart = false;
    SUBCASE("the same agent") {}
    SUBCASE("the next agent") {
        restart = true;
    }
    if (restart) guest.restart();
    auto again = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return again->receive() && again->bytes.size() == 6; });
    CHECK(again->attached == 4);
    CHECK(again->text() == "456789");
    write_text(stdio->child_fd(1), "abc");
    guest.turn_until([&] { return again->receive() && again->text() == "456789abc"; });
    again->close();
    guest.turn_until([&] { return guest.table->attached() == 0; });
    auto third = guest.connect(StreamKind::kStdout, 8);
    guest.turn_until([&] { return third->receive() && third->text() == "89abc"; });
    CHECK(third->attached == 8);
    auto below = guest.table->open_stream("web", "", StreamKind::kStdout, 7);
    REQUIRE_FALSE(below.ok());
    CHECK(below.error().code == Code::kOutOfRange);
    CHECK(below.error().message == "stdout of \"web\": resume_offset 7: the oldest byte kept is 8");
    auto above = guest.table->open_stream("web", "", StreamKind::kStdout, 14);
    REQUIRE_FALSE(above.ok());
    CHECK(above.error().message == "stdout of \"web\": resume_offset 14: only 13 bytes were read so far");
}

TEST_CASE("the window holds the agent back; an ACK goes on; too large an ACK ends it") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    int out = stdio->child_fd(1);
    fcntl(out, F_SETFL, O_NONBLOCK);
    auto client = guest.connect(StreamKind::kStdout);
    int size = 8 << 20;
    setsockopt(client->fd(), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    std::vector<std::byte> bytes(65'536);
    uint64_t written = 0;
    for (int i = 0; i < 300; ++i) {
        ssize_t done = write(out, bytes.data(), bytes.size());
        if (done > 0) written += static_cast<uint64_t>(done);
        guest.turns(2);
        client->receive();
    }
    CHECK(client->offset == client->window);
    CHECK(written > client->window);
    client->ack(client->offset);
    guest.turn_until([&] { return client->receive() && client->offset == written; });
    client->ack(written + 1);
    guest.turn_until([&] { return !client->receive(); });
    CHECK_FALSE(client->closed);
}

TEST_CASE("a newer attachment takes over") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    write_text(stdio->child_fd(1), "abc");
    auto old = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return old->receive() && old->text() == "abc"; });
    auto young = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return old->receive() && old->closed; });
    CHECK(old->closed == static_cast<uint32_t>(Code::kAborted));
    guest.turn_until([&] { return young->receive() && young->text() == "abc"; });
    old->ack(3);  // of nobody any more
    guest.turns(10);
    CHECK(guest.table->output("web", "", StreamKind::kStdout)->pipes().base() == 0);
}

TEST_CASE("tickets: once, in time, for what exists") {
    Guest guest;
    auto stdio = guest.make({.out = "stream://"});
    auto ticket = guest.table->open_stream("web", "", StreamKind::kStdout, {});
    REQUIRE(ticket.ok());
    runtime::Ticket wrong = *ticket;
    wrong[31] ^= 1;
    CHECK(guest.table->check_ticket(wrong).error().message == "unknown, expired or used ticket");
    auto grant = guest.table->check_ticket(*ticket);
    CHECK(grant.ok());
    CHECK_FALSE(guest.table->check_ticket(*ticket).ok());
    CHECK(guest.table->open_stream("web", "", StreamKind::kStdin, {}).error().message ==
          "stdin of \"web\": no such stream");
    CHECK(guest.table->open_stream("web", "sh", StreamKind::kStderr, {}).error().message ==
          "stderr of exec \"sh\" in \"web\": no such stream");
    // Deleted between the ticket and the connection.
    guest.table->remove_process("web", "");
    test::Socketpair pair;
    guest.table->attach(*grant, std::move(pair.second));
    StreamClient client(std::move(pair.first), wire::StreamSender::kAgentOfOutput);
    guest.turn_until([&] { return client.receive() && client.closed; });
    CHECK(client.closed == static_cast<uint32_t>(Code::kNotFound));

    runtime::TicketBook book;
    runtime::Ticket bytes{};
    for (size_t i = 0; i < limits::kTickets; ++i) {
        std::memcpy(bytes.data(), &i, sizeof(i));
        REQUIRE(book.add(bytes, {}, 0).ok());
    }
    CHECK(book.add(bytes, {}, 1).error().message == "4096 stream tickets are outstanding");
    int64_t later = limits::kTicketLifetimeMs * 1'000'000;
    CHECK_FALSE(book.take(bytes, later).ok());
    CHECK(book.size() == 0);
}

TEST_CASE("input: acknowledged, delivered, and ended by EOF only") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    sys::UniqueFd in = take_child(*stdio, 0);
    stdio->close_child_fds();
    CHECK((fcntl(in.get(), F_GETFL) & O_NONBLOCK) == 0);
    auto client = guest.connect(StreamKind::kStdin);
    guest.turn_until([&] { return client->receive() && client->attached; });
    client->data(as_bytes("one "));
    guest.turn_until([&] { return client->receive() && client->acked == 4; });
    client->close();
    guest.turn_until([&] { return guest.table->attached() == 0; });
    char buffer[64] = {};
    CHECK(read(in.get(), buffer, sizeof(buffer)) == 4);
    CHECK(std::string_view(buffer, 4) == "one ");
    fcntl(in.get(), F_SETFL, O_NONBLOCK);
    CHECK(read(in.get(), buffer, sizeof(buffer)) == -1);  // a dropped connection is no end of file
    bool restart = false;
    SUBCASE("the same agent") {}
    SUBCASE("the next agent") {
        restart = true;
    }
    if (restart) guest.restart();
    client = guest.connect(StreamKind::kStdin);
    guest.turn_until([&] { return client->receive() && client->attached; });
    CHECK(client->attached == 4);
    client->data(as_bytes("two"));
    client->eof();
    guest.turn_until([&] { return client->receive() && client->closed; });
    CHECK(client->acked == 7);
    CHECK(client->closed == 0);
    if (restart) guest.restart();
    CHECK(read(in.get(), buffer, sizeof(buffer)) == 3);
    CHECK(read(in.get(), buffer, sizeof(buffer)) == 0);
    auto late = guest.connect(StreamKind::kStdin);
    guest.turn_until([&] { return late->receive() && late->closed; });
    CHECK(late->closed == 0);
    CHECK(guest.table->open_stream("web", "", StreamKind::kStdin, 3).error().message ==
          "stdin of \"web\": resume_offset: must be unset for stdin, ATTACHED says where to go on");
}

TEST_CASE("input: any size, a process that stalls stops only its own stream, and large frames arrive whole") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    sys::UniqueFd in = take_child(*stdio, 0);
    stdio->close_child_fds();
    fcntl(in.get(), F_SETFL, O_NONBLOCK);
    auto client = guest.connect(StreamKind::kStdin);
    constexpr uint64_t kTotal = 700'000;
    uint64_t sent = 0, got = 0;
    bool reading = false;
    std::vector<std::byte> pending;
    bool right = true;
    guest.turn_until([&] {
        for (int i = 0; i < 30; ++i) {
            if (pending.empty() && sent < kTotal) {
                size_t count = std::min<uint64_t>(kTotal - sent, sent % 2 == 0 ? 65'535 : 1001);
                auto header = wire::encode_stream_header(
                    {.type = wire::StreamFrameType::kData, .length = static_cast<uint32_t>(count)});
                for (uint8_t byte : header) pending.push_back(std::byte{byte});
                for (size_t k = 0; k < count; ++k) pending.push_back(test::pattern(sent++));
            }
            ssize_t done =
                send(client->fd(), pending.data(), std::min<size_t>(pending.size(), 30'000), MSG_DONTWAIT);
            if (done > 0) pending.erase(pending.begin(), pending.begin() + done);
            guest.loop->turn(false);
            client->receive();
            if (client->acked >= 100'000 && !reading) {
                auto other = guest.connect(StreamKind::kStderr);
                guest.turn_until([&] { return other->receive() && other->attached; });
                reading = true;
            }
            std::byte buffer[5000];
            ssize_t count = reading ? read(in.get(), buffer, sizeof(buffer)) : -1;
            for (ssize_t k = 0; k < count; ++k) right &= buffer[k] == test::pattern(got++);
        }
        return got == kTotal;
    });
    CHECK(right);
    guest.turn_until([&] { return client->receive() && client->acked == kTotal; });
}

TEST_CASE("CloseIO delivers what was sent before it") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    sys::UniqueFd in = take_child(*stdio, 0);
    stdio->close_child_fds();
    char buffer[64] = {};
    SUBCASE("attached") {
        auto client = guest.connect(StreamKind::kStdin);
        guest.turn_until([&] { return client->receive() && client->attached; });
        client->data(as_bytes("last words"));
        CHECK(stdio->close_stdin().ok());
        guest.turn_until([&] { return client->receive() && client->closed; });
        CHECK(client->closed == 0);
        CHECK(client->acked == 10);
        CHECK(read(in.get(), buffer, sizeof(buffer)) == 10);
    }
    SUBCASE("not attached, remembered over a restart") {
        CHECK(stdio->close_stdin().ok());
        guest.restart();
        CHECK(guest.store.fds.count("c/web/stdio//in@0/sink") == 0);
    }
    CHECK(read(in.get(), buffer, sizeof(buffer)) == 0);
}

TEST_CASE("a process that closed its stdin does not hold up the client") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    stdio->close_child_fds();
    auto client = guest.connect(StreamKind::kStdin);
    guest.turn_until([&] { return client->receive() && client->attached; });
    std::string text(50'000, 'x');
    for (uint64_t i = 1; i <= 5; ++i) {
        client->data(as_bytes(text));
        guest.turn_until([&] { return client->receive() && client->acked == i * 50'000; });
    }
}

TEST_CASE("malformed frames end the connection, not the stream") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    write_text(stdio->child_fd(1), "kept");
    auto client = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return client->receive() && client->text() == "kept"; });
    client->data(as_bytes("no business of yours"));
    guest.turn_until([&] { return !client->receive(); });
    auto again = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return again->receive() && again->text() == "kept"; });
}

TEST_CASE("the drop policy keeps the newest bytes and counts the others") {
    Guest guest;
    StdioRequest request = kStreams;
    request.drop = true;
    auto stdio = guest.make(request);
    int out = stdio->child_fd(1);
    fcntl(out, F_SETFL, O_NONBLOCK);
    constexpr uint64_t kTotal = 5'000'000;
    uint64_t written = 0;
    std::vector<std::byte> bytes(40'000);
    guest.turn_until([&] {
        for (int i = 0; i < 20; ++i) {
            size_t count = std::min<uint64_t>(bytes.size(), kTotal - written);
            for (size_t k = 0; k < count; ++k) bytes[k] = test::pattern(written + k);
            ssize_t done = write(out, bytes.data(), count);
            if (done > 0) written += static_cast<uint64_t>(done);
            guest.loop->turn(false);
        }
        return written == kTotal;  // nobody reads, and the process goes on
    });
    guest.turns(50);
    auto client = guest.connect(StreamKind::kStdout);
    client->check = test::pattern;
    client->keep = false;
    guest.turn_until([&] {
        client->receive();
        client->ack(client->offset);
        return client->offset == kTotal;
    });
    CHECK_FALSE(client->pattern_broken);
    CHECK(client->attached == 0);
    CHECK(client->lost > kTotal - runtime::kRetainedPipeBytes - 200'000);
    CHECK(client->lost < kTotal - 400'000);
    CHECK(guest.lost.empty());
    // Told once for all, in time or when the stream ends before.
    SUBCASE("in time") {
        guest.turn_until([&] { return !guest.lost.empty(); });
    }
    SUBCASE("at the end") {
        stdio.reset();
        guest.table->discard_process("web", "");
    }
    CHECK(guest.lost == "stdout of \"web\" " + std::to_string(client->lost) + "; ");
}

TEST_CASE("what nobody asked for is not told as lost") {
    Guest guest;
    auto stdio = guest.make({.in = "stream://", .terminal = true});
    auto* out = guest.table->output("web", "", StreamKind::kStdout);
    REQUIRE(out != nullptr);
    int fds[2];
    REQUIRE(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
    sys::UniqueFd end(fds[1]);
    out->set_source(sys::UniqueFd(fds[0]));
    std::vector<std::byte> bytes(40'000);
    uint64_t written = 0;
    guest.turn_until([&] {
        ssize_t done = write(end.get(), bytes.data(), bytes.size());
        if (done > 0) written += static_cast<uint64_t>(done);
        return written > 3'000'000;
    });
    guest.turns(20);
    guest.table->discard_process("web", "");
    CHECK(guest.lost.empty());
}

TEST_CASE("after Delete output can still be drained; then it is lost") {
    Guest guest;
    auto stdio = guest.make(kStreams);
    write_text(stdio->child_fd(1), "last words");
    stdio.reset();
    guest.table->remove_process("web", "");
    CHECK(guest.store.fds.count("d/web/stdio//out@1/src") == 1);
    guest.turns(5);
    for (const auto& [name, fd] : guest.store.fds) CHECK(name.starts_with("d/web/stdio//out@1/"));
    bool restart = false;
    SUBCASE("the same agent") {}
    SUBCASE("the next agent") {
        restart = true;
    }
    if (restart) guest.restart();
    SUBCASE("drained") {
        auto client = guest.connect(StreamKind::kStdout);
        guest.turn_until([&] { return client->receive() && client->has_eof; });
        CHECK(client->text() == "last words");
        client->ack(10);
        guest.turn_until([&] { return client->receive() && client->closed; });
        CHECK(client->closed == 0);
        client->close();
        guest.turn_until([&] { return guest.store.fds.empty(); });
        CHECK(guest.lost.empty());
    }
    SUBCASE("a namesake takes its place") {
        auto next = guest.make(kStreams);
        CHECK(guest.lost == "stdout of \"web\" 10; ");
        write_text(next->child_fd(1), "new");
        auto client = guest.connect(StreamKind::kStdout);
        guest.turn_until([&] { return client->receive() && client->text() == "new"; });
    }
}

TEST_CASE("files in the guest are appended to, devices are not opened") {
    Guest guest;
    char path[] = "/tmp/berth-stdio-XXXXXX";
    sys::UniqueFd file(mkstemp(path));
    write_text(file.get(), "old\n");
    std::string uri = std::string("file://") + path;
    auto stdio = guest.make({.out = uri, .err = uri});
    write_text(stdio->child_fd(1), "out\n");
    write_text(stdio->child_fd(2), "err\n");
    char buffer[64] = {};
    CHECK(pread(file.get(), buffer, sizeof(buffer), 0) == 12);
    CHECK(std::string_view(buffer) == "old\nout\nerr\n");
    CHECK(stdio->child_fd(0) == -1);
    unlink(path);
    auto device = guest.table->make_stdio("dev", "", {.out = "file:///dev/zero"});
    REQUIRE_FALSE(device.ok());
    CHECK(device.error().message == "stdout: /dev/zero is neither a file nor a FIFO");
    auto missing = guest.table->make_stdio("dev", "", {.in = "stream://", .out = "file:///nowhere/x"});
    REQUIRE_FALSE(missing.ok());
    CHECK(missing.error().message == "stdout: open /nowhere/x: ENOENT");
    CHECK(guest.store.fds.empty());
}

TEST_CASE("the end of a terminal's input is typed, when it reads line by line") {
    struct Row {
        const char* name;
        std::string_view sent;
        bool is_raw;
        bool restart;
        std::string_view read;  // "|" between reads, "." for an end of file
    } rows[] = {
        {"nothing sent", "", false, false, "."},
        {"a whole line", "one\n", false, false, "one\n|."},
        {"a carriage return, which is a line's end here", "one\r", false, false, "one\n|."},
        {"a line that is begun", "one\ntwo", false, false, "one\n|two|."},
        {"raw", "one", true, false, "one"},
        {"after a restart", "one\n", false, true, "one\n|."},
    };
    for (const Row& row : rows) {
        CAPTURE(row.name);
        Guest guest;
        auto stdio = guest.make({.in = "stream://", .out = "stream://", .terminal = true});
        sys::UniqueFd master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
        REQUIRE(unlockpt(master.get()) == 0);
        sys::UniqueFd slave(ioctl(master.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
        termios settings{};
        REQUIRE(tcgetattr(slave.get(), &settings) == 0);
        settings.c_lflag &= ~static_cast<tcflag_t>(row.is_raw ? ICANON | ECHO : ECHO);
        REQUIRE(tcsetattr(slave.get(), TCSANOW, &settings) == 0);
        auto keys = guest.connect(StreamKind::kStdin);
        guest.turn_until([&] { return keys->receive() && keys->attached; });
        if (!row.sent.empty()) keys->data(as_bytes(row.sent));
        // Before the terminal is there, or after; by a frame, or by CloseIO.
        bool is_late = row.sent.empty() || row.restart;
        if (is_late) REQUIRE(stdio->set_terminal(std::move(master)).ok());
        guest.turn_until([&] { return keys->receive() && keys->acked == row.sent.size(); });
        if (row.restart) {
            keys->close();
            guest.turn_until([&] { return guest.table->attached() == 0; });
            stdio.reset();
            guest.restart();
            stdio = guest.table->adopted_stdio("web", "");
            REQUIRE(stdio->close_stdin().ok());
        } else {
            keys->eof();
            guest.turn_until([&] { return keys->receive() && keys->closed; });
            CHECK(keys->closed == 0);
        }
        if (!is_late) REQUIRE(stdio->set_terminal(std::move(master)).ok());
        guest.turns(20);
        std::string seen;
        for (int i = 0; i < 3; ++i) {
            char buffer[64];
            ssize_t got = read(slave.get(), buffer, sizeof(buffer));
            if (got < 0) break;
            seen.append(seen.empty() ? "" : "|")
                .append(got == 0 ? "." : std::string(buffer, static_cast<size_t>(got)));
            if (got == 0) break;
        }
        CHECK(seen == row.read);
        CHECK(guest.store.fds.count("c/web/stdio//in@0/sink") == 0);
        CHECK(write(slave.get(), "out", 3) == 3);  // the terminal lives on
    }
}

TEST_CASE("a terminal: one stream out, one in, a size, and a hang-up that is the end") {
    Guest guest;
    auto stdio = guest.make({.in = "stream://", .out = "stream://", .terminal = true});
    CHECK(stdio->child_fd(1) == -1);
    CHECK(stdio->resize(40, 100).ok());
    CHECK(stdio->resize(70'000, 1).error().message == "70000 rows, 1 columns: at most 65535 each");
    auto client = guest.connect(StreamKind::kStdout);
    guest.turn_until([&] { return client->receive() && client->attached; });
    guest.turns(10);
    sys::UniqueFd master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    REQUIRE(unlockpt(master.get()) == 0);
    sys::UniqueFd slave(ioctl(master.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
    REQUIRE(slave.valid());
    REQUIRE(stdio->set_terminal(std::move(master)).ok());
    winsize size{};
    ioctl(slave.get(), TIOCGWINSZ, &size);
    CHECK(size.ws_row == 40);
    CHECK(size.ws_col == 100);
    write_text(slave.get(), "ready\n");
    guest.turn_until([&] { return client->receive() && client->text() == "ready\r\n"; });
    auto keys = guest.connect(StreamKind::kStdin);
    guest.turn_until([&] { return keys->receive() && keys->attached; });
    keys->data(as_bytes("ls\n"));
    guest.turn_until([&] { return client->receive() && client->text() == "ready\r\nls\r\n"; });  // the echo
    char buffer[64] = {};
    CHECK(read(slave.get(), buffer, sizeof(buffer)) == 3);
    client->close();
    keys->close();
    guest.turn_until([&] { return guest.table->attached() == 0; });
    write_text(slave.get(), "while away\n");
    guest.restart();
    stdio = guest.table->adopted_stdio("web", "");
    CHECK(stdio->is_terminal());
    CHECK(stdio->resize(50, 132).ok());
    ioctl(slave.get(), TIOCGWINSZ, &size);
    CHECK(size.ws_col == 132);
    client = guest.connect(StreamKind::kStdout, 11);
    guest.turn_until([&] { return client->receive() && client->text() == "while away\r\n"; });
    slave.reset();
    guest.turn_until([&] { return client->receive() && client->has_eof; });
}
