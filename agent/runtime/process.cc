#include "agent/runtime/process.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>

#include "agent/core/text.h"
#include "agent/runtime/container.h"
#include "agent/runtime/create_job.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/seccomp_listener.h"
#include "agent/runtime/stdio.h"
#include "agent/sys/log.h"
#include "agent/sys/socket.h"

namespace berth::runtime {

Process::~Process() {
    end_launch();
}

void Process::end_launch() {
    if (launch != nullptr) launch->retire();
    launch.reset();
}

core::Status Process::signal(int number) const {
    if (exit || status == TaskStatus::kStopped) {
        return core::make_error(core::Code::kNotFound, "process already finished");
    }
    if (!pidfd.valid()) return core::make_error(core::Code::kFailedPrecondition, "process not started yet");
    if (syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0) == 0) return core::ok();
    if (errno == ESRCH) return core::make_error(core::Code::kNotFound, "process already finished");
    return core::errno_error(errno, core::format("pidfd_send_signal %d", number));
}

uint64_t Process::add_waiter(core::Callback<void(const ExitRecord&)> waiter) {
    if (exit) {
        waiter(*exit);
        return 0;
    }
    waiters_.emplace_back(++last_waiter_, std::move(waiter));
    return last_waiter_;
}

void Process::remove_waiter(uint64_t id) {
    std::erase_if(waiters_, [id](const auto& entry) { return entry.first == id; });
}

void Process::wake_waiters() {
    BERTH_CHECK(exit.has_value());
    auto waiters = std::move(waiters_);
    waiters_.clear();
    for (auto& [id, waiter] : waiters) waiter(*exit);
}

void Process::on_spawned(int new_pid, sys::UniqueFd new_pidfd) {
    pid = new_pid;
    pidfd = std::move(new_pidfd);
}

void Process::on_ready() {
    if (is_init()) {
        BERTH_CHECK(container_.create_job != nullptr);
        container_.create_job->on_ready();
        return;
    }
    // An exec has no gate of its own: Start was called already. It waits for its connections to the host
    // only.
    stdio->when_connected([this](core::Status connected) {
        if (launch == nullptr || launch->state() != Launch::State::kReady) return;
        if (connected.ok()) connected = launch->go();
        if (!connected.ok()) on_launch_failed(std::move(connected).error());
    });
}

void Process::on_hook(uint32_t point) {
    if (container_.create_job != nullptr && is_init()) return container_.create_job->on_hook();
    if (point == core::kHookPointStart && is_init()) return container_.runtime().run_start_hooks(container_);
    if (auto going = launch->go(); !going.ok()) on_launch_failed(std::move(going).error());
}

void Process::on_seccomp_listener(sys::UniqueFd listener) {
    bool created = container_.create_job == nullptr && is_init();
    auto sent = send_seccomp_listener(container_, is_init() ? (created ? "created" : "creating") : "running",
                                      pid, listener);
    if (!sent.ok()) on_launch_failed(std::move(sent).error());
}

// As runc's: one message whose text is nothing but there, since a descriptor does not travel alone.
void Process::on_pty(sys::UniqueFd master) {
    BERTH_CHECK(stdio != nullptr);
    if (paths_.console) {
        constexpr std::string_view kText = "/dev/ptmx";
        const int fd = master.get();
        auto sent = sys::send_with_fds(passed.console, std::as_bytes(std::span(kText)),
                                       std::span<const int>(&fd, 1), MSG_DONTWAIT);
        passed.console.reset();
        if (!sent.ok()) on_launch_failed(std::move(sent).error().within("console_socket"));
        return;
    }
    auto attached = stdio->set_terminal(std::move(master));
    if (!attached.ok()) on_launch_failed(std::move(attached).error().within("terminal"));
}

void Process::on_mounts(sys::UniqueFd mount_namespace) {
    container_.mounts = std::move(mount_namespace);
    container_.runtime().keeper().store(container_.mounts_name(), container_.mounts);
}

void Process::on_executed() {
    container_.runtime().on_process_executed(container_, *this);
}

void Process::on_launch_failed(core::Error error) {
    if (container_.create_job != nullptr && is_init()) {
        container_.create_job->fail(std::move(error));
        return;
    }
    container_.runtime().on_process_failed(container_, *this, std::move(error));
}

}  // namespace berth::runtime
