// The watch over a ring that is completed by hand and a folder that stands for the cgroup.
#include "agent/runtime/memory_watch.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <vector>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "tests/support/loop/fake_ring.h"
#include "tests/support/sys/fake_tree.h"

using namespace berth;
using runtime::MemoryReading;
using runtime::MemoryWatch;

namespace {

constexpr int64_t kWindowNs = limits::kMemoryPressureEventsMs * 1'000'000;

std::string counters(int high, int oom_kill) {
    return core::format("low 0\nhigh %03d\nmax 0\noom 0\noom_kill %03d\noom_group_kill 0\n", high, oom_kill);
}

struct Case {
    Case() : ring(new test::FakeRing(8)), loop(std::unique_ptr<loop::Ring>(ring)) {
        auto begun =
            MemoryWatch::begin(loop, tree.root(), sys::FdRef(-1),
                               [this](const MemoryReading& reading) { seen.push_back(reading.total); });
        REQUIRE(begun.ok());
        watch = std::move(*begun);
        turn();
        REQUIRE(ring->submitted.size() == 1);
        REQUIRE(ring->submitted[0].opcode == IORING_OP_POLL_ADD);
        poll = ring->submitted[0].user_data;
    }
    ~Case() {
        watch->retire();
        ring->completions.push_back({poll, -ECANCELED, false});
        turn();
    }

    void turn() {
        stopper.post();
        loop.run();
        stopper.post();
        loop.run();
    }
    void on_stop() { loop.stop(); }

    void set(int high, int oom_kill) {
        std::string text = counters(high, oom_kill);
        sys::UniqueFd fd(open(tree.path("memory.events").c_str(), O_WRONLY | O_CLOEXEC));
        REQUIRE(pwrite(fd.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    }
    // What the kernel does when a counter rose.
    void wake(int high, int oom_kill) {
        set(high, oom_kill);
        ring->completions.push_back({poll, POLLPRI | POLLERR, true});
        turn();
    }
    void pass(int64_t nanoseconds) {
        ring->now += nanoseconds;
        turn();
    }

    test::FakeRing* ring;
    loop::Loop loop;
    loop::Task stopper{loop, loop::Task::to<&Case::on_stop, Case>(), this};
    test::FakeTree tree{
        {test::file("memory.events", counters(0, 0)), test::file("memory.events.local", counters(0, 0))}};
    std::shared_ptr<MemoryWatch> watch;
    uint64_t poll = 0;
    std::vector<core::MemoryEvents> seen;
};

}  // namespace

TEST_CASE("steady pressure is told of once in a while, and nothing of it is lost") {
    Case c;
    CHECK(c.watch->first().total.empty());
    c.wake(1, 0);
    REQUIRE(c.seen.size() == 1);  // the first at once
    for (int high = 2; high <= 9; ++high) c.wake(high, 0);
    CHECK(c.seen.size() == 1);
    c.pass(kWindowNs - 1);
    CHECK(c.seen.size() == 1);
    c.pass(1);
    REQUIRE(c.seen.size() == 2);
    CHECK(c.seen[1].high == 9);
    c.wake(10, 0);  // the window that the second began
    CHECK(c.seen.size() == 2);
    c.pass(kWindowNs);
    REQUIRE(c.seen.size() == 3);
    CHECK(c.seen[2].high == 10);
    // Calm again: no timer, and the next is told at once.
    c.pass(kWindowNs);
    c.pass(kWindowNs);
    CHECK(c.seen.size() == 3);
    c.wake(11, 0);
    CHECK(c.seen.size() == 4);
}

TEST_CASE("a kill is told of at once, with the pressure before it") {
    Case c;
    c.wake(1, 0);
    c.wake(2, 0);
    CHECK(c.seen.size() == 1);
    c.wake(3, 1);
    REQUIRE(c.seen.size() == 2);
    CHECK(c.seen[1].high == 3);
    CHECK(c.seen[1].oom_kill == 1);
    c.wake(3, 2);
    REQUIRE(c.seen.size() == 3);
    CHECK(c.seen[2].oom_kill == 2);
    c.pass(kWindowNs);
    CHECK(c.seen.size() == 3);  // nothing was held back
}

TEST_CASE("a retired watch tells nothing more") {
    Case c;
    c.wake(1, 0);
    c.wake(2, 0);
    c.watch->retire();
    c.pass(kWindowNs);
    CHECK(c.seen.size() == 1);
}
