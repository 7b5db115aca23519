#include "agent/runtime/stdio_pipes.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

constexpr unsigned kSpliceFlags = SPLICE_F_NONBLOCK | SPLICE_F_MOVE;

ssize_t splice_some(int from, int to, size_t count) {
    ssize_t done;
    do {
        done = ::splice(from, nullptr, to, nullptr, count, kSpliceFlags);
    } while (done < 0 && errno == EINTR);
    return done;
}

ssize_t tee_some(int from, int to, size_t count) {
    ssize_t done;
    do {
        done = ::tee(from, to, count, SPLICE_F_NONBLOCK);
    } while (done < 0 && errno == EINTR);
    return done;
}

// Reads from a pipe that only we know and that holds at least into.size() bytes.
size_t read_all(int fd, std::span<std::byte> into) {
    size_t done = 0;
    while (done < into.size()) {
        ssize_t count = ::read(fd, into.data() + done, into.size() - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        done += static_cast<size_t>(count);
    }
    return done;
}

size_t write_some(int fd, std::span<const std::byte> bytes) {
    ssize_t done;
    do {
        done = ::write(fd, bytes.data(), bytes.size());
    } while (done < 0 && errno == EINTR);
    return done < 0 ? 0 : static_cast<size_t>(done);
}

size_t pipe_capacity(int fd) {
    int size = fcntl(fd, F_GETPIPE_SZ);
    return size > 0 ? static_cast<size_t>(size) : 4096;
}

void set_non_blocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) == 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

}  // namespace

core::Result<PipePair> make_pipe() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return core::errno_error(errno, "pipe2");
    return PipePair{sys::UniqueFd(fds[0]), sys::UniqueFd(fds[1])};
}

size_t pipe_bytes(sys::FdRef pipe) {
    int count = 0;
    if (ioctl(pipe.get(), FIONREAD, &count) != 0 || count < 0) return 0;
    return static_cast<size_t>(count);
}

// ---- tools ----

core::Result<PipeTools> PipeTools::create() {
    PipeTools tools;
    tools.null_ = sys::UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!tools.null_.valid()) return core::errno_error(errno, "open /dev/null");
    BERTH_ASSIGN(tools.scratch_, make_pipe());
    return tools;
}

size_t PipeTools::discard(sys::FdRef pipe, size_t count) const {
    size_t done = 0;
    while (done < count) {
        ssize_t moved = splice_some(pipe.get(), null_.get(), count - done);
        if (moved <= 0) break;
        done += static_cast<size_t>(moved);
    }
    return done;
}

size_t PipeTools::peek(sys::FdRef pipe, std::span<std::byte> into) const {
    ssize_t copied = tee_some(pipe.get(), scratch_.write.get(), into.size());
    if (copied <= 0) return 0;
    return read_all(scratch_.read.get(), into.first(static_cast<size_t>(copied)));
}

// ---- output ----

void OutputPipes::set_source(sys::UniqueFd source) {
    source_ = std::move(source);
    set_non_blocking(source_.get());
    store_.store(part("src"), source_);
}

bool OutputPipes::adopt(std::string_view name, sys::UniqueFd fd) {
    sys::UniqueFd* place = name == "src"  ? &source_
                           : name == "dr" ? &drain_.read
                           : name == "dw" ? &drain_.write
                           : name == "rr" ? &retained_.read
                           : name == "rw" ? &retained_.write
                                          : nullptr;
    if (place == nullptr) return false;
    *place = std::move(fd);
    return true;
}

void OutputPipes::store_all() {
    if (source_.valid()) store_.store(part("src"), source_);
    if (!drain_.valid() || !retained_.valid()) return;
    store_.store(part("dr"), drain_.read);
    store_.store(part("dw"), drain_.write);
    store_.store(part("rr"), retained_.read);
    store_.store(part("rw"), retained_.write);
}

core::Status OutputPipes::prepare() {
    if (drain_.valid() && retained_.valid()) return core::ok();
    BERTH_ASSIGN(PipePair drain, make_pipe());
    BERTH_ASSIGN(PipePair retained, make_pipe());
    // Refused to those without CAP_SYS_RESOURCE who have many: then the window is smaller, nothing else.
    fcntl(retained.write.get(), F_SETPIPE_SZ, static_cast<int>(kRetainedPipeBytes));
    drain_ = std::move(drain);
    retained_ = std::move(retained);
    capacity_ = pipe_capacity(retained_.write.get());
    store_all();
    return core::ok();
}

