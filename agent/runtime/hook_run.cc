#include "agent/runtime/hook_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "agent/core/container_plan.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/runtime/container.h"
#include "agent/runtime/guest_facts.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/seccomp_listener.h"
#include "agent/sys/log.h"
#include "agent/sys/memfd.h"

namespace berth::runtime {
namespace {

// The pid of a process as its innermost pid namespace numbers it.
int64_t pid_inside(int pid) {
    std::string status = read_whole_file(core::format("/proc/%d/status", pid));
    for (std::string_view line : core::split_lines(status)) {
        if (!line.starts_with("NSpid:")) continue;
        size_t last = line.find_last_of("\t ");
        return core::parse_number<int64_t>(line.substr(last + 1)).value_or(0);
    }
    return 0;
}

}  // namespace

std::shared_ptr<HookRun> HookRun::begin(Runtime& runtime, std::shared_ptr<Container> container,
                                        std::vector<core::HookKind> kinds, std::string_view status,
                                        OnFailure on_failure, Completion done) {
    auto run = std::shared_ptr<HookRun>(
        new HookRun(runtime, std::move(container), status, on_failure, std::move(done)));
    for (core::HookKind kind : kinds) {
        for (size_t i = 0; i < run->container_->spec.hooks.of(kind).size(); ++i)
            run->places_.push_back({kind, i});
    }
    run->self_ = run;
    run->first_.post();
    return run;
}

HookRun::HookRun(Runtime& runtime, std::shared_ptr<Container> container, std::string_view status,
                 OnFailure on_failure, Completion done)
    : runtime_(runtime),
      container_(std::move(container)),
      status_(status),
      on_failure_(on_failure),
      done_(std::move(done)),
      timeout_(runtime.loop(), loop::Timer::to<&HookRun::on_timeout, HookRun>(), this),
      first_(runtime.loop(), loop::Task::to<&HookRun::next, HookRun>(), this) {}

HookRun::~HookRun() = default;

const core::HookSpec& HookRun::hook() const {
    return container_->spec.hooks.of(places_[at_].kind)[places_[at_].index];
}

void HookRun::next() {
    auto keep = shared_from_this();
    while (at_ < places_.size()) {
        core::Status begun = launch();
        if (begun.ok()) return;
        release();
        core::Error error = failure(std::move(begun).error());
        if (on_failure_ == OnFailure::kStop) return end_one(std::move(error));
        sys::log(sys::LogLevel::kWarn, "hook", "%s: %s", container_->id.text().c_str(),
                 error.message.c_str());
        ++at_;
    }
    self_.reset();
    if (done_) done_.take()(core::ok());
}

core::Result<std::string> HookRun::state_json() const {
    core::HookKind kind = places_[at_].kind;
    bool inside = kind == core::HookKind::kCreateContainer || kind == core::HookKind::kStartContainer;
    const Process& init = container_->init();
    core::HookState state;
    state.oci_version = container_->spec.oci_version;
    state.id = container_->told_id();
    state.status = status_;
    if (kind != core::HookKind::kPoststop) state.pid = inside ? pid_inside(init.pid) : init.pid;
    state.bundle = container_->bundle;
    std::vector<std::pair<std::string, std::string>> annotations(container_->annotations.begin(),
                                                                 container_->annotations.end());
    state.annotations = &annotations;
    return core::hook_state_json(state);
}

core::Status HookRun::launch() {
    const Place& place = places_[at_];
    core::HookLaunch request;
    request.spec = &container_->spec;
    request.facts = &runtime_.guest().facts;
    request.id = container_->id.text();
    request.kind = place.kind;
    request.index = place.index;
    request.working_dir = container_->bundle.starts_with('/') ? container_->bundle : "/";
    // As runc: "./lib" is the container's.
    if (place.kind == core::HookKind::kCreateContainer) request.working_dir = container_->root_place;
    request.seccomp = runtime_.seccomp_programs(*container_);
    BERTH_ASSIGN(core::LaunchPlan plan, core::plan_hook(request));
    BERTH_ASSIGN(std::string json, state_json());
    BERTH_ASSIGN(sys::UniqueFd input, sys::make_sealed_memfd("state", std::as_bytes(std::span(json))));
    if (lseek(input.get(), 0, SEEK_SET) != 0) return core::errno_error(errno, "lseek state");
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return core::errno_error(errno, "pipe");
    output_fd_.reset(ends[0]);
    sys::UniqueFd output(ends[1]);
    // The flag would be the hook's too.
    if (fcntl(output.get(), F_SETFL, 0) != 0) return core::errno_error(errno, "pipe");

    LaunchSources sources;
    const Container& container = *container_;
    sources.cgroup =
        container.cgroup.valid() ? container.cgroup.leaf().get() : runtime_.sandbox_cgroup().get();
    sources.stdio[0] = input.get();
    sources.stdio[1] = output.get();
    sources.stdio[2] = output.get();
    sources.init_pidfd = container.init().pidfd.get();
    key_ = runtime_.new_process_key();
    runtime_.hook_runs_[key_] = shared_from_this();
    launch_ = Launch::create(runtime_.loop(), runtime_.spawner(), *this);
    sources.mounts = container.mounts.get();
    return launch_->begin(key_, std::move(plan), sources);
}

void HookRun::on_spawned(int pid, sys::UniqueFd pidfd) {
    hook_pid_ = pid;
    pidfd_ = std::move(pidfd);
}

void HookRun::on_ready() {
    if (hook().timeout_s > 0) timeout_.arm_after_ms(int64_t{hook().timeout_s} * 1000);
    runtime_.loop().poll(output_op_, output_fd_.get(), POLLIN);
    if (auto going = launch_->go(); !going.ok()) on_launch_failed(std::move(going).error());
}

void HookRun::on_seccomp_listener(sys::UniqueFd listener) {
    auto sent = send_seccomp_listener(*container_, status_, hook_pid_, listener);
    if (!sent.ok()) on_launch_failed(std::move(sent).error());
}

void HookRun::on_executed() {
    executed_ = true;
    settle();
}

void HookRun::on_launch_failed(core::Error error) {
    auto keep = shared_from_this();
    // It ends by itself when its gate closes, unless a step holds it.
    if (pidfd_.valid()) (void)syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
    end_one(failure(std::move(error)));
}

void HookRun::on_exit(const core::ProcessRecord& record) {
    auto keep = shared_from_this();
    exit_ = record;
    settle();
}

void HookRun::on_timeout() {
    timed_out_ = true;
    (void)syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

void HookRun::on_output(loop::Op&, int32_t) {
    auto keep = shared_from_this();
    if (cancelled_) {
        output_fd_.reset();
        self_.reset();
        return;
    }
    if (result_) {
        core::Status status = std::move(*result_);
        result_.reset();
        return end_one(std::move(status));
    }
    read_output();
    if (output_fd_.valid()) runtime_.loop().poll(output_op_, output_fd_.get(), POLLIN);
}

// What there is at the moment; at its end the pipe is closed.
void HookRun::read_output() {
    char text[4096];
    constexpr int kReads = 16;  // more of it another time
    for (int i = 0; i < kReads && output_fd_.valid(); ++i) {
        ssize_t count = read(output_fd_.get(), text, sizeof text);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return;
        if (count <= 0) return output_fd_.reset();
        output_.append(text, static_cast<size_t>(count));
        if (output_.size() > limits::kHookOutputBytes)
            output_.erase(0, output_.size() - limits::kHookOutputBytes);
    }
}

// Both the launch and the keeper have told what became of it.
void HookRun::settle() {
    if (!executed_ || !exit_) return;
    read_output();
    end_one(verdict());
}

core::Status HookRun::verdict() const {
    int status = exit_->wait_status;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !timed_out_) return core::ok();
    std::string how = core::format("exit status %d", WEXITSTATUS(status));
    if (WIFSIGNALED(status)) how = core::format("killed by signal %d", WTERMSIG(status));
    if (timed_out_) how = core::format("timeout: not done after %u s", hook().timeout_s);
    std::string_view said = core::trim(output_);
    if (!said.empty()) how += ": " + core::quoted(said);
    return failure(core::make_error(core::Code::kFailedPrecondition, how));
}

core::Error HookRun::failure(core::Error error) const {
    const Place& place = places_[at_];
    const char* kind = core::hook_kind_name(place.kind).data();
    error.message = core::format("hooks.%s[%zu]: error running %s hook #%zu: %s: ", kind, place.index, kind,
                                 place.index, core::quoted(hook().path).c_str()) +
                    error.message;
    return error;
}

// Lets go of the hook that ran, all but a pending poll.
void HookRun::release() {
    timeout_.disarm();
    if (launch_ != nullptr) launch_->retire();
    launch_.reset();
    runtime_.hook_runs_.erase(key_);
    key_ = 0;
    pidfd_.reset();
    exit_.reset();
    executed_ = false;
    timed_out_ = false;
}

void HookRun::end_one(core::Status status) {
    auto keep = shared_from_this();
    release();
    if (output_op_.pending()) {
        result_ = std::move(status);
        return runtime_.loop().cancel(output_op_);  // on_output goes on
    }
    output_fd_.reset();
    output_.clear();
    if (!status.ok() && on_failure_ == OnFailure::kStop) {
        self_.reset();
        if (done_) done_.take()(std::move(status));
        return;
    }
    if (!status.ok()) {
        sys::log(sys::LogLevel::kWarn, "hook", "%s: %s", container_->id.text().c_str(),
                 status.error().message.c_str());
    }
    ++at_;
    next();
}

void HookRun::cancel() {
    auto keep = shared_from_this();
    cancelled_ = true;
    done_ = Completion();
    if (pidfd_.valid()) (void)syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
    release();
    if (output_op_.pending()) return runtime_.loop().cancel(output_op_);
    self_.reset();
}

}  // namespace berth::runtime
