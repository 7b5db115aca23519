// The loop over a ring that is completed by hand.
#include "agent/loop/loop.h"

#include <doctest/doctest.h>
#include <sys/poll.h>

#include <array>
#include <string>

#include "tests/support/loop/fake_ring.h"

using namespace berth;
using loop::Loop;
using loop::Op;
using loop::Task;
using loop::Timer;

namespace {

struct Fixture {
    explicit Fixture(size_t entries = 8)
        : ring(new test::FakeRing(entries)), loop(std::unique_ptr<loop::Ring>(ring)) {}
    test::FakeRing* ring;
    Loop loop;
};

// Writes down what its operation, timer and task do.
struct Recorder {
    explicit Recorder(Loop& l, std::string* log_, std::string name_ = "")
        : loop(l), log(log_), name(std::move(name_)) {}
    void on_op(Op& which, int32_t result) {
        *log += name + std::to_string(result) + (which.more() ? "+ " : " ");
        if (on_result != nullptr) on_result(*this, result);
    }
    void on_timer() {
        *log += name + "timer ";
        if (rearm_at_ns != 0) timer.arm_at_ns(rearm_at_ns);
    }
    void on_task() {
        *log += name + "task ";
        if (repost) task.post();
    }
    Loop& loop;
    std::string* log;
    std::string name;
    void (*on_result)(Recorder&, int32_t) = nullptr;
    int64_t rearm_at_ns = 0;
    bool repost = false;
    Recorder* other = nullptr;
    std::array<std::byte, 16> buffer{};
    Op op{Op::to<&Recorder::on_op>(), this};
    Timer timer{loop, Timer::to<&Recorder::on_timer, Recorder>(), this};
    Task task{loop, Task::to<&Recorder::on_task, Recorder>(), this};
};

}  // namespace

