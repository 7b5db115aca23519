#include "agent/loop/loop.h"

#include <liburing.h>

#include <algorithm>
#include <array>

#include "agent/core/uninitialized.h"
#include "agent/loop/ring.h"

namespace berth::loop {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;
constexpr size_t kBatch = 256;   // completions taken in one turn
constexpr uint64_t kNobody = 0;  // user_data of cancel requests: their completion interests nobody

io_uring_sqe* take_sqe(Ring& ring) {
    io_uring_sqe* sqe = ring.next_sqe();
    if (sqe == nullptr) {
        // Full: what is queued goes to the kernel now. Should it refuse for want of memory, a turn of the
        // completion queue frees some.
        ring.submit();
        sqe = ring.next_sqe();
        if (sqe == nullptr) {
            ring.enter(0);
            sqe = ring.next_sqe();
        }
    }
    BERTH_CHECK(sqe != nullptr);
    return sqe;
}

}  // namespace

core::Result<std::unique_ptr<Loop>> Loop::create(unsigned entries) {
    BERTH_ASSIGN(auto ring, create_kernel_ring(entries));
    return std::make_unique<Loop>(std::move(ring));
}

Loop::Loop(std::unique_ptr<Ring> ring) : ring_(std::move(ring)) {
    completions_.reserve(kBatch);
    now_ns_ = ring_->now_ns();
}

Loop::~Loop() {
    // Whoever outlives the loop must not reach back into it.
    for (Timer* timer : timers_) timer->heap_index_ = Timer::kIdle;
    for (Task* task : tasks_) {
        if (task != nullptr) task->posted_ = false;
    }
}

// ---- operations ----

io_uring_sqe* Loop::begin(Op& op) {
    BERTH_CHECK(!op.pending_);
    io_uring_sqe* sqe = take_sqe(*ring_);
    op.pending_ = true;
    op.queued_ = false;
    return sqe;
}

