#include "agent/runtime/stdio.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>

#include <cerrno>

#include "agent/core/text.h"
#include "agent/runtime/stream_table.h"

namespace berth::runtime {
namespace {

constexpr std::string_view kStreamScheme = "stream://";
constexpr std::string_view kVsockScheme = "vsock://";
constexpr std::string_view kFileScheme = "file://";
constexpr std::string_view kPassedScheme = "fd:";

core::Error bad(std::string_view field, std::string_view text, const char* why) {
    return core::invalid(core::format("%.*s %s: %s", static_cast<int>(field.size()), field.data(),
                                      core::quoted(text).c_str(), why));
}

constexpr const char* kFields[] = {"stdin", "stdout", "stderr"};
constexpr StreamKind kStreamKinds[] = {StreamKind::kStdin, StreamKind::kStdout, StreamKind::kStderr};

std::string_view field_of(const StdioRequest& request, size_t number) {
    return number == 0 ? request.in : number == 1 ? request.out : request.err;
}

core::Status check_terminal(std::string_view field, std::string_view text, const StdioTarget& target,
                            size_t number) {
    if (target.kind == StdioTarget::Kind::kNull || target.kind == StdioTarget::Kind::kStream) {
        if (number == 2 && target.kind == StdioTarget::Kind::kStream) {
            return bad(field, text, "a terminal has one output stream, stdout");
        }
        return core::ok();
    }
    return core::make_error(core::Code::kUnimplemented, bad(field, text, "with a terminal").message);
}

// The guest's file, for the child. Never waits (a FIFO), never a device.
core::Result<sys::UniqueFd> open_file(const StdioTarget& target, bool is_input) {
    int flags = is_input ? O_RDONLY : O_WRONLY | O_APPEND | O_CREAT;
    sys::UniqueFd fd(::open(target.path.c_str(), flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644));
    if (!fd.valid()) return core::errno_error(errno, "open " + target.path);
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) return core::errno_error(errno, "fstat " + target.path);
    if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode)) {
        return core::make_error(core::Code::kPermissionDenied, target.path + " is neither a file nor a FIFO");
    }
    if (fcntl(fd.get(), F_SETFL, is_input ? 0 : O_APPEND) != 0) {
        return core::errno_error(errno, "fcntl " + target.path);
    }
    return fd;
}

}  // namespace

core::Result<StdioTarget> parse_stdio_target(std::string_view field, std::string_view text) {
    StdioTarget target;
    if (text.empty()) return target;
    if (text == kStreamScheme) {
        target.kind = StdioTarget::Kind::kStream;
        return target;
    }
    if (text.starts_with(kVsockScheme)) {
        std::optional<uint32_t> port = core::parse_number<uint32_t>(text.substr(kVsockScheme.size()));
        if (!port || *port == 0 || *port == UINT32_MAX) return bad(field, text, "no port of the host");
        target.kind = StdioTarget::Kind::kVsock;
        target.number = *port;
        return target;
    }
    if (text.starts_with(kFileScheme)) {
        std::string_view path = text.substr(kFileScheme.size());
        if (!path.starts_with('/') || path.size() > limits::kPathBytes || path.find('\0') != path.npos) {
            return bad(field, text, "no absolute path");
        }
        target.kind = StdioTarget::Kind::kFile;
        target.path = path;
        return target;
    }
    if (text.starts_with(kPassedScheme)) {
        std::optional<uint32_t> index = core::parse_number<uint32_t>(text.substr(kPassedScheme.size()));
        if (!index) return bad(field, text, "no index of a descriptor");
        target.kind = StdioTarget::Kind::kPassed;
        target.number = *index;
        return target;
    }
    return bad(field, text, "must be empty, stream://, vsock://PORT, file:///path or fd:N");
}

core::Status check_stdio(const StdioRequest& request, size_t descriptor_count) {
    if (request.console && !request.terminal) return core::invalid("console_socket: without a terminal");
    if (request.console && !(request.in.empty() && request.out.empty() && request.err.empty()))
        return core::invalid("console_socket: with stdin, stdout or stderr");
    for (size_t number = 0; number < 3; ++number) {
        std::string_view field = kFields[number];
        std::string_view text = field_of(request, number);
        BERTH_ASSIGN(StdioTarget target, parse_stdio_target(field, text));
        if (request.terminal) BERTH_TRY(check_terminal(field, text, target, number));
        if (target.kind == StdioTarget::Kind::kPassed && target.number >= descriptor_count) {
            return bad(field, text, "no such descriptor came with the request");
        }
    }
    return core::ok();
}

