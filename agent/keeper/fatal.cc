#include "agent/keeper/fatal.h"

#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "agent/core/check.h"
#include "agent/sys/power.h"

namespace berth::keeper {
namespace {

FatalSetup g_setup;
alignas(16) char g_signal_stack[32 * 1024];  // untouched until a signal comes: costs no memory before

constexpr int kFatalSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};

void write_line(const char* line, int bytes) {
    if (bytes > 0 && ::write(g_setup.fd, line, static_cast<size_t>(bytes)) < 0) return;
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

void on_fatal_signal(int signal) {
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
    action.sa_handler = on_fatal_signal;
    action.sa_flags = static_cast<int>(SA_ONSTACK | SA_RESETHAND);
    for (int signal : kFatalSignals) ::sigaction(signal, &action, nullptr);
}

void stop_boot(std::string_view reason) {
    char line[1024];
    int bytes = snprintf(line, sizeof line, "berth: boot stopped: %.*s; powering off\n",
                         static_cast<int>(reason.size() < 900 ? reason.size() : 900), reason.data());
    write_line(line, bytes);
    power_off_now();
}

void power_off_now() {
    ::tcdrain(g_setup.fd);
    sys::end_machine(sys::PowerAction::kPowerOff);
    // Not the machine's PID 1 after all, or the kernel has no way to power off.
    ::_exit(70);
}

}  // namespace berth::keeper
