#include "agent/berthctl/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

namespace berth::ctl {

std::optional<WindowSize> window_size() {
    winsize size{};
    if (::ioctl(STDIN_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
        return std::nullopt;
    }
    return WindowSize{size.ws_col, size.ws_row};
}

core::Status RawTerminal::enter(bool keep_output) {
    termios mode{};
    if (::tcgetattr(STDIN_FILENO, &mode) != 0) return core::ok();
    saved_ = mode;
    ::cfmakeraw(&mode);
    if (keep_output) mode.c_oflag |= saved_->c_oflag & static_cast<tcflag_t>(OPOST);
    if (::tcsetattr(STDIN_FILENO, TCSADRAIN, &mode) != 0) {
        saved_.reset();
        return core::errno_error(errno, "terminal: raw mode");
    }
    return core::ok();
}

void RawTerminal::restore() {
    if (!saved_) return;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &*saved_);
    saved_.reset();
}

}  // namespace berth::ctl
