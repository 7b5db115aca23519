#include "agent/berthctl/attach.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "agent/berthctl/command.h"
#include "agent/client/io.h"
#include "agent/core/text.h"

namespace berth::ctl {

namespace {

// How long output may be silent after the exit before its end is no longer waited for.
constexpr int64_t kSilenceNs = 1'000'000'000;
constexpr size_t kInputBytes = 64 * 1024;
constexpr int kEventsATurn = 64;

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT};

// Not write_all(): a reader of our output that is gone should end us as it ends any filter, by SIGPIPE.
core::Status write_out(int fd, std::span<const std::byte> data) {
    while (!data.empty()) {
        ssize_t count = ::write(fd, data.data(), data.size());
        if (count >= 0) {
            data = data.subspan(static_cast<size_t>(count));
        } else if (errno == EAGAIN) {
            BERTH_TRY(client::wait_ready(sys::FdRef(fd), POLLOUT, client::kNoDeadline));
        } else if (errno != EINTR) {
            return core::errno_error(errno, fd == STDERR_FILENO ? "stderr" : "stdout");
        }
    }
    return core::ok();
}

// The stream is over, or never was one: nothing to attach to, and no error.
bool is_absent(const core::Error& error) {
    return error.code == core::Code::kNotFound || error.code == core::Code::kFailedPrecondition;
}

}  // namespace

core::Result<bool> Attachment::open_output(Output& output) {
    std::optional<uint64_t> resume;
    if (output.stream.received() > 0) resume = output.stream.received();
    core::Result<sys::UniqueFd> fd =
        session_.open_stream(target_.container_id, target_.exec_id, output.name, resume);
    if (!fd.ok()) {
        if (is_absent(fd.error())) return false;
        return std::move(fd).error();
    }
    output.stream.attach(std::move(fd).value());
    output.done = false;
    return true;
}

core::Result<bool> Attachment::open_input() {
    core::Result<sys::UniqueFd> fd =
        session_.open_stream(target_.container_id, target_.exec_id, v1::STREAM_STDIN, std::nullopt);
    if (!fd.ok()) {
        if (is_absent(fd.error())) return false;
        return std::move(fd).error();
    }
    in_.attach(std::move(fd).value());
    in_open_ = true;
    return true;
}

core::Status Attachment::open() {
    out_.to = STDOUT_FILENO;
    out_.name = v1::STREAM_STDOUT;
    if (target_.with_streams) BERTH_TRY(open_output(out_));
    if (target_.with_streams && !target_.terminal) {
        err_.to = STDERR_FILENO;
        err_.name = v1::STREAM_STDERR;
        BERTH_TRY(open_output(err_));
    }
    if (target_.with_streams && target_.with_stdin) {
        BERTH_ASSIGN(reads_stdin_, open_input());
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    for (int signal : kForwarded) sigaddset(&set, signal);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) return core::errno_error(errno, "signalfd");
    if (target_.terminal && target_.with_streams) {
        BERTH_TRY(send_size());
        if (target_.with_stdin)
            BERTH_TRY(terminal_.enter(session_.address().transport == client::Transport::kLocal));
    }
    return core::ok();
}

core::Status Attachment::send_size() {
    std::optional<WindowSize> size = window_size();
    if (!size) return core::ok();
    pb::task::ResizePtyRequest request;
    request.set_id(target_.container_id);
    request.set_exec_id(target_.exec_id);
    request.set_width(size->columns);
    request.set_height(size->rows);
    // A process that has ended meanwhile is no reason to stop.
    core::Result<pb::Empty> done = session_.call<pb::Empty>(client::kTaskService, "ResizePty", request);
    if (!done.ok() && done.error().code != core::Code::kNotFound && !client::is_disconnect(done.error())) {
        return std::move(done).error();
    }
    return core::ok();
}

core::Status Attachment::begin_wait() {
    BERTH_TRY(session_.connect());
    pb::task::ProcessRequest request;
    request.set_id(target_.container_id);
    request.set_exec_id(target_.exec_id);
    std::string bytes;
    request.SerializeToString(&bytes);
    client::CallOptions options = session_.call_options();
    options.timeout_ms = -1;
    core::Result<uint32_t> id =
        session_.rpc()->begin_unary(client::kTaskService, "Wait", std::move(bytes), options);
    if (!id.ok()) return std::move(id).error();
    wait_id_ = *id;
    return core::ok();
}

core::Status Attachment::recover_wait(const core::Error& error) {
    wait_id_.reset();
    if (!client::is_disconnect(error)) return error;
    session_.disconnect();
    return begin_wait();
}

core::Status Attachment::check_wait() {
    if (ended_) return core::ok();
    // Another call on this session may have met the end of the connection, and dropped it with our Wait.
    if (!wait_id_ || session_.rpc() == nullptr) return begin_wait();
    if (!session_.rpc()->has_answer(*wait_id_)) return core::ok();
    core::Result<std::string> answer = session_.rpc()->take_answer(*wait_id_);
    if (!answer.ok()) return recover_wait(answer.error());
    pb::task::WaitResponse response;
    if (!response.ParseFromString(*answer)) {
        return core::make_error(core::Code::kInternal, "Wait: undecodable answer");
    }
    wait_id_.reset();
    ended_ = std::move(response);
    ended_at_ns_ = client::now_ns();
    return core::ok();
}

core::Status Attachment::reattach_output(Output& output) {
    core::Result<bool> open = open_output(output);
    if (!open.ok() && open.error().code == core::Code::kOutOfRange) {
        // More is gone than we know of: take what is left.
        core::Result<sys::UniqueFd> fd =
            session_.open_stream(target_.container_id, target_.exec_id, output.name, std::nullopt);
        if (!fd.ok()) return std::move(fd).error();
        output.stream.attach(std::move(fd).value());
        return core::ok();
    }
    if (!open.ok()) return std::move(open).error();
    if (!*open) output.done = true;
    return core::ok();
}