TEST_CASE("operations are submitted as the kernel wants them") {
    Fixture f{16};
    std::string log;
    Recorder r[9]{Recorder{f.loop, &log}, Recorder{f.loop, &log}, Recorder{f.loop, &log},
                  Recorder{f.loop, &log}, Recorder{f.loop, &log}, Recorder{f.loop, &log},
                  Recorder{f.loop, &log}, Recorder{f.loop, &log}, Recorder{f.loop, &log}};
    msghdr message{};
    f.loop.recv(r[0].op, 3, r[0].buffer);
    f.loop.send(r[1].op, 4, r[1].buffer);
    f.loop.recvmsg(r[2].op, 5, &message, MSG_DONTWAIT);
    f.loop.write(r[3].op, 6, r[3].buffer, 7);
    f.loop.read(r[4].op, 6, r[4].buffer, -1);
    f.loop.poll(r[5].op, 8, POLLIN);
    f.loop.poll_multishot(r[6].op, 9, POLLPRI);
    f.loop.accept_multishot(r[7].op, 10);
    open_how how{};
    f.loop.openat2(r[8].op, "/some/file", how);
    CHECK(f.ring->submitted.empty());  // nothing is handed over before the turn's one enter
    f.loop.turn(false);
    REQUIRE(f.ring->submitted.size() == 9);
    auto& s = f.ring->submitted;
    CHECK(s[0].opcode == IORING_OP_RECV);
    CHECK(s[0].fd == 3);
    CHECK(s[0].len == 16);
    CHECK(s[0].user_data == reinterpret_cast<uint64_t>(&r[0].op));
    CHECK(s[1].opcode == IORING_OP_SEND);
    CHECK(s[1].msg_flags == MSG_NOSIGNAL);
    CHECK(s[2].msg_flags == (MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    CHECK(s[3].opcode == IORING_OP_WRITE);
    CHECK(s[3].off == 7);
    CHECK(s[4].off == UINT64_MAX);
    CHECK(s[5].opcode == IORING_OP_POLL_ADD);
    CHECK(s[5].len == 0);
    CHECK(s[6].len == IORING_POLL_ADD_MULTI);
    CHECK(s[7].opcode == IORING_OP_ACCEPT);
    CHECK(s[7].accept_flags == (SOCK_CLOEXEC | SOCK_NONBLOCK));
    CHECK(s[7].ioprio == IORING_ACCEPT_MULTISHOT);
    CHECK(s[8].opcode == IORING_OP_OPENAT2);
    CHECK(s[8].fd == AT_FDCWD);
    CHECK(s[8].len == sizeof how);
    CHECK(s[8].off == reinterpret_cast<uint64_t>(&how));
    CHECK(s[8].flags == IOSQE_ASYNC);
    how.flags = O_PATH;
    Recorder looked{f.loop, &log};
    f.loop.openat2(looked.op, "/some/file", how);
    f.loop.turn(false);
    CHECK(f.ring->submitted.back().flags == 0);
    f.ring->complete(looked.op, 0);
    for (Recorder& each : r) f.ring->complete(each.op, 0);
    f.loop.turn(false);
}

TEST_CASE("a handler may start the same operation again") {
    Fixture f;
    std::string log;
    Recorder r{f.loop, &log};
    r.on_result = [](Recorder& self, int32_t result) {
        CHECK_FALSE(self.op.pending());
        if (result > 0) self.loop.recv(self.op, 3, self.buffer);
    };
    f.loop.recv(r.op, 3, r.buffer);
    f.ring->complete(r.op, 5);
    f.loop.turn(true);
    CHECK(r.op.pending());
    f.ring->complete(r.op, 0);
    f.loop.turn(true);
    CHECK(log == "5 0 ");
    CHECK_FALSE(r.op.pending());
}

TEST_CASE("a handler may destroy its object") {
    Fixture f;
    std::string log;
    auto* r = new Recorder{f.loop, &log};
    r->on_result = [](Recorder& self, int32_t) { delete &self; };
    r->task.post();
    r->timer.arm_after_ms(1);
    f.loop.recv(r->op, 3, r->buffer);
    f.ring->complete(r->op, -ECONNRESET);
    f.loop.turn(true);
    f.ring->now += 10'000'000;
    f.loop.turn(false);
    CHECK(log == "-104 ");
}

TEST_CASE("multishot operations stay armed until a completion says that it is the last") {
    Fixture f;
    std::string log;
    Recorder r{f.loop, &log};
    f.loop.poll_multishot(r.op, 3, POLLIN);
    f.ring->complete(r.op, 1, true);
    f.ring->complete(r.op, 2, true);
    f.ring->complete(r.op, 4, false);
    f.loop.turn(true);
    CHECK(log == "1+ 2+ 4 ");
    CHECK_FALSE(r.op.pending());
}

TEST_CASE("cancel asks by user_data, and only for what the kernel still has") {
    Fixture f;
    std::string log;
    Recorder a{f.loop, &log, "a"};
    Recorder b{f.loop, &log, "b"};
    f.loop.cancel(a.op);  // idle: nothing
    f.loop.turn(false);
    CHECK(f.ring->submitted.empty());

    f.loop.recv(a.op, 3, a.buffer);
    f.loop.recv(b.op, 4, b.buffer);
    f.loop.cancel(a.op);
    f.loop.turn(false);
    REQUIRE(f.ring->submitted.size() == 3);
    CHECK(f.ring->submitted[2].opcode == IORING_OP_ASYNC_CANCEL);
    CHECK(f.ring->submitted[2].addr == reinterpret_cast<uint64_t>(&a.op));
    f.ring->complete_nobody(0);
    f.ring->complete(a.op, -ECANCELED);
    // Both complete in one batch, and the first one's handler cancels the second: its result stands.
    a.other = &b;
    a.on_result = [](Recorder& self, int32_t) { self.loop.cancel(self.other->op); };
    f.ring->complete(b.op, 7);
    f.loop.turn(false);
    f.loop.turn(false);
    CHECK(log == "a-125 b7 ");
    CHECK(f.ring->submitted.size() == 3);
}

TEST_CASE("an operation that was cancelled after it completed may start again at once") {
    Fixture f;
    std::string log;
    Recorder r{f.loop, &log};
    f.loop.recv(r.op, 3, r.buffer);
    f.loop.turn(false);
    f.ring->complete(r.op, 9);  // the kernel was done before it reads the cancel
    f.loop.cancel(r.op);
    r.on_result = [](Recorder& self, int32_t result) {
        if (result == 9) self.loop.recv(self.op, 3, self.buffer);
    };
    f.loop.turn(false);
    f.ring->complete_nobody(-ENOENT);
    f.loop.turn(false);
    // The request stands before the new operation in the queue, so it cannot hit it.
    REQUIRE(f.ring->submitted.size() == 3);
    CHECK(f.ring->submitted[1].opcode == IORING_OP_ASYNC_CANCEL);
    CHECK(f.ring->submitted[2].opcode == IORING_OP_RECV);
    CHECK(r.op.pending());
    f.ring->complete(r.op, 0);
    f.loop.turn(false);
}

TEST_CASE("a full submission queue is handed over in the middle of a turn") {
    Fixture f{2};
    std::string log;
    std::vector<std::unique_ptr<Recorder>> all;
    for (int i = 0; i < 7; ++i) {
        all.push_back(std::make_unique<Recorder>(f.loop, &log));
        f.loop.recv(all.back()->op, i, all.back()->buffer);
    }
    CHECK(f.ring->submitted.size() == 6);
    f.ring->refuse_submits = 1;
    f.loop.recvmsg((all.emplace_back(std::make_unique<Recorder>(f.loop, &log)))->op, 7, nullptr, 0);
    f.loop.recvmsg((all.emplace_back(std::make_unique<Recorder>(f.loop, &log)))->op, 8, nullptr, 0);
    f.loop.turn(false);
    REQUIRE(f.ring->submitted.size() == 9);
    for (int i = 0; i < 9; ++i) CHECK(f.ring->submitted[static_cast<size_t>(i)].fd == i);
    for (auto& each : all) f.ring->complete(each->op, 0);
    f.loop.turn(false);
    CHECK(log == "0 0 0 0 0 0 0 0 0 ");
}

TEST_CASE("timers fire in order, never early, and set the timeout of the enter") {
    Fixture f;
    std::string log;
    Recorder a{f.loop, &log, "a"};
    Recorder b{f.loop, &log, "b"};
    Recorder c{f.loop, &log, "c"};
    f.loop.turn(true);
    CHECK(f.ring->timeouts.back() == loop::Ring::kForever);
    int64_t start = f.ring->now;
    b.timer.arm_at_ns(start + 2000);
    c.timer.arm_at_ns(start + 3000);
    a.timer.arm_at_ns(start + 1000);
    f.loop.turn(true);
    CHECK(f.ring->timeouts.back() == 1000);
    f.ring->now = start + 999;
    f.loop.turn(true);
    CHECK(log == "");
    f.ring->now = start + 2500;
    f.loop.turn(true);
    CHECK(log == "atimer btimer ");
    CHECK(f.ring->timeouts.back() == 0);
    f.loop.turn(true);
    CHECK(f.ring->timeouts.back() == 500);
    c.timer.arm_at_ns(start + 9000);
    f.ring->now = start + 4000;  // past its first deadline
    f.loop.turn(true);
    CHECK(log == "atimer btimer ");
    CHECK(f.ring->timeouts.back() == 5000);
    c.timer.disarm();
    f.loop.turn(true);
    CHECK(f.ring->timeouts.back() == loop::Ring::kForever);
    CHECK_FALSE(c.timer.armed());
}

TEST_CASE("a timer that arms itself for now does not stop the loop") {
    Fixture f;
    std::string log;
    Recorder r{f.loop, &log};
    r.rearm_at_ns = 1;
    r.timer.arm_after_ms(0);
    f.loop.turn(true);
    CHECK(log == "timer ");
    f.loop.turn(true);
    CHECK(f.ring->timeouts.back() == 0);
    CHECK(log == "timer timer ");
}

TEST_CASE("the heap survives random arming and disarming") {
    Fixture f;
    struct Node {
        explicit Node(Loop& l) : timer(l, Timer::to<&Node::fire, Node>(), this) {}
        void fire() {
            CHECK(deadline >= *last);
            *last = deadline;
            deadline = -1;
        }
        Timer timer;
        int64_t deadline = -1;
        int64_t* last = nullptr;
    };
    int64_t last = 0;
    std::vector<std::unique_ptr<Node>> nodes;
    for (int i = 0; i < 100; ++i) {
        nodes.push_back(std::make_unique<Node>(f.loop));
        nodes.back()->last = &last;
    }
    uint64_t random = 42;
    for (int step = 0; step < 5000; ++step) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        Node& node = *nodes[(random >> 33) % nodes.size()];
        if ((random >> 20) % 3 == 0) {
            node.timer.disarm();
            node.deadline = -1;
        } else {
            node.deadline = f.ring->now + static_cast<int64_t>((random >> 40) % 1000);
            node.timer.arm_at_ns(node.deadline);
        }
        if (step % 50 == 0) {
            f.ring->now += 100;
            f.loop.turn(false);
            for (auto& each : nodes) {
                CHECK(each->timer.armed() == (each->deadline >= 0));
                if (each->deadline >= 0) CHECK(each->deadline > f.ring->now);
            }
            last = 0;
        }
    }
}

TEST_CASE("tasks run in the next turn, once, and can be taken back") {
    Fixture f;
    std::string log;
    Recorder a{f.loop, &log, "a"};
    auto b = std::make_unique<Recorder>(f.loop, &log, "b");
    a.task.post();
    a.task.post();
    b->task.post();
    CHECK(log == "");
    b.reset();
    a.repost = true;
    f.loop.turn(true);
    CHECK(log == "atask ");
    a.repost = false;
    f.loop.turn(true);
    CHECK(f.ring->timeouts.back() == 0);  // a posted task keeps the turn from waiting
    CHECK(log == "atask atask ");
    f.loop.turn(true);
    CHECK(f.ring->timeouts.back() == loop::Ring::kForever);
}

TEST_CASE("stop from a task ends run without waiting") {
    Fixture f;
    struct Stopper {
        explicit Stopper(Loop& l) : loop(l), task(l, Task::to<&Stopper::run, Stopper>(), this) {}
        void run() { loop.stop(); }
        Loop& loop;
        Task task;
    } stopper{f.loop};
    stopper.task.post();
    f.loop.run();
    CHECK(f.ring->timeouts.back() == 0);
}
