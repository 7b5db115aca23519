#include "agent/runtime/launch.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/core/container_plan.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/sys/log.h"
#include "agent/sys/memfd.h"
#include "agent/sys/socket.h"

namespace berth::runtime {
namespace {

using core::ChildMessage;
using core::ChildMessageType;
using core::FdRequest;
using core::FdSource;

core::Result<sys::UniqueFd> open_namespace(const std::string& path, uint64_t type, const std::string& label) {
    // O_NONBLOCK: a FIFO put in the namespace's place must not hold the agent.
    sys::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!fd.valid()) {
        core::Error error = core::errno_error(errno, label + ": open " + core::quoted(path));
        if (error.err == ENOENT) error.code = core::Code::kInvalidArgument;
        return error;
    }
    int found = ioctl(fd.get(), NS_GET_NSTYPE);
    if (found < 0 || (type != 0 && static_cast<uint64_t>(found) != type)) {
        return core::invalid(label + ": " + core::quoted(path) + " is not a namespace of that type");
    }
    return fd;
}

core::Result<sys::UniqueFd> open_null() {
    sys::UniqueFd fd(open("/dev/null", O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    struct stat found {};
    if (!fd.valid() || fstat(fd.get(), &found) != 0) return core::errno_error(errno, "open /dev/null");
    if (!S_ISCHR(found.st_mode) || found.st_rdev != makedev(1, 3)) {
        return core::make_error(core::Code::kFailedPrecondition, "/dev/null of the guest is not device 1:3");
    }
    return fd;
}

// The container's own cgroup as a mount that is nowhere yet: the child may attach it in its own mount
// namespace, which it could not do with a directory of ours.
core::Result<sys::UniqueFd> clone_cgroup_mount(int cgroup, const std::string& label) {
    constexpr unsigned kFlags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH;
    sys::UniqueFd tree(static_cast<int>(syscall(SYS_open_tree, cgroup, "", kFlags)));
    if (!tree.valid()) return core::errno_error(errno, label + ": open_tree of the container's cgroup");
    return tree;
}

int borrow(const FdRequest& request, const LaunchSources& sources, int child_sync) {
    switch (request.source) {
        case FdSource::kSync: return child_sync;
        case FdSource::kCgroup: return sources.cgroup;
        case FdSource::kStdin: return sources.stdio[0];
        case FdSource::kStdout: return sources.stdio[1];
        case FdSource::kStderr: return sources.stdio[2];
        case FdSource::kInitPidfd: return sources.init_pidfd;
        case FdSource::kContainerMounts: return sources.mounts;
        case FdSource::kPassed:
            return request.ns_type < sources.passed.size() ? sources.passed[request.ns_type].get() : -1;
        case FdSource::kNamespacePath:
        case FdSource::kNull:
        case FdSource::kCgroupNamespaceRoot:
        case FdSource::kUserNamespace: return -1;
    }
    return -1;
}

core::Result<sys::UniqueFd> open_one(const FdRequest& request, const LaunchSources& sources) {
    switch (request.source) {
        case FdSource::kNamespacePath: return open_namespace(request.path, request.ns_type, request.label);
        case FdSource::kNull: return open_null();
        case FdSource::kCgroupNamespaceRoot: return clone_cgroup_mount(sources.cgroup, request.label);
        case FdSource::kUserNamespace: return open_null();  // the spawner puts the namespace in its place
        case FdSource::kSync:
        case FdSource::kCgroup:
        case FdSource::kStdin:
        case FdSource::kStdout:
        case FdSource::kStderr:
        case FdSource::kInitPidfd:
        case FdSource::kContainerMounts:
        case FdSource::kPassed:
            return core::invalid(request.label + ": no such descriptor came with the request");
    }
    return core::make_error(core::Code::kInternal, "unknown descriptor source");
}

}  // namespace

core::Result<std::vector<int>> Launch::open_slots(const core::LaunchPlan& plan, const LaunchSources& sources,
                                                  std::vector<sys::UniqueFd>& opened, int child_sync) {
    std::vector<int> slots;
    slots.reserve(plan.fds.size());
    for (const FdRequest& request : plan.fds) {
        if (request.source == FdSource::kInitPidfd &&
            syscall(SYS_pidfd_send_signal, sources.init_pidfd, 0, nullptr, 0) != 0) {
            return core::make_error(core::Code::kFailedPrecondition, "the container's init is gone");
        }
        int fd = borrow(request, sources, child_sync);
        if (fd < 0) {
            BERTH_ASSIGN(sys::UniqueFd own, open_one(request, sources));
            fd = own.get();
            opened.push_back(std::move(own));
        }
        slots.push_back(fd);
    }
    return slots;
}

core::Status Launch::begin(uint64_t process_key, core::LaunchPlan plan, const LaunchSources& sources) {
    BERTH_CHECK(state_ == State::kIdle);
    BERTH_ASSIGN(sys::SocketPair sync, sys::make_seqpacket_pair());
    std::vector<sys::UniqueFd> opened;
    BERTH_ASSIGN(std::vector<int> slots, open_slots(plan, sources, opened, sync.second.get()));
    std::span<const core::PlanStep> steps = plan.steps();
    bool waits = std::any_of(steps.begin(), steps.end(),
                             [](const core::PlanStep& step) { return step.op == core::PlanOp::kReady; });
    // An init's is for the keeper's store; of any other nobody needs a file.
    bool is_inline =
        plan.header().kind != core::PlanKind::kContainer && spawner_.takes_inline(plan.blob.size());
    if (is_inline) {
        plan_ = std::move(plan.blob);
    } else {
        BERTH_ASSIGN(plan_fd_, sys::make_sealed_memfd("launch-plan", plan.blob));
    }
    gate_ = std::move(sync.first);
    waits_ = waits;
    state_ = State::kCloning;
    deadline_.arm_after_ms(limits::kLaunchDeadlineMs);
    auto on_reply = [self = shared_from_this()](core::Result<Spawned> reply) {
        self->on_reply(std::move(reply));
    };
    if (is_inline) {
        spawner_.spawn_inline(process_key, plan_, slots, std::move(on_reply));
    } else {
        spawner_.spawn(process_key, plan_fd_, slots, std::move(on_reply));
    }
    return core::ok();
}

void Launch::adopt_let_go(sys::UniqueFd gate) {
    was_let_go_ = true;
    adopt_ready(std::move(gate), sys::UniqueFd());
}

void Launch::adopt_ready(sys::UniqueFd gate, sys::UniqueFd plan) {
    gate_ = std::move(gate);
    plan_fd_ = std::move(plan);
    state_ = State::kReady;
    watch_gate();
}

core::Status Launch::go() {
    BERTH_CHECK(state_ == State::kReady || hooked_);
    if (state_ == State::kReady) state_ = State::kExecuting;
    if (hooked_ && state_ == State::kSettingUp) deadline_.arm_after_ms(limits::kLaunchDeadlineMs);
    hooked_ = false;
    const char byte = core::kGoByte;
    auto sent = sys::send_with_fds(gate_, std::as_bytes(std::span(&byte, 1)), {}, MSG_DONTWAIT);
    if (!sent.ok() && sent.error().err != EPIPE) return std::move(sent).error().within("start gate");
    return core::ok();  // EPIPE: it died meanwhile; end of file on the gate and its exit tell the rest
}

void Launch::retire() {
    observer_ = nullptr;
    deadline_.disarm();
    if (gate_op_.pending()) {
        loop_.cancel(gate_op_);
    } else {
        gate_.reset();
    }
}

void Launch::on_reply(core::Result<Spawned> reply) {
    if (observer_ == nullptr) {
        // Nobody wants it any more: the closed gate ends it before it runs anything.
        gate_.reset();
        if (!waits_ && reply.ok()) syscall(SYS_pidfd_send_signal, reply->pidfd.get(), SIGKILL, nullptr, 0);
        return;
    }
    if (!reply.ok()) {
        // A step of the stage that failed was reported by itself, with its place in the plan.
        ChildMessage message;
        auto told = sys::receive_with_fds(gate_, sys::writable_bytes_of(message), MSG_DONTWAIT);
        bool failed = told.ok() && told->bytes == sizeof message && message.type == ChildMessageType::kFailed;
        fail(failed ? step_error(message) : std::move(reply).error());
        return;
    }
    state_ = waits_ ? State::kSettingUp : State::kExecuting;
    watch_gate();
    observer_->on_spawned(reply->pid, std::move(reply->pidfd));
}

void Launch::watch_gate() {
    self_ = shared_from_this();
    loop_.poll(gate_op_, gate_.get(), POLLIN);
}

void Launch::on_gate(loop::Op&, int32_t) {
    std::shared_ptr<Launch> keep = self_;
    while (observer_ != nullptr && state_ != State::kDone) {
        ChildMessage message;
        auto received = sys::receive_with_fds(gate_, sys::writable_bytes_of(message), MSG_DONTWAIT);
        if (!received.ok()) {
            if (received.error().err == EAGAIN) break;
            fail(std::move(received).error().within("sync socket"));
            break;
        }
        if (received->end) {
            on_gate_end();
            break;
        }
        if (received->bytes != sizeof message) continue;
        handle(message, std::move(received->fds));
    }
    if (observer_ != nullptr && state_ != State::kDone) {
        // One shot at a time: after the last message there is nothing to cancel.
        if (!gate_op_.pending()) loop_.poll(gate_op_, gate_.get(), POLLIN);
        return;
    }
    if (gate_op_.pending()) {
        loop_.cancel(gate_op_);
        return;
    }
    gate_.reset();
    self_.reset();
}

void Launch::handle(const ChildMessage& message, std::vector<sys::UniqueFd> fds) {
    switch (message.type) {
        case ChildMessageType::kFailed: fail(step_error(message)); return;
        case ChildMessageType::kReady:
            if (state_ != State::kSettingUp) break;
            state_ = State::kReady;
            deadline_.disarm();
            observer_->on_ready();
            return;
        case ChildMessageType::kHook:
            hooked_ = true;
            deadline_.disarm();
            observer_->on_hook(message.value);
            return;
        case ChildMessageType::kPty:
            if (!fds.empty()) observer_->on_pty(std::move(fds.front()));
            return;
        case ChildMessageType::kSeccompNotify:
            if (!fds.empty()) observer_->on_seccomp_listener(std::move(fds.front()));
            return;
        case ChildMessageType::kMounts:
            if (!fds.empty()) observer_->on_mounts(std::move(fds.front()));
            return;
    }
}

void Launch::on_gate_end() {
    if ((state_ == State::kExecuting || was_let_go_) && !hooked_) {
        state_ = State::kDone;
        deadline_.disarm();
        observer_->on_executed();
        return;
    }
    fail(core::make_error(core::Code::kFailedPrecondition, "killed before it was started"));
}

void Launch::on_deadline() {
    // A mount of a share whose server does not answer, most likely: whoever observes kills the process.
    std::shared_ptr<Launch> keep = shared_from_this();
    fail(core::make_error(
        core::Code::kDeadlineExceeded,
        core::format("set-up: not done after %lld ms", static_cast<long long>(limits::kLaunchDeadlineMs))));
}

void Launch::fail(core::Error error) {
    if (state_ == State::kDone) return;
    state_ = State::kDone;
    deadline_.disarm();
    observer_->on_launch_failed(std::move(error));
}

core::Error Launch::step_error(const ChildMessage& message) const {
    core::LaunchPlan plan;
    plan.blob = plan_;
    if (plan_fd_.valid()) {
        if (auto size = sys::sealed_size(plan_fd_, limits::kLaunchPlanBytes); size.ok()) {
            plan.blob.resize(*size);
            if (pread(plan_fd_.get(), plan.blob.data(), *size, 0) != static_cast<ssize_t>(*size))
                plan.blob.clear();
        }
    }
    std::string_view text(message.text, strnlen(message.text, sizeof message.text));
    return core::step_error(plan, message.step_index, message.err, text);
}

}  // namespace berth::runtime