void Loop::recv(Op& op, int fd, std::span<std::byte> into) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_recv(sqe, fd, into.data(), into.size(), 0);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::send(Op& op, int fd, std::span<const std::byte> data) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_send(sqe, fd, data.data(), data.size(), MSG_NOSIGNAL);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::recvmsg(Op& op, int fd, msghdr* message, unsigned flags) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_recvmsg(sqe, fd, message, flags | MSG_CMSG_CLOEXEC);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::sendmsg(Op& op, int fd, const msghdr* message) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_sendmsg(sqe, fd, message, MSG_NOSIGNAL);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::openat2(Op& op, const char* path, open_how& how) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_openat2(sqe, AT_FDCWD, path, &how);
    if ((how.flags & O_PATH) == 0) sqe->flags |= IOSQE_ASYNC;
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::read(Op& op, int fd, std::span<std::byte> into, int64_t offset) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_read(sqe, fd, into.data(), static_cast<unsigned>(into.size()),
                       static_cast<uint64_t>(offset));
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::write(Op& op, int fd, std::span<const std::byte> data, int64_t offset) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_write(sqe, fd, data.data(), static_cast<unsigned>(data.size()),
                        static_cast<uint64_t>(offset));
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::poll(Op& op, int fd, uint32_t events) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_poll_add(sqe, fd, events);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::poll_multishot(Op& op, int fd, uint32_t events) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_poll_multishot(sqe, fd, events);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::accept_multishot(Op& op, int fd) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_multishot_accept(sqe, fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::connect(Op& op, int fd, const sockaddr* address, socklen_t length) {
    io_uring_sqe* sqe = begin(op);
    io_uring_prep_connect(sqe, fd, address, length);
    io_uring_sqe_set_data(sqe, &op);
}

void Loop::cancel(Op& op) {
    // A last completion that waits in the batch needs no cancel, and must get none: the kernel no longer
    // knows the operation, and the owner may start the next one with the same address before this request
    // is read.
    if (!op.pending_ || op.queued_) return;
    io_uring_sqe* sqe = take_sqe(*ring_);
    io_uring_prep_cancel(sqe, &op, 0);
    io_uring_sqe_set_data64(sqe, kNobody);
}

// ---- the loop ----

int64_t Loop::now_ns() const {
    return now_ns_;
}

void Loop::run() {
    running_ = true;
    while (running_) turn(true);
}

void Loop::stop() {
    running_ = false;
}

// The wait comes first, so that a turn ends with everything done that it woke up for.
void Loop::turn(bool wait) {
    enter(wait);
    now_ns_ = ring_->now_ns();
    deliver();
    run_timers();
    run_tasks();
}

void Loop::run_tasks() {
    // Those that are posted meanwhile belong to the next turn.
    size_t count = tasks_.size();
    for (size_t i = 0; i < count; ++i) {
        Task* task = std::exchange(tasks_[i], nullptr);
        if (task == nullptr) continue;
        task->posted_ = false;
        task->handler_(task->owner_);
    }
    tasks_.erase(tasks_.begin(), tasks_.begin() + static_cast<std::ptrdiff_t>(count));
}

void Loop::run_timers() {
    // At most as many as there are: a timer that arms itself for now again waits for the next turn.
    for (size_t left = timers_.size(); left > 0 && !timers_.empty(); --left) {
        Timer* first = timers_.front();
        if (first->deadline_ns_ > now_ns_) return;
        first->disarm();
        first->handler_(first->owner_);
    }
}

void Loop::enter(bool wait) {
    if (!wait || !tasks_.empty()) return ring_->enter(0);
    if (timers_.empty()) return ring_->enter(Ring::kForever);
    ring_->enter(std::max<int64_t>(timers_.front()->deadline_ns_ - ring_->now_ns(), 0));
}

void Loop::deliver() {
    completions_.clear();
    BERTH_UNINITIALIZED std::array<RingCompletion, kBatch> batch;
    size_t count = ring_->reap(batch);
    for (size_t i = 0; i < count; ++i) {
        if (batch[i].user_data == kNobody) continue;
        Op* op = reinterpret_cast<Op*>(batch[i].user_data);
        BERTH_CHECK(op->pending_ && !op->queued_);
        if (!batch[i].more) op->queued_ = true;
        completions_.push_back(Completion{op, batch[i].result, batch[i].more});
    }
    // By index, and nothing of the op after its handler: the handler may have destroyed it.
    for (size_t i = 0; i < completions_.size(); ++i) {
        Completion completion = completions_[i];
        if (!completion.more) {
            completion.op->pending_ = false;
            completion.op->queued_ = false;
        }
        completion.op->handler_(completion.op->owner_, *completion.op, completion.result);
    }
    completions_.clear();
}

// ---- timers: a binary heap that knows where each of its timers is ----

void Loop::place(Timer* timer, size_t index) {
    timers_[index] = timer;
    timer->heap_index_ = index;
}

void Loop::sift(size_t index) {
    Timer* timer = timers_[index];
    while (index > 0 && timers_[(index - 1) / 2]->deadline_ns_ > timer->deadline_ns_) {
        place(timers_[(index - 1) / 2], index);
        index = (index - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * index + 1;
        if (child >= timers_.size()) break;
        if (child + 1 < timers_.size() && timers_[child + 1]->deadline_ns_ < timers_[child]->deadline_ns_) {
            ++child;
        }
        if (timers_[child]->deadline_ns_ >= timer->deadline_ns_) break;
        place(timers_[child], index);
        index = child;
    }
    place(timer, index);
}

void Timer::arm_after_ms(int64_t milliseconds) {
    arm_at_ns(loop_.now_ns() + std::max<int64_t>(milliseconds, 0) * kNanosPerMilli);
}

void Timer::arm_at_ns(int64_t monotonic_ns) {
    deadline_ns_ = monotonic_ns;
    if (!armed()) {
        loop_.timers_.push_back(this);
        heap_index_ = loop_.timers_.size() - 1;
    }
    loop_.sift(heap_index_);
}

void Timer::disarm() {
    if (!armed()) return;
    size_t index = std::exchange(heap_index_, kIdle);
    Timer* last = loop_.timers_.back();
    loop_.timers_.pop_back();
    if (last == this) return;
    loop_.place(last, index);
    loop_.sift(index);
}

// ---- tasks ----

void Task::post() {
    if (posted_) return;
    posted_ = true;
    loop_.tasks_.push_back(this);
}

Task::~Task() {
    if (!posted_) return;
    std::replace(loop_.tasks_.begin(), loop_.tasks_.end(), this, static_cast<Task*>(nullptr));
}

}  // namespace berth::loop
