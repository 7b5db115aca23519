#include "agent/keeper/keeper.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/keeper/children.h"
#include "agent/sys/log.h"
#include "agent/sys/socket.h"

namespace berth::keeper {
namespace {

using core::KeeperMessage;
using core::KeeperMessageType;
using sys::LogLevel;

constexpr int64_t kFlushRetryNs = 20'000'000;
constexpr size_t kFdsPerStore = 2;

int64_t clock_ns(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

sigset_t loop_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGCHLD, SIGHUP, SIGTERM, SIGINT}) sigaddset(&set, signal);
    return set;
}

std::string_view name_of(const KeeperMessage& message) {
    return {message.name, strnlen(message.name, sizeof message.name)};
}

}  // namespace

void block_signals() {
    sigset_t set = loop_signals();
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

Keeper::Keeper(KeeperSetup setup, FdStore store, const core::ClassKeys& keys)
    : setup_(std::move(setup)), store_(std::move(store)), keys_(keys) {}

core::Result<core::ShutdownMode> Keeper::run() {
    sigset_t set = loop_signals();
    signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) return core::errno_error(errno, "signalfd");
    reap(clock_ns(CLOCK_MONOTONIC));  // what ended before there was a signal to tell of it
    while (!stop_) {
        int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        start_what_is_due(now_ns);
        flush_agent(now_ns);
        Ready ready = wait_for_events(now_ns);
        now_ns = clock_ns(CLOCK_MONOTONIC);
        if (ready.signals) on_signals(now_ns);
        // Registrations first: a process that is reaped below must be known by then, and it may have come
        // after the wait. Exits before the agent's messages: a dead agent's last words are read when its end
        // is found.
        if (ready.registrations || ready.signals) drain_registrations();
        if (ready.signals) reap(now_ns);
        if (ready.agent) drain_agent(now_ns);
        enforce_deadlines(now_ns);
        give_freed_memory_back();
    }
    return *stop_;
}

// malloc would keep for ever what the most processes that there ever were have needed. At each halving: the
// cost is shared by all that went.
void Keeper::give_freed_memory_back() {
    size_t held = store_.size() + exits_.size();
    most_held_ = std::max(most_held_, held);
    if (most_held_ < limits::kKeeperTrimFrom || held > most_held_ / 2) return;
    most_held_ = held;
    ::malloc_trim(0);
}

// ---- Waiting

int64_t Keeper::next_deadline_ns() const {
    int64_t deadline_ns = flush_again_at_ns_;
    auto sooner = [&deadline_ns](int64_t at_ns) {
        if (at_ns < deadline_ns) deadline_ns = at_ns;
    };
    sooner(agent_.give_up_at_ns);
    sooner(spawner_.give_up_at_ns);
    bool old_spawner_is_going = spawner_.pid != 0 && spawner_.is_ended_on_purpose;
    if (agent_.pid == 0 && !old_spawner_is_going) sooner(agent_.start_at_ns);
    if (agent_.pid != 0 && spawner_.pid == 0) sooner(spawner_.start_at_ns);
    return deadline_ns;
}

Keeper::Ready Keeper::wait_for_events(int64_t now_ns) {
    pollfd fds[3] = {{signals_.get(), POLLIN, 0}, {-1, 0, 0}, {-1, 0, 0}};
    if (spawner_.socket.valid()) fds[1] = {spawner_.socket.get(), POLLIN, 0};
    if (channel_) {
        bool wants_to_write = flushed_ == FlushResult::kBlocked;
        fds[2] = {channel_->socket(), static_cast<short>(wants_to_write ? POLLIN | POLLOUT : POLLIN), 0};
    }
    int64_t deadline_ns = next_deadline_ns();
    timespec timeout{};
    if (deadline_ns != kNever && deadline_ns > now_ns) {
        timeout.tv_sec = (deadline_ns - now_ns) / 1'000'000'000;
        timeout.tv_nsec = (deadline_ns - now_ns) % 1'000'000'000;
    }
    Ready ready;
    if (::ppoll(fds, 3, deadline_ns == kNever ? nullptr : &timeout, nullptr) <= 0) return ready;
    ready = {fds[0].revents != 0, fds[1].revents != 0, fds[2].revents != 0};
    // A spawner that closed its socket would be readable for ever; its exit is on the way.
    if (spawner_.socket.valid() && (fds[1].revents & (POLLHUP | POLLERR)) != 0) {
        drain_registrations();
        spawner_.socket.reset();
        if (spawner_.pid != 0) ::kill(spawner_.pid, SIGKILL);
    }
    return ready;
}