void OutputPipes::recover() {
    if (!drain_.valid() || !retained_.valid()) {
        // Killed while they were being made (nothing has been in them then), or while they were dropped.
        release_pipes();
        return;
    }
    capacity_ = pipe_capacity(retained_.write.get());
    // A drop that was begun is finished. No take() was under way then, so R holds what the ledger says, less
    // what is dropped already.
    size_t retained = pipe_bytes(retained_.read);
    if (slot_.target() > slot_.base()) {
        uint64_t should_hold = end() - std::min(slot_.target(), end());
        if (retained > should_hold) tools_.discard(retained_.read, retained - should_hold);
        slot_.set_base(std::min(slot_.target(), end()));
        retained = pipe_bytes(retained_.read);
    }
    StreamRecord record = slot_.record();
    size_t drain = pipe_bytes(drain_.read);
    if (record.stale > 0) {
        // Counted, and D perhaps not yet relieved of them: it held `depth` before.
        size_t gone = record.depth - std::min<size_t>(drain, record.depth);
        if (gone < record.stale) tools_.discard(drain_.read, record.stale - gone);
    } else if (retained > end() - base()) {
        // The first bytes of D are in R, and not counted.
        size_t extra = std::min(retained - static_cast<size_t>(end() - base()), drain);
        slot_.commit({record.end + extra, static_cast<uint32_t>(extra), static_cast<uint32_t>(drain)});
        tools_.discard(drain_.read, extra);
    }
    slot_.commit({end(), 0, 0});
    fresh_ = pipe_bytes(drain_.read);
    retained = pipe_bytes(retained_.read);
    if (retained != end() - base()) {
        sys::log(sys::LogLevel::kError, "stdio.recover", "%s: the ledger says %llu bytes, the pipe has %zu",
                 name_.c_str(), static_cast<unsigned long long>(end() - base()), retained);
        slot_.commit({base() + retained, 0, 0});
    }
}

void OutputPipes::rename(std::string name) {
    std::string old = std::exchange(name_, std::move(name));
    store_all();
    store_.drop(old);
}

void OutputPipes::release_pipes() {
    for (const char* name : {"dr", "dw", "rr", "rw"}) store_.drop(part(name));
    drain_ = PipePair{};
    retained_ = PipePair{};
    fresh_ = 0;
}

void OutputPipes::release() {
    store_.drop(name_);
    drain_ = PipePair{};
    retained_ = PipePair{};
    source_.reset();
    fresh_ = 0;
}

// False: nothing came; why is in source_error_ (0: end of file).
bool OutputPipes::fill_drain() {
    if (fresh_ > 0) return true;
    source_error_ = EAGAIN;  // a terminal's master comes when the process has made it
    if (!source_.valid()) return false;
    source_error_ = 0;
    ssize_t moved = splice_some(source_.get(), drain_.write.get(), limits::kStreamPayloadBytes);
    if (moved > 0) {
        fresh_ = static_cast<size_t>(moved);
        return true;
    }
    // A pty whose last slave was closed says EIO: as much an end as the 0 of a pipe without writers.
    if (moved < 0 && errno != EIO) source_error_ = errno;
    return false;
}

// Brings up to `count` first bytes of D into R, uncounted. `in_buffer`: they were copied there, too.
size_t OutputPipes::retain(std::span<std::byte> buffer, size_t count, bool& in_buffer) {
    size_t done = 0;
    if (count >= kTeeBytes) {
        ssize_t referenced = tee_some(drain_.read.get(), retained_.write.get(), count);
        if (referenced > 0) done = static_cast<size_t>(referenced);
    }
    in_buffer = done < count;
    if (!in_buffer) return done;
    size_t copied = tools_.peek(drain_.read, buffer.first(count));
    if (copied > done) done += write_some(retained_.write.get(), buffer.subspan(done, copied - done));
    return done;
}

OutputPipes::Taken OutputPipes::take(std::span<std::byte> buffer, size_t limit) {
    if (!fill_drain()) return {source_error_ == EAGAIN ? State::kWaiting : State::kEnd, 0};
    size_t count = std::min({fresh_, limit, buffer.size()});
    if (count == 0) return {State::kFull, 0};
    bool in_buffer = false;
    size_t done = retain(buffer, count, in_buffer);
    if (done == 0) return {State::kFull, 0};
    slot_.commit({end() + done, static_cast<uint32_t>(done), static_cast<uint32_t>(fresh_)});
    if (in_buffer) {
        tools_.discard(drain_.read, done);
    } else {
        read_all(drain_.read.get(), buffer.first(done));
    }
    slot_.commit({end(), 0, 0});
    fresh_ -= done;
    return {State::kData, done};
}

void OutputPipes::drop_below(uint64_t offset) {
    if (offset <= base() || offset > end()) return;
    uint64_t from = base();
    slot_.set_target(offset);
    tools_.discard(retained_.read, static_cast<size_t>(offset - from));
    slot_.set_base(offset);
}

uint32_t OutputPipes::window() const {
    // Written bytes fill each page at least half (the next write may just not fit), referenced ones more.
    return static_cast<uint32_t>(std::min(capacity_, limits::kStreamWindowBytes) / 2);
}

core::Result<PipePair> OutputPipes::replay(uint64_t from) const {
    BERTH_ASSIGN(PipePair copy, make_pipe());
    fcntl(copy.write.get(), F_SETPIPE_SZ, static_cast<int>(capacity_));
    size_t held = static_cast<size_t>(end() - base());
    if (held > 0 && tee_some(retained_.read.get(), copy.write.get(), held) < 0) {
        return core::errno_error(errno, "tee");
    }
    tools_.discard(copy.read, static_cast<size_t>(from - base()));
    return copy;
}

