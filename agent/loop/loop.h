// The agent's one event loop: a single io_uring (SINGLE_ISSUER | DEFER_TASKRUN), one thread, no locks.
//
// Operations, timers and tasks are owned by the caller, embedded in its own objects, and are neither copied
// nor moved. The loop first collects completions, then calls handlers: a handler never runs inside the call
// that started its operation, and may start new operations, destroy its own object (when nothing of it is
// pending) or cancel others.
#pragma once

#include <linux/openat2.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "agent/core/result.h"

struct io_uring;
struct io_uring_sqe;

namespace berth::loop {

class Loop;

// One operation in flight at a time (multishot ones complete many times: `more()` says whether further
// completions come).
class Op {
 public:
    // `result` is what the kernel says: >= 0, or -errno. After cancel(): -ECANCELED.
    using Handler = void (*)(void* owner, Op& op, int32_t result);

    Op(Handler handler, void* owner) : handler_(handler), owner_(owner) {}
    Op(const Op&) = delete;
    Op& operator=(const Op&) = delete;
    ~Op() { BERTH_CHECK(!pending_); }

    // A handler from a member function: Op recv_{Op::to<&Connection::on_recv>(), this};
    template <auto Method>
    static Handler to() {
        return [](void* owner, Op& op, int32_t result) { call<Method>(owner, op, result, Method); };
    }

    bool pending() const { return pending_; }
    // Inside the handler of a multishot operation: true when it stays armed.
    bool more() const { return pending_; }

 private:
    friend class Loop;
    template <auto Method, typename Class>
    static void call(void* owner, Op& op, int32_t result, void (Class::*)(Op&, int32_t)) {
        (static_cast<Class*>(owner)->*Method)(op, result);
    }
    Handler handler_;
    void* owner_;
    bool pending_ = false;
    bool queued_ = false;  // its last completion waits in the loop's batch
};

// Fires once at a time on CLOCK_MONOTONIC (nanoseconds). Destroying an armed timer disarms it.
class Timer {
 public:
    using Handler = void (*)(void* owner);
    Timer(Loop& loop, Handler handler, void* owner) : loop_(loop), handler_(handler), owner_(owner) {}
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    ~Timer() { disarm(); }
    template <auto Method, typename Class>
    static Handler to() {
        return [](void* owner) { (static_cast<Class*>(owner)->*Method)(); };
    }
    void arm_after_ms(int64_t milliseconds);
    void arm_at_ns(int64_t monotonic_ns);
    void disarm();
    bool armed() const { return heap_index_ != kIdle; }

 private:
    friend class Loop;
    static constexpr size_t kIdle = SIZE_MAX;
    Loop& loop_;
    Handler handler_;
    void* owner_;
    int64_t deadline_ns_ = 0;
    size_t heap_index_ = kIdle;
};

// Work for later: the end of this turn when posted by an operation's handler, the next turn when posted by a
// timer's or task's ("not now, inside this handler"). Posting a posted task does nothing.
// Destroying a posted task takes it back.
class Task {
 public:
    using Handler = void (*)(void* owner);
    Task(Loop& loop, Handler handler, void* owner) : loop_(loop), handler_(handler), owner_(owner) {}
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    ~Task();
    template <auto Method, typename Class>
    static Handler to() {
        return [](void* owner) { (static_cast<Class*>(owner)->*Method)(); };
    }
    void post();

 private:
    friend class Loop;
    Loop& loop_;
    Handler handler_;
    void* owner_;
    bool posted_ = false;
};

// What the loop needs of a ring. The real one is liburing; tests use a fake that they complete by hand.
class Ring;

class Loop {
 public:
    static core::Result<std::unique_ptr<Loop>> create(unsigned entries);
    explicit Loop(std::unique_ptr<Ring> ring);  // for tests
    ~Loop();
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    // Starting an operation that is pending is a bug. Buffers must stay valid until the completion.
    void recv(Op& op, int fd, std::span<std::byte> into);
    void send(Op& op, int fd, std::span<const std::byte> data);     // MSG_NOSIGNAL; may be short
    void recvmsg(Op& op, int fd, msghdr* message, unsigned flags);  // MSG_CMSG_CLOEXEC is added
    void sendmsg(Op& op, int fd, const msghdr* message);
    void read(Op& op, int fd, std::span<std::byte> into, int64_t offset);
    void write(Op& op, int fd, std::span<const std::byte> data,
               int64_t offset);                  // cgroup writes that may reclaim
    void poll(Op& op, int fd, uint32_t events);  // once
    void poll_multishot(Op& op, int fd, uint32_t events);
    void accept_multishot(Op& op, int fd);  // SOCK_CLOEXEC | SOCK_NONBLOCK
    void connect(Op& op, int fd, const sockaddr* address, socklen_t length);
    // The completion is a descriptor, the caller's from then on. For what may lie on a file system that does
    // not answer: only with O_PATH is it tried at once, since the kernel knows whether a look-up would wait,
    // and not whether an open would. `path` and `how` must stay valid until then.
    void openat2(Op& op, const char* path, open_how& how);

    // The op's handler runs later with -ECANCELED (or with its result, when it was already done). Idle ops:
    // nothing. A multishot operation may still deliver what it had completed before.
    void cancel(Op& op);

    int64_t now_ns() const;  // CLOCK_MONOTONIC, taken once a turn

    void run();   // until stop()
    void stop();  // ends run() with this turn
    // One turn: waits (unless a task is posted or a timer is due), then completions, timers, tasks.
    void turn(bool wait);

 private:
    friend class Timer;
    friend class Task;
    struct Completion {
        Op* op;
        int32_t result;
        bool more;
    };
    io_uring_sqe* begin(Op& op);
    void run_tasks();
    void run_timers();
    void enter(bool wait);
    void deliver();
    void place(Timer* timer, size_t index);
    void sift(size_t index);

    std::unique_ptr<Ring> ring_;
    std::vector<Timer*> timers_;  // a binary heap by deadline
    std::vector<Task*> tasks_;
    std::vector<Completion> completions_;
    int64_t now_ns_ = 0;
    bool running_ = false;
};

}  // namespace berth::loop
