// Kernel pipes that keep a stream's bytes over the agent's death: the mechanism, without loop and protocol.
//
// Output. source (the process's pipe, or a pty's master) -> drain pipe D (16 buffers) -> retained pipe R (up
// to 1 MiB), both known to nobody but the keeper and us. Bytes go from source to D by splice; they come into
// R, by tee when they fill pages and else by a write, which packs them; the ledger counts them; then D lets
// go of them. A byte is in source, D or R at any instant, and the ledger with FIONREAD of D and R tells which
// steps happened: nothing that the container can do to its end of the pipe matters to that. The client's ACK
// drops from R: the ledger names the target first.
//
// Input. The client's bytes are written to a stored pipe I, after the ledger has the length and what I held;
// FIONREAD tells a restarted agent how much of it happened. From I to the process they go by splice.
//
// All calls return at once. Ours of the descriptors are non-blocking; the process's end is another open file
// description and stays blocking. SIGPIPE must be ignored by the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "agent/core/result.h"
#include "agent/runtime/fd_store.h"
#include "agent/runtime/ledger.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

inline constexpr size_t kRetainedPipeBytes = 1u << 20;
// From this on bytes are referenced (tee), below it copied: one reference takes a whole buffer of the
// retained pipe however little it holds, and a stream of one-byte writes would fill it with 256 bytes.
inline constexpr size_t kTeeBytes = 49'152;

struct PipePair {
    sys::UniqueFd read;
    sys::UniqueFd write;
    bool valid() const { return read.valid() && write.valid(); }
};
// Both ends close-on-exec and non-blocking.
core::Result<PipePair> make_pipe();
// Bytes in a pipe; 0 when it cannot be said.
size_t pipe_bytes(sys::FdRef pipe);

// What all streams of an agent share.
class PipeTools {
 public:
    static core::Result<PipeTools> create();
    // Takes `count` bytes out of `pipe`; returns how many there were to take.
    size_t discard(sys::FdRef pipe, size_t count) const;
    // Copies up to into.size() first bytes of `pipe`, which keeps them. At most 16 buffers' worth.
    size_t peek(sys::FdRef pipe, std::span<std::byte> into) const;

 private:
    sys::UniqueFd null_;
    PipePair scratch_;
};

class OutputPipes {
 public:
    // `name` is this stream's prefix in the store ("c/ID/stdio/EXEC/out@SLOT/"). tools, slot, store:
    // borrowed.
    OutputPipes(const PipeTools& tools, LedgerSlot& slot, FdStore& store, std::string name)
        : tools_(tools), slot_(slot), store_(store), name_(std::move(name)) {}

    // Takes and stores the process's pipe (read end) or the pty's master.
    void set_source(sys::UniqueFd source);
    bool has_source() const { return source_.valid(); }
    int source_fd() const { return source_.get(); }
    // A descriptor that the store returned after a restart, by the name behind the prefix. False: unknown.
    bool adopt(std::string_view part, sys::UniqueFd fd);
    // After the last adopt(): finishes or counts whatever an agent before us had half done.
    void recover();
    // Makes and stores D and R, unless they are there. Called before the first take().
    core::Status prepare();
    // Stores everything under another prefix and drops the old names.
    void rename(std::string name);
    // Closes and drops D and R; what they hold is lost.
    void release_pipes();
    // The same with the source. The stream is over.
    void release();

    enum class State : uint8_t {
        kData,     // `bytes` more are in R, and in the buffer
        kWaiting,  // the process has written nothing more
        kFull,     // R takes no more before an acknowledge()
        kEnd,      // all writers are gone and everything is in R
    };
    struct Taken {
        State state = State::kWaiting;
        size_t bytes = 0;
    };
    // Takes what the process wrote: at most `limit` and buffer.size() bytes.
    Taken take(std::span<std::byte> buffer, size_t limit);

    // Drops the bytes below `offset` (base() to end()) from R.
    void drop_below(uint64_t offset);
    uint64_t base() const { return slot_.base(); }
    uint64_t end() const { return slot_.record().end; }
    // How many unacknowledged bytes R surely holds, however they are cut.
    uint32_t window() const;
    // Bytes in a pipe of their own, the first of which has offset `from` (base() to end()); R keeps them.
    core::Result<PipePair> replay(uint64_t from) const;
    // Bytes that the process wrote and that are not in R yet.
    size_t waiting_bytes() const;

 private:
    bool fill_drain();
    size_t retain(std::span<std::byte> buffer, size_t count, bool& in_buffer);
    void store_all();
    std::string part(const char* name) const { return name_ + name; }

    const PipeTools& tools_;
    LedgerSlot& slot_;
    FdStore& store_;
    std::string name_;
    sys::UniqueFd source_;
    PipePair drain_;
    PipePair retained_;
    size_t capacity_ = kRetainedPipeBytes;  // of R
    size_t fresh_ = 0;                      // bytes in D that are not in R
    int source_error_ = 0;
};

class InputPipes {
 public:
    InputPipes(const PipeTools& tools, LedgerSlot& slot, FdStore& store, std::string name)
        : tools_(tools), slot_(slot), store_(store), name_(std::move(name)) {}

    // Takes and stores the process's pipe (write end) or the pty's master.
    void set_sink(sys::UniqueFd sink);
    bool has_sink() const { return sink_.valid(); }
    int sink_fd() const { return sink_.get(); }
    bool adopt(std::string_view part, sys::UniqueFd fd);
    void recover();
    core::Status prepare();
    void release();

    // Secures bytes of the client; returns how many of them (fewer, or 0, when the pipe is full).
    size_t put(std::span<const std::byte> bytes);
    // How many bytes put() surely takes now.
    size_t room() const { return held_ == 0 ? capacity_ : 0; }
    uint64_t total() const { return slot_.record().end; }

    enum class State : uint8_t {
        kEmpty,    // everything was handed over
        kWaiting,  // the process does not read: poll sink_fd() for POLLOUT
        kGone,     // the process closed its end; what was left is discarded
    };
    // Hands over to the process what it takes.
    State move();
    // Nothing more is taken. The move() that empties the pipe closes the process's end; a terminal, which has
    // no end that could be closed while output goes on, gets the end of file typed (type_end).
    void end();
    bool ended() const { return (slot_.flags() & kSlotStdinEnded) != 0; }
    bool closed() const { return (slot_.flags() & kSlotStdinClosed) != 0; }

 private:
    bool finish_sink();
    bool type_end();
    void close_sink();
    std::string part(const char* name) const { return name_ + name; }

    const PipeTools& tools_;
    LedgerSlot& slot_;
    FdStore& store_;
    std::string name_;
    std::byte last_{'\n'};  // that was taken; 0: not known, of a predecessor's
    sys::UniqueFd sink_;
    PipePair stored_;
    size_t held_ = 0;
    size_t capacity_ = 0;
    bool is_gone_ = false;
};

}  // namespace berth::runtime