size_t OutputPipes::waiting_bytes() const {
    return fresh_ + (source_.valid() ? pipe_bytes(source_) : 0);
}

// ---- input ----

void InputPipes::set_sink(sys::UniqueFd sink) {
    sink_ = std::move(sink);
    set_non_blocking(sink_.get());
    store_.store(part("sink"), sink_);
}

bool InputPipes::adopt(std::string_view name, sys::UniqueFd fd) {
    sys::UniqueFd* place = name == "sink" ? &sink_
                           : name == "ir" ? &stored_.read
                           : name == "iw" ? &stored_.write
                                          : nullptr;
    if (place == nullptr) return false;
    *place = std::move(fd);
    return true;
}

core::Status InputPipes::prepare() {
    if (stored_.valid()) return core::ok();
    BERTH_ASSIGN(stored_, make_pipe());
    capacity_ = std::min(pipe_capacity(stored_.write.get()), limits::kStreamPayloadBytes);
    store_.store(part("ir"), stored_.read);
    store_.store(part("iw"), stored_.write);
    return core::ok();
}

void InputPipes::recover() {
    if (stored_.valid()) {
        held_ = pipe_bytes(stored_.read);
        capacity_ = std::min(pipe_capacity(stored_.write.get()), limits::kStreamPayloadBytes);
        StreamRecord record = slot_.record();
        if (record.end > 0 || record.stale > 0) last_ = std::byte{0};
        if (record.stale > 0) {
            // A write was under way: what I holds beyond what it held has happened. Nothing left I meanwhile.
            size_t done = held_ - std::min<size_t>(held_, record.depth);
            slot_.commit({record.end + std::min<size_t>(done, record.stale), 0, 0});
        }
    } else {
        stored_ = PipePair{};
        store_.drop(part("ir"));
        store_.drop(part("iw"));
    }
    if (closed()) close_sink();
}

void InputPipes::release() {
    store_.drop(name_);
    sink_.reset();
    stored_ = PipePair{};
    held_ = 0;
}

size_t InputPipes::put(std::span<const std::byte> bytes) {
    if (ended() || bytes.empty()) return 0;
    StreamRecord record = slot_.record();
    slot_.commit({record.end, static_cast<uint32_t>(bytes.size()), static_cast<uint32_t>(held_)});
    size_t done = write_some(stored_.write.get(), bytes);
    slot_.commit({record.end + done, 0, 0});
    held_ += done;
    if (done > 0) last_ = bytes[done - 1];
    return done;
}

InputPipes::State InputPipes::move() {
    while (held_ > 0 && sink_.valid() && !is_gone_) {
        ssize_t moved = splice_some(stored_.read.get(), sink_.get(), held_);
        if (moved > 0) {
            held_ -= std::min(held_, static_cast<size_t>(moved));
        } else if (moved < 0 && errno == EAGAIN) {
            return State::kWaiting;
        } else {
            is_gone_ = true;  // EPIPE of a pipe, EIO of a terminal: nobody will read this
        }
    }
    if (is_gone_ || closed()) {
        held_ -= tools_.discard(stored_.read, held_);
        if (ended()) close_sink();
        return State::kGone;
    }
    if (held_ == 0 && ended() && !finish_sink()) return State::kWaiting;
    return State::kEmpty;
}

// False: the terminal takes nothing more now.
bool InputPipes::finish_sink() {
    if ((slot_.flags() & kSlotIsTerminal) != 0 && !closed()) {
        if (!sink_.valid()) return true;  // the process has not made it yet
        if (!type_end()) return false;
    }
    close_sink();
    return true;
}

// What a person does: VEOF, once more when a line is begun, which the first one only hands over. A program
// that reads its terminal raw gets nothing: there every byte is data. Killed behind it, the next agent types
// it again: an end of file more, no byte.
bool InputPipes::type_end() {
    termios settings{};
    if (tcgetattr(sink_.get(), &settings) != 0 || (settings.c_lflag & ICANON) == 0) return true;
    auto key = std::byte{settings.c_cc[VEOF]};
    if (key == std::byte{_POSIX_VDISABLE}) return true;
    auto is_line_end = [&] {
        return last_ == std::byte{'\n'} || (last_ == std::byte{'\r'} && (settings.c_iflag & ICRNL) != 0);
    };
    for (bool again = true; again;) {
        again = !is_line_end();
        ssize_t done = ::write(sink_.get(), &key, 1);
        if (done == 0 || (done < 0 && (errno == EAGAIN || errno == EINTR))) return false;
        last_ = std::byte{'\n'};
    }
    return true;
}

void InputPipes::end() {
    slot_.set_flag(kSlotStdinEnded);
    move();
}

void InputPipes::close_sink() {
    slot_.set_flag(kSlotStdinClosed);
    store_.drop(part("sink"));
    sink_.reset();
}

}  // namespace berth::runtime