// ---- making ----

core::Status StreamTable::make_stream(const StreamId& id, StdioRequest& request, ProcessStdio& stdio) {
    auto number = static_cast<size_t>(id.kind) - 1;
    uint8_t flags = 0;
    if (request.terminal) flags |= kSlotIsTerminal;
    bool is_unread = request.terminal && field_of(request, number).empty();
    if (id.kind != StreamKind::kStdin && (request.drop || is_unread)) flags |= kSlotDropPolicy;
    if (id.kind != StreamKind::kStdin && is_unread) flags |= kSlotUnasked;
    SlotUse use = id.kind == StreamKind::kStdin ? SlotUse::kInput : SlotUse::kOutput;
    BERTH_ASSIGN(Entry * entry, add(id, use, flags));
    if (request.terminal) return core::ok();  // the child sends the master
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return core::errno_error(errno, "pipe2");
    sys::UniqueFd read_end(fds[0]);
    sys::UniqueFd write_end(fds[1]);
    if (use == SlotUse::kInput) {
        static_cast<InputStream&>(*entry->stream).set_sink(std::move(write_end));
        stdio.child_[number] = std::move(read_end);
    } else {
        static_cast<OutputStream&>(*entry->stream).set_source(std::move(read_end));
        stdio.child_[number] = std::move(write_end);
    }
    return core::ok();
}

core::Status StreamTable::make_child_end(const StreamId& id, const StdioTarget& target, StdioRequest& request,
                                         ProcessStdio& stdio) {
    auto number = static_cast<size_t>(id.kind) - 1;
    switch (target.kind) {
        case StdioTarget::Kind::kNull:
            // A terminal's output is taken even when nobody wants it: the process must not stop at it.
            if (request.terminal && !request.console && number == 1) return make_stream(id, request, stdio);
            return core::ok();
        case StdioTarget::Kind::kStream: return make_stream(id, request, stdio);
        case StdioTarget::Kind::kFile: {
            BERTH_ASSIGN(stdio.child_[number], open_file(target, number == 0));
            return core::ok();
        }
        case StdioTarget::Kind::kPassed: {
            // A copy: two fields may name the same descriptor.
            int passed = (*request.descriptors)[target.number].get();
            stdio.child_[number] = sys::UniqueFd(fcntl(passed, F_DUPFD_CLOEXEC, 3));
            if (!stdio.child_[number].valid()) return core::errno_error(errno, "fcntl F_DUPFD_CLOEXEC");
            return core::ok();
        }
        case StdioTarget::Kind::kVsock: return make_relay(id, target.number, stdio);
    }
    return core::make_error(core::Code::kInternal, "unknown kind of stdio");
}

core::Status StreamTable::make_relay(const StreamId& id, uint32_t port, ProcessStdio& stdio) {
    auto number = static_cast<size_t>(id.kind) - 1;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return core::errno_error(errno, "pipe2");
    sys::UniqueFd read_end(fds[0]);
    sys::UniqueFd write_end(fds[1]);
    bool is_input = id.kind == StreamKind::kStdin;
    auto relay = std::make_unique<HostRelay>(context_.loop, store_, *this, id, relay_prefix_of(id, false));
    relay->set_pipe(std::move(is_input ? write_end : read_end));
    stdio.child_[number] = std::move(is_input ? read_end : write_end);
    erase_relay(id);
    HostRelay& made = *(relays_[id] = std::move(relay));
    made.dial(port);
    return core::ok();
}

core::Result<std::unique_ptr<ProcessStdio>> StreamTable::make_stdio(const std::string& container,
                                                                    const std::string& exec,
                                                                    StdioRequest request) {
    BERTH_TRY(check_stdio(request, request.descriptors == nullptr ? 0 : request.descriptors->size()));
    auto stdio = std::make_unique<ProcessStdio>(*this, container, exec, request.terminal);
    for (size_t number = 0; number < 3; ++number) {
        BERTH_ASSIGN(StdioTarget target, parse_stdio_target(kFields[number], field_of(request, number)));
        StreamId id{container, exec, kStreamKinds[number]};
        core::Status status = make_child_end(id, target, request, *stdio);
        if (!status.ok()) {
            discard_process(container, exec);
            return std::move(status).error().within(kFields[number]);
        }
    }
    return stdio;
}

