// The caller's own terminal.
#pragma once

#include <termios.h>

#include <cstdint>
#include <optional>

#include "agent/core/result.h"

namespace berth::ctl {

struct WindowSize {
    uint32_t columns = 0;
    uint32_t rows = 0;
};
// Unset when standard input is no terminal, or does not know.
std::optional<WindowSize> window_size();

// Standard input in raw mode for as long as it lives. Does nothing when it is no terminal.
class RawTerminal {
 public:
    RawTerminal() = default;
    RawTerminal(const RawTerminal&) = delete;
    RawTerminal& operator=(const RawTerminal&) = delete;
    ~RawTerminal() { restore(); }
    // `keep_output`: what is written goes on being processed, LF to CR and LF.
    core::Status enter(bool keep_output);
    void restore();

 private:
    std::optional<termios> saved_;
};

}  // namespace berth::ctl