void Keeper::on_signals(int64_t now_ns) {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
        auto signal = static_cast<int>(info.ssi_signo);
        if (signal == SIGHUP) {
            sys::log(LogLevel::kInfo, "agent.restart", "asked for by signal");
            end_agent(now_ns);
        } else if ((signal == SIGTERM || signal == SIGINT) && !setup_.is_init) {
            stop_ = core::ShutdownMode::kExitHelper;
        }
    }
}

// ---- Processes

void Keeper::drain_registrations() {
    while (spawner_.socket.valid()) {
        core::RegisterProcess registration;
        core::Result<sys::Received> received =
            sys::receive_with_fds(spawner_.socket, sys::writable_bytes_of(registration), MSG_DONTWAIT);
        if (!received.ok() || received->end) return;
        if (received->truncated || received->bytes != sizeof registration || received->fds.size() != 1) {
            sys::log(LogLevel::kError, "spawner.register", "malformed registration dropped");
            continue;
        }
        on_registration(registration, std::move(received->fds.front()));
    }
}

void Keeper::on_registration(const core::RegisterProcess& registration, sys::UniqueFd pidfd) {
    siginfo_t info{};
    // Its number may have been another process's before, so only its own pidfd says whether it was reaped.
    // WNOWAIT: a zombie is reaped in its turn.
    int err = ::waitid(P_PIDFD, static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG | WNOWAIT) == 0
                  ? 0
                  : errno;
    ProcessState state = err == ECHILD ? ProcessState::kReaped : ProcessState::kRunning;
    exits_.add(registration.process_key, registration.pid, std::move(pidfd), state);
}

void Keeper::reap(int64_t now_ns) {
    while (true) {
        int status = 0;
        pid_t pid = ::waitpid(-1, &status, WNOHANG | __WALL);
        if (pid < 0 && errno == EINTR) continue;
        if (pid <= 0) return;
        if (pid == agent_.pid) {
            on_agent_exit(status, now_ns);
        } else if (pid == spawner_.pid) {
            on_spawner_exit(status, now_ns);
        } else if (pid == rc_pid_) {
            rc_pid_ = 0;
            sys::log(LogLevel::kInfo, "rc.exit", "%s", describe_wait_status(status).c_str());
        } else {
            core::ProcessRecord exit;
            exit.pid = pid;
            exit.wait_status = status;
            exit.exited_realtime_ns = clock_ns(CLOCK_REALTIME);
            exits_.on_reaped(exit);
        }
    }
}

void Keeper::on_agent_exit(int wait_status, int64_t now_ns) {
    drain_agent(now_ns);
    channel_.reset();
    flushed_ = FlushResult::kDone;
    flush_again_at_ns_ = kNever;
    pid_t pid = agent_.pid;
    agent_.pid = 0;
    agent_.give_up_at_ns = kNever;
    if (agent_.is_ended_on_purpose) {
        agent_.policy.on_purpose();
        agent_.start_at_ns = now_ns;
        last_crash_ = std::string();
        sys::log(LogLevel::kInfo, "agent.exit", "pid %d ended on purpose", pid);
    } else {
        agent_.start_at_ns = agent_.policy.on_crash(now_ns);
        last_crash_ = describe_wait_status(wait_status);
        sys::log(LogLevel::kError, "agent.crash", "pid %d: %s; crash %u in a row, restart in %lld ms%s", pid,
                 last_crash_.c_str(), agent_.policy.crashes(),
                 static_cast<long long>((agent_.start_at_ns - now_ns) / 1'000'000),
                 agent_.policy.safe_mode() ? " in safe mode" : "");
    }
    end_spawner(now_ns);
    if (spawner_.pid == 0) {
        spawner_.policy.on_purpose();
        spawner_.start_at_ns = now_ns;
    }
}

