// A stream table over the kernel's ring, with a map for the keeper: what the tests of streams share.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>

#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/runtime/stream_table.h"
#include "tests/support/runtime/agent_process.h"
#include "tests/support/runtime/map_store.h"
#include "tests/support/runtime/stream_client.h"

namespace berth::test {

using runtime::StdioRequest;
using runtime::StreamKind;
using runtime::StreamTable;

struct StreamGuest {
    StreamGuest() {
        signal(SIGPIPE, SIG_IGN);
        start();
    }
    ~StreamGuest() { stop(); }
    void start() {
        loop = std::move(loop::Loop::create(64)).value();
        table = std::make_unique<StreamTable>(*loop, store);
        REQUIRE(table->open(std::as_writable_bytes(std::span(ledger))).ok());
        table->on_lost = [this](const runtime::StreamId& id, uint64_t bytes) {
            lost += runtime::describe(id) + " " + std::to_string(bytes) + "; ";
        };
    }
    void stop() {
        table->quiesce();
        turn_until([&] { return table->is_idle(); });
        table.reset();
        loop.reset();
    }
    // A new agent over the same keeper.
    void restart() {
        stop();
        start();
        for (const auto& [name, fd] : store.fds) {
            sys::UniqueFd copy = copy_fd(fd);
            REQUIRE(table->adopt(name, copy));
        }
        table->adopt_done();
    }
    template <typename Condition>
    void turn_until(Condition condition) {
        for (int i = 0; i < 4000 && !condition(); ++i) {
            loop->turn(false);
            if (i > 200) usleep(500);
        }
        REQUIRE(condition());
    }
    void turns(int count) {
        for (int i = 0; i < count; ++i) loop->turn(false);
    }
    std::unique_ptr<runtime::ProcessStdio> make(StdioRequest request) {
        auto made = table->make_stdio("web", "", request);
        if (!made.ok()) FAIL(made.error().message);
        return std::move(made).value();
    }
    std::unique_ptr<StreamClient> connect(StreamKind kind, std::optional<uint64_t> resume = {}) {
        auto ticket = table->open_stream("web", "", kind, resume);
        if (!ticket.ok()) FAIL(ticket.error().message);
        auto grant = table->check_ticket(*ticket);
        REQUIRE(grant.ok());
        Socketpair pair;
        table->attach(*grant, std::move(pair.second));
        return std::make_unique<StreamClient>(
            std::move(pair.first), kind == StreamKind::kStdin ? wire::StreamSender::kAgentOfInput
                                                              : wire::StreamSender::kAgentOfOutput);
    }
    std::vector<uint64_t> ledger = std::vector<uint64_t>(512 * 8);
    MapStore store;
    std::unique_ptr<loop::Loop> loop;
    std::unique_ptr<StreamTable> table;
    std::string lost;
};

inline sys::UniqueFd take_child(runtime::ProcessStdio& stdio, int number) {
    int copy = fcntl(stdio.child_fd(number), F_DUPFD_CLOEXEC, 3);
    return sys::UniqueFd(copy);
}

inline void write_text(int fd, std::string_view text) {
    REQUIRE(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
}

inline constexpr StdioRequest kStreams{.in = "stream://", .out = "stream://", .err = "stream://"};

}  // namespace berth::test