core::Status Attachment::copy_output(Output& output) {
    if (output.done) return core::ok();
    // A flood of one stream must not keep the others, stdin and the signals waiting.
    for (int turn = 0; turn < kEventsATurn; turn++) {
        core::Result<client::OutputEvent> event = output.stream.next();
        if (!event.ok()) {
            if (!client::is_disconnect(event.error())) return std::move(event).error();
            return reattach_output(output);
        }
        switch (event->kind) {
            case client::OutputEvent::Kind::kNone: return core::ok();
            case client::OutputEvent::Kind::kData:
                BERTH_TRY(write_out(output.to, event->data));
                last_output_ns_ = client::now_ns();
                output.stream.acknowledge();
                break;
            case client::OutputEvent::Kind::kLost:
                lost_bytes_ += event->count;
                output.stream.acknowledge();
                break;
            case client::OutputEvent::Kind::kEof: output.stream.acknowledge(); break;
            case client::OutputEvent::Kind::kClosed:
                output.done = true;
                if (event->code == core::Code::kAborted) {
                    return core::make_error(core::Code::kAborted, "another client has taken over the output");
                }
                return core::ok();
        }
    }
    return core::ok();
}

core::Status Attachment::copy_input() {
    if (!in_open_) return core::ok();
    core::Status moved = in_.progress();
    if (!moved.ok()) {
        if (!client::is_disconnect(moved.error())) return moved;
        BERTH_ASSIGN(in_open_, open_input());
        return core::ok();
    }
    if (in_.closed()) {
        in_open_ = false;
        reads_stdin_ = false;
    }
    return core::ok();
}

core::Status Attachment::on_signal() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
        if (info.ssi_signo == SIGWINCH) {
            if (target_.terminal && target_.with_streams) BERTH_TRY(send_size());
            continue;
        }
        pb::task::KillRequest request;
        request.set_id(target_.container_id);
        request.set_exec_id(target_.exec_id);
        request.set_signal(info.ssi_signo);
        core::Result<pb::Empty> done = session_.call<pb::Empty>(client::kTaskService, "Kill", request);
        if (!done.ok() && done.error().code != core::Code::kNotFound) return std::move(done).error();
    }
    return core::ok();
}

// Polls everything that may bring work. False: the time for the rest of the output is over.
core::Result<bool> Attachment::wait_for_work() {
    int64_t deadline_ns = client::kNoDeadline;
    if (ended_) {
        deadline_ns = std::max(ended_at_ns_, last_output_ns_) + kSilenceNs;
        if (client::now_ns() >= deadline_ns) return false;
    }
    pollfd items[7];
    nfds_t count = 0;
    auto add = [&](int fd, short events) {
        if (fd >= 0) items[count++] = {fd, events, 0};
    };
    add(session_.rpc() != nullptr && !ended_ ? session_.rpc()->fd().get() : -1, POLLIN);
    add(signals_.get(), POLLIN);
    add(notify_ != nullptr ? notify_->fd() : -1, POLLIN);
    add(out_.done ? -1 : out_.stream.fd(), POLLIN);
    add(err_.done ? -1 : err_.stream.fd(), POLLIN);
    add(in_open_ ? in_.fd() : -1, in_.events());
    bool wants_stdin = reads_stdin_ && !in_.has_eof() && in_.room() > 0 && !ended_;
    nfds_t stdin_at = count;
    if (wants_stdin) add(STDIN_FILENO, POLLIN);
    int64_t left_ms =
        deadline_ns == client::kNoDeadline ? -1 : (deadline_ns - client::now_ns() + 999'999) / 1'000'000;
    bool has_buffered =
        (!out_.done && out_.stream.has_buffered()) || (!err_.done && err_.stream.has_buffered());
    if (has_buffered) left_ms = 0;
    if (::poll(items, count, static_cast<int>(left_ms < -1 ? 0 : left_ms)) < 0 && errno != EINTR) {
        return core::errno_error(errno, "poll");
    }
    if (wants_stdin && items[stdin_at].revents != 0) {
        std::byte buffer[kInputBytes];
        ssize_t got = ::read(STDIN_FILENO, buffer, std::min(sizeof(buffer), in_.room()));
        // A terminal that hung up reads as EIO: the end as well.
        if (got > 0) {
            in_.queue(std::span(buffer, static_cast<size_t>(got)));
        } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
            in_.queue_eof();
        }
    }
    return true;
}

core::Result<int> Attachment::pump() {
    for (;;) {
        BERTH_TRY(copy_output(out_));
        BERTH_TRY(copy_output(err_));
        BERTH_TRY(copy_input());
        if (notify_ != nullptr) notify_->progress();
        if (session_.rpc() != nullptr && !ended_) {
            // Its error ends the Wait too, which check_wait sees.
            (void)session_.rpc()->pump(0);
        }
        BERTH_TRY(check_wait());
        if (ended_ && outputs_done()) break;
        BERTH_ASSIGN(bool more, wait_for_work());
        if (!more) break;
        BERTH_TRY(on_signal());
    }
    terminal_.restore();
    return finish(*ended_);
}

core::Result<int> Attachment::finish(const pb::task::WaitResponse& ended) const {
    if (lost_bytes_ > 0) {
        std::fprintf(stderr, "berthctl: %llu bytes of output were lost\n",
                     static_cast<unsigned long long>(lost_bytes_));
    }
    return static_cast<int>(ended.exit_status() & 0xFF);
}

}  // namespace berth::ctl
