// How a failed command tells: one line on standard error, and one in --log.
#pragma once

#include <string>
#include <string_view>

#include "agent/berthctl/arguments.h"
#include "agent/core/result.h"

namespace berth::ctl {

// Where --log, --log-format and --debug say that lines go. Other runtimes' forms of --log are known: a path,
// "file:PATH"; "syslog:NAME" and "journald:NAME" are refused.
class Log {
 public:
    // INVALID_ARGUMENT for another format; an error when the file cannot be opened.
    core::Status open(const Arguments& arguments);
    bool is_open() const { return fd_ >= 0; }
    bool debug() const { return debug_; }
    // `level`: "error", "warning", "debug". To the file, or, without one, to standard error.
    void write(std::string_view level, std::string_view message) const;

 private:
    int fd_ = -1;  // as long as the program runs
    bool json_ = false;
    bool debug_ = false;
};

// The line of a log as other runtimes write it: {"level":...,"msg":...,"time":...}, or time="..." level=...
// msg="...".
std::string log_line(bool json, std::string_view level, std::string_view message, int64_t unix_ns);

// An agent's message with what people (and the test suites of other runtimes) look for: the kernel's reason
// in words behind its name, "container does not exist", "already exists"; `agent_id` as the user calls it.
std::string told_message(const core::Error& error, std::string_view agent_id, std::string_view user_id);

// Of a told message about a program that could not be executed, what a runtime without an agent leaves on the
// container's standard error: "exec /run.sh: no such file or directory". Empty when it is about something
// else.
std::string exec_failure_line(std::string_view told);

}  // namespace berth::ctl
