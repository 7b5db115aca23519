#include "agent/loop/ring.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "agent/core/limits.h"

namespace berth::loop {
namespace {

// What Loop asks for (loop.cc).
constexpr uint8_t kOperations[] = {IORING_OP_RECV,         IORING_OP_SEND,   IORING_OP_RECVMSG,
                                   IORING_OP_SENDMSG,      IORING_OP_READ,   IORING_OP_WRITE,
                                   IORING_OP_POLL_ADD,     IORING_OP_ACCEPT, IORING_OP_CONNECT,
                                   IORING_OP_ASYNC_CANCEL, IORING_OP_OPENAT2};

constexpr int64_t kNanosPerSecond = 1'000'000'000;

class KernelRing final : public Ring {
 public:
    KernelRing() = default;
    KernelRing(const KernelRing&) = delete;
    KernelRing& operator=(const KernelRing&) = delete;
    ~KernelRing() override {
        if (open_) io_uring_queue_exit(&ring_);
    }

    // 0 or -errno.
    int open(unsigned entries, unsigned flags) {
        io_uring_params params{};
        params.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_R_DISABLED;
        params.cq_entries = entries * 4;
        int result = io_uring_queue_init_params(entries, &ring_, &params);
        open_ = result == 0;
        return result;
    }

    // Features that the loop stands on, all older than 6.1.
    bool usable() const {
        constexpr unsigned kNeeded = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG | IORING_FEAT_FAST_POLL;
        return (ring_.features & kNeeded) == kNeeded;
    }

    // 0 or -errno. A ring's operations pass no seccomp filter: this one does the loop's own kinds and no
    // others, for good, and registers nothing.
    int finish_setup() {
        // The kernel makes the ring close-on-exec; its memory must not be in a child either.
        io_uring_ring_dontfork(&ring_);
        // Saves a descriptor look-up on every enter. Works without.
        io_uring_register_ring_fd(&ring_);
        // What waits for a file system waits in a thread of the kernel's. By default there are four a CPU,
        // and a few opens on a share that has hung would hold up every write to a cgroup. {regular files,
        // others}; 0 keeps what is.
        unsigned workers[2] = {limits::kRingWorkers, 0};
        if (syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_IOWQ_MAX_WORKERS, workers, 2) < 0)
            return -errno;
        std::array<io_uring_restriction, std::size(kOperations) + 1> allowed{};
        for (size_t i = 0; i < std::size(kOperations); ++i) {
            allowed[i].opcode = IORING_RESTRICTION_SQE_OP;
            allowed[i].sqe_op = kOperations[i];
        }
        allowed.back().opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
        allowed.back().sqe_flags = IOSQE_ASYNC;
        // (Debian's shared liburing lacks the functions for both.)
        if (syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_RESTRICTIONS, allowed.data(),
                    allowed.size()) < 0 ||
            syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) < 0) {
            return -errno;
        }
        return 0;
    }

    io_uring_sqe* next_sqe() override { return io_uring_get_sqe(&ring_); }

    void submit() override { io_uring_submit(&ring_); }

    void enter(int64_t timeout_ns) override {
        // Errors (EINTR, ETIME, EBUSY, EAGAIN) all mean: look at what is there, and come back.
        if (timeout_ns == 0) {
            io_uring_submit_and_get_events(&ring_);
        } else if (timeout_ns < 0) {
            io_uring_submit_and_wait(&ring_, 1);
        } else {
            __kernel_timespec limit{};
            limit.tv_sec = timeout_ns / kNanosPerSecond;
            limit.tv_nsec = timeout_ns % kNanosPerSecond;
            io_uring_cqe* first = nullptr;
            io_uring_submit_and_wait_timeout(&ring_, &first, 1, &limit, nullptr);
        }
    }

    size_t reap(std::span<RingCompletion> into) override {
        std::array<io_uring_cqe*, 64> batch;
        size_t done = 0;
        while (done < into.size()) {
            auto room = static_cast<unsigned>(std::min(batch.size(), into.size() - done));
            unsigned count = io_uring_peek_batch_cqe(&ring_, batch.data(), room);
            if (count == 0) break;
            for (unsigned i = 0; i < count; ++i) {
                into[done].user_data = batch[i]->user_data;
                into[done].result = batch[i]->res;
                into[done].more = (batch[i]->flags & IORING_CQE_F_MORE) != 0;
                ++done;
            }
            io_uring_cq_advance(&ring_, count);
        }
        return done;
    }

    int64_t now_ns() override {
        timespec now{};
        clock_gettime(CLOCK_MONOTONIC, &now);
        return int64_t{now.tv_sec} * kNanosPerSecond + now.tv_nsec;
    }

 private:
    io_uring ring_{};
    bool open_ = false;
};

}  // namespace

core::Result<std::unique_ptr<Ring>> create_kernel_ring(unsigned entries) {
    constexpr unsigned kFlagSets[] = {
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
        0,
    };
    int error = -EINVAL;
    for (unsigned flags : kFlagSets) {
        auto ring = std::make_unique<KernelRing>();
        error = ring->open(entries, flags);
        if (error == -EINVAL) continue;
        if (error != 0) break;
        if (!ring->usable()) {
            return core::make_error(core::Code::kFailedPrecondition,
                                    "io_uring: this kernel's lacks NODROP, EXT_ARG or FAST_POLL");
        }
        error = ring->finish_setup();
        if (error < 0) return core::errno_error(-error, "io_uring restrictions");
        return std::unique_ptr<Ring>(std::move(ring));
    }
    return core::errno_error(-error, "io_uring_setup");
}

}  // namespace berth::loop