std::unique_ptr<ProcessStdio> StreamTable::adopted_stdio(const std::string& container,
                                                         const std::string& exec) {
    OutputStream* out = output(container, exec, StreamKind::kStdout);
    bool is_terminal = out != nullptr && (out->slot().flags() & kSlotIsTerminal) != 0;
    auto stdio = std::make_unique<ProcessStdio>(*this, container, exec, is_terminal);
    if (is_terminal && out->pipes().has_source()) {
        stdio->master_ = sys::UniqueFd(fcntl(out->pipes().source_fd(), F_DUPFD_CLOEXEC, 3));
    }
    return stdio;
}

// ---- the process's ----

ProcessStdio::ProcessStdio(StreamTable& table, std::string container, std::string exec, bool terminal)
    : table_(table), container_(std::move(container)), exec_(std::move(exec)), terminal_(terminal) {}

ProcessStdio::~ProcessStdio() = default;

void ProcessStdio::close_child_fds() {
    for (sys::UniqueFd& fd : child_) fd.reset();
}

core::Status ProcessStdio::set_terminal(sys::UniqueFd master) {
    if (!terminal_) return core::make_error(core::Code::kFailedPrecondition, "the process has no terminal");
    sys::UniqueFd for_output(fcntl(master.get(), F_DUPFD_CLOEXEC, 3));
    sys::UniqueFd for_input(fcntl(master.get(), F_DUPFD_CLOEXEC, 3));
    if (!for_output.valid() || !for_input.valid()) return core::errno_error(errno, "fcntl F_DUPFD_CLOEXEC");
    master_ = std::move(master);
    BERTH_TRY(apply_size());
    if (InputStream* in = table_.input(container_, exec_)) in->set_sink(std::move(for_input));
    if (OutputStream* out = table_.output(container_, exec_, StreamKind::kStdout)) {
        out->set_source(std::move(for_output));
    }
    return core::ok();
}

core::Status ProcessStdio::apply_size() {
    if (!master_.valid() || (rows_ == 0 && columns_ == 0)) return core::ok();
    winsize size{};
    size.ws_row = static_cast<unsigned short>(rows_);
    size.ws_col = static_cast<unsigned short>(columns_);
    if (ioctl(master_.get(), TIOCSWINSZ, &size) != 0) return core::errno_error(errno, "ioctl TIOCSWINSZ");
    return core::ok();
}

core::Status ProcessStdio::resize(uint32_t rows, uint32_t columns) {
    if (!terminal_) return core::make_error(core::Code::kFailedPrecondition, "the process has no terminal");
    if (rows > UINT16_MAX || columns > UINT16_MAX) {
        return core::invalid(core::format("%u rows, %u columns: at most %u each", rows, columns, UINT16_MAX));
    }
    rows_ = rows;
    columns_ = columns;
    return apply_size();
}

core::Status ProcessStdio::close_stdin() {
    if (InputStream* in = table_.input(container_, exec_)) in->close_soon();
    if (HostRelay* in = table_.relay(StreamId{container_, exec_, StreamKind::kStdin})) in->close_soon();
    return core::ok();
}

bool ProcessStdio::is_connected() const {
    for (StreamKind kind : kStreamKinds) {
        const HostRelay* relay = table_.relay(StreamId{container_, exec_, kind});
        if (relay != nullptr && (relay->state() == HostRelay::State::kFailed ||
                                 relay->state() == HostRelay::State::kConnecting)) {
            return false;
        }
    }
    return true;
}

void ProcessStdio::when_connected(core::Callback<void(core::Status)> done) {
    for (StreamKind kind : kStreamKinds) {
        HostRelay* relay = table_.relay(StreamId{container_, exec_, kind});
        if (relay == nullptr) continue;
        if (relay->state() == HostRelay::State::kFailed) {
            return done(core::Error(relay->error()).within(kFields[static_cast<size_t>(kind) - 1]));
        }
        if (relay->state() != HostRelay::State::kConnecting) continue;
        std::weak_ptr<bool> alive = alive_;
        relay->on_settled = [this, alive, done = std::move(done)]() mutable {
            if (!alive.expired()) when_connected(std::move(done));
        };
        return;
    }
    done(core::ok());
}

}  // namespace berth::runtime
