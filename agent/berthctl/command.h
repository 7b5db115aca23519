// What the commands of berthctl have in common.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/berthctl/arguments.h"
#include "agent/berthctl/error_report.h"
#include "agent/berthctl/json_text.h"
#include "agent/berthctl/names.h"
#include "agent/berthctl/values.h"
#include "agent/client/session.h"
#include "agent/core/result.h"

namespace berth::ctl {

struct Context {
    const Arguments& arguments;
    client::Session& session;
    Names& names;
    const Log& log;
    bool json = false;
    // The container that the command is about, once it is known, for messages.
    std::string agent_id{};
    std::string user_id{};

    // Beside the agent: files are its files, and descriptors can be passed.
    bool is_local() const { return session.address().transport == client::Transport::kLocal; }
    // The agent's id of the container that the n-th positional argument names.
    core::Result<std::string> container(size_t index = 0) {
        user_id = word(index);
        BERTH_ASSIGN(agent_id, names.find(session, user_id));
        return agent_id;
    }

    // The n-th positional argument; the usage was checked before.
    std::string word(size_t index) const { return std::string(arguments.words()[index]); }
};

// Prints to standard output and returns the exit status of berthctl, or an error to print.
using Run = core::Result<int> (*)(Context& context);

struct Command {
    std::string_view name;
    std::string_view usage;  // behind the name
    std::string_view help;   // one line
    std::span<const Flag> flags;
    size_t least_words;
    size_t most_words;
    Arguments::Order order;
    int error_status;  // what berthctl exits with when the command fails
    Run run;
};

// Each file's commands; main.cc joins them.
std::span<const Command> run_commands();
std::span<const Command> exec_commands();
std::span<const Command> lifecycle_commands();
std::span<const Command> report_commands();
std::span<const Command> stats_commands();
std::span<const Command> event_commands();
std::span<const Command> document_commands();

// {"id":...,"pid":...} with --json, nothing otherwise.
void print_pid(const Context& context, std::string_view id, uint32_t pid);

// Where the agent keeps the configuration of a container; beside the agent only.
std::string agent_config_path(const Context& context, const std::string& id);

// Writes to standard output whole; what cannot be written ends the program with status 1.
void print(std::string_view text);

// A call of the Task service: `Response` from `request`.
template <typename Response, typename Request>
core::Result<Response> task_call(Context& context, std::string_view method, const Request& request,
                                 std::span<const int> descriptors = {}) {
    return context.session.call<Response>(client::kTaskService, method, request, descriptors);
}

}  // namespace berth::ctl
