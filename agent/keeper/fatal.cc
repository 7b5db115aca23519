#include "agent/keeper/fatal.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "agent/core/check.h"
#include "agent/sys/power.h"

namespace berth::keeper {
namespace {

FatalSetup g_setup;
sys::PowerAction g_end = sys::PowerAction::kPowerOff;
alignas(16) char g_signal_stack[32 * 1024];  // untouched until a signal comes: costs no memory before

constexpr int kFatalSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};

// The console is non-blocking: waits for it a little, but not for ever.
void write_line(const char* line, int bytes) {
    constexpr int kWaitMs = 1000;
    auto left = static_cast<size_t>(bytes > 0 ? bytes : 0);
    while (left > 0) {
        ssize_t written = ::write(g_setup.fd, line, left);
        if (written > 0) {
            line += written;
            left -= static_cast<size_t>(written);
            continue;
        }
        pollfd console = {g_setup.fd, POLLOUT, 0};
        if (errno != EAGAIN || ::poll(&console, 1, kWaitMs) != 1) return;
    }
}

[[noreturn]] void end_with(const char* line, int bytes) {
    write_line(line, bytes);
    if (g_setup.is_init) power_off_now();
    ::_exit(70);
}

void on_broken_invariant(const char* file, int line_number, const char* condition) {
    char line[256];
    int bytes = snprintf(line, sizeof line, "berth: fatal: %s:%d: %s\n", file, line_number, condition);
    end_with(line, bytes < static_cast<int>(sizeof line) ? bytes : static_cast<int>(sizeof line) - 1);
}

void on_no_memory() {
    constexpr char kLine[] = "berth: fatal: out of memory\n";
    end_with(kLine, sizeof kLine - 1);
}

void on_fatal_signal(int signal, siginfo_t* info, void*) {
    // A handler makes PID 1 killable by it: what another process sent is not a fault of ours.
    if (info->si_code <= 0 && info->si_pid != ::getpid()) return;
    char line[64];
    int bytes = snprintf(line, sizeof line, "berth: fatal: keeper got signal %d\n", signal);
    end_with(line, bytes);
}

}  // namespace

void install_fatal_handlers(FatalSetup setup) {
    g_setup = setup;
    core::set_fatal_handler(on_broken_invariant);
    std::set_new_handler(on_no_memory);
    stack_t stack{};
    stack.ss_sp = g_signal_stack;
    stack.ss_size = sizeof g_signal_stack;
    ::sigaltstack(&stack, nullptr);
    struct sigaction action {};
    action.sa_sigaction = on_fatal_signal;
    action.sa_flags = SA_ONSTACK | SA_SIGINFO;
    for (int signal : kFatalSignals) ::sigaction(signal, &action, nullptr);
}

void stop_boot(std::string_view reason) {
    char line[1024];
    int bytes = snprintf(line, sizeof line, "berth: boot stopped: %.*s; powering off\n",
                         static_cast<int>(reason.size() < 900 ? reason.size() : 900), reason.data());
    write_line(line, bytes < static_cast<int>(sizeof line) ? bytes : static_cast<int>(sizeof line) - 1);
    power_off_now();
}

void power_off_by_reset() {
    g_end = sys::PowerAction::kReboot;
}

void power_off_now() {
    ::tcdrain(g_setup.fd);
    sys::end_machine(g_end);
    // Not the machine's PID 1 after all, or the kernel has no way to power off.
    ::_exit(70);
}

}  // namespace berth::keeper