void Keeper::on_spawner_exit(int wait_status, int64_t now_ns) {
    drain_registrations();
    spawner_.socket.reset();
    pid_t pid = spawner_.pid;
    spawner_.pid = 0;
    spawner_.give_up_at_ns = kNever;
    if (spawner_.is_ended_on_purpose) {
        spawner_.policy.on_purpose();
        spawner_.start_at_ns = now_ns;
        return;
    }
    spawner_.start_at_ns = spawner_.policy.on_crash(now_ns);
    // Status 0: the agent's end of its socket is gone, so the agent's own end is about to be found.
    LogLevel level =
        WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0 ? LogLevel::kDebug : LogLevel::kError;
    sys::log(level, "spawner.crash", "pid %d: %s; restart in %lld ms", pid,
             describe_wait_status(wait_status).c_str(),
             static_cast<long long>((spawner_.start_at_ns - now_ns) / 1'000'000));
}

// ---- The agent's messages

void Keeper::drain_agent(int64_t now_ns) {
    while (channel_) {
        KeeperMessage message;
        core::Result<sys::Received> received = sys::receive_with_fds(
            sys::FdRef(channel_->socket()), sys::writable_bytes_of(message), MSG_DONTWAIT);
        if (!received.ok() && received.error().err == EAGAIN) return;
        if (!received.ok() || received->end) {
            // It closed its socket: without it it is of no use. Its exit is found by the reaper.
            channel_.reset();
            if (agent_.pid != 0) ::kill(agent_.pid, SIGKILL);
            return;
        }
        if (received->truncated || received->bytes != sizeof message || received->fds.size() > kFdsPerStore) {
            sys::log(LogLevel::kError, "agent.message",
                     "malformed message dropped (%zu bytes, %zu descriptors%s)", received->bytes,
                     received->fds.size(), received->truncated ? ", truncated" : "");
            continue;
        }
        on_agent_message(message, std::move(received->fds), now_ns);
    }
}

void Keeper::store(std::string_view name, std::vector<sys::UniqueFd> fds) {
    bool numbered = name.ends_with('/') && fds.size() > 1;
    if (!numbered) fds.resize(1);
    for (size_t i = 0; i < fds.size(); ++i) {
        std::string own(name);
        if (numbered) own += static_cast<char>('0' + i);
        core::Status stored = store_.put(own, std::move(fds[i]));
        if (!stored.ok()) sys::log(LogLevel::kError, "agent.store", "%s", stored.error().message.c_str());
    }
}

void Keeper::on_agent_message(const KeeperMessage& message, std::vector<sys::UniqueFd> fds, int64_t now_ns) {
    switch (message.type) {
        case KeeperMessageType::kStoreFd: store(name_of(message), std::move(fds)); return;
        case KeeperMessageType::kDropFd:
            // The listener is held for ever: nobody can take the port.
            if (name_of(message).starts_with("listener/") || name_of(message).starts_with("memory/")) {
                sys::log(LogLevel::kError, "agent.drop", "%s is the keeper's",
                         core::quoted(name_of(message)).c_str());
                return;
            }
            store_.drop(name_of(message));
            return;
        case KeeperMessageType::kAcknowledgeExit:
            static_assert(limits::kHeldAcknowledgements * sizeof(uint64_t) <= sizeof message.name);
            if (message.value > limits::kHeldAcknowledgements) break;
            exits_.acknowledge(message.process.key);
            for (uint32_t i = 0; i < message.value; ++i) {
                uint64_t key = 0;
                std::memcpy(&key, message.name + i * sizeof key, sizeof key);
                exits_.acknowledge(key);
            }
            return;
        case KeeperMessageType::kForget: exits_.forget(message.process.key); return;
        case KeeperMessageType::kShutdown:
            if (message.value < 1 || message.value > 3) break;
            stop_ = static_cast<core::ShutdownMode>(message.value);
            return;
        case KeeperMessageType::kAgentReady:
            agent_.policy.on_ready(now_ns);
            last_crash_ = std::string();
            if (!has_started_rc_) start_rc();
            return;
        case KeeperMessageType::kWelcome:
        case KeeperMessageType::kStoredFd:
        case KeeperMessageType::kRegistered:
        case KeeperMessageType::kExited:
        case KeeperMessageType::kWelcomeEnd:
        case KeeperMessageType::kSpawner: break;
    }
    sys::log(LogLevel::kError, "agent.message", "type %u value %u makes no sense here",
             static_cast<unsigned>(message.type), message.value);
}

void Keeper::flush_agent(int64_t now_ns) {
    if (!channel_) return;
    flushed_ = channel_->flush(keys_);
    flush_again_at_ns_ = flushed_ == FlushResult::kRetry ? now_ns + kFlushRetryNs : kNever;
}

}  // namespace berth::keeper
