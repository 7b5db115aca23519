// The stdio of one process: what its three descriptors are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class StreamTable;

// One stdio field of Create or Exec: "" (/dev/null), "stream://", "vsock://PORT", "file:///path", "fd:N".
struct StdioTarget {
    enum class Kind : uint8_t { kNull, kStream, kVsock, kFile, kPassed };
    Kind kind = Kind::kNull;
    uint32_t number = 0;  // kVsock: port; kPassed: index
    std::string path;     // kFile
};
// INVALID_ARGUMENT for anything else: `stdout "pipe:x": ...`. `field`: "stdin", "stdout", "stderr".
core::Result<StdioTarget> parse_stdio_target(std::string_view field, std::string_view text);

struct StdioRequest {
    std::string_view in = {};
    std::string_view out = {};
    std::string_view err = {};
    bool terminal = false;
    bool console = false;                               // the terminal's master goes to the caller
    bool drop = false;                                  // the annotation berth.stdio=drop
    std::vector<sys::UniqueFd>* descriptors = nullptr;  // that came with the call; fd:N takes out of it
};

// Checks all that can be said without making anything. `descriptor_count`: how many came with the call.
core::Status check_stdio(const StdioRequest& request, size_t descriptor_count);

class ProcessStdio {
 public:
    ProcessStdio(StreamTable& table, std::string container, std::string exec, bool terminal);
    ~ProcessStdio();

    // The child's 0, 1 and 2, to pass in the launch plan; -1: /dev/null. Not with a terminal, where the child
    // makes its own and sends the master. Close them once the child has them (or never will): as long as they
    // are open, an end of file does not come through.
    int child_fd(int number) const { return child_[static_cast<size_t>(number)].get(); }
    void close_child_fds();
    bool is_terminal() const { return terminal_; }

    // The terminal's master, from the child. Rows and columns set before are applied.
    core::Status set_terminal(sys::UniqueFd master);
    // TIOCSWINSZ; before the terminal is there the size is kept. FAILED_PRECONDITION without a terminal.
    core::Status resize(uint32_t rows, uint32_t columns);
    // CloseIO: the process reads the end of file after what was sent so far (of a terminal: when it reads
    // line by line). Remembered over a restart. Nothing happens where stdin is no stream.
    core::Status close_stdin();
    // Runs `done` once every connection to the host stands, at once when there is none to wait for; with an
    // error when one could not be made. Not at all when this object goes before.
    void when_connected(core::Callback<void(core::Status)> done);
    // Whether when_connected() would be done at once, and without an error.
    bool is_connected() const;

 private:
    friend class StreamTable;
    core::Status apply_size();

    StreamTable& table_;
    std::string container_;
    std::string exec_;
    bool terminal_;
    uint32_t rows_ = 0;
    uint32_t columns_ = 0;
    std::array<sys::UniqueFd, 3> child_;
    sys::UniqueFd master_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for callbacks that may come later
};

}  // namespace berth::runtime
