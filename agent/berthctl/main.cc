// berthctl: drives an agent from a terminal or a script.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "agent/berthctl/command.h"
#include "agent/berthctl/documents.h"
#include "agent/berthctl/error_report.h"
#include "agent/client/address.h"
#include "agent/client/dial.h"
#include "agent/core/text.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

Log g_log;

constexpr Flag kGlobalFlags[] = {
    {"address", 'a', Kind::kValue,
     "ADDRESS  vsock://CID:PORT, hvsock:///PATH:PORT, unix:///PATH or a local socket's path\n"
     "                         (default: $BERTH_ADDRESS, then /run/berth/berth.sock)"},
    {"secret-file", 's', Kind::kValue, "FILE  the guest's key (default: $BERTH_SECRET_FILE)"},
    {"timeout", 0, Kind::kValue, "TIME  give up after 5, 5s or 500ms (default: never)"},
    {"namespace", 0, Kind::kValue, "NAME  containerd's namespace, for the events of what is created"},
    {"json", 'j', Kind::kSwitch, "print for programs"},
    {"timing", 0, Kind::kSwitch, "tell on standard error how long connecting and each call took"},
    {"root", 0, Kind::kValue, "DIR  containers of this folder only, with ids of their own"},
    {"log", 0, Kind::kValue, "FILE  errors go there, too"},
    {"log-format", 0, Kind::kValue, "text|json  of the log"},
    {"debug", 0, Kind::kSwitch, "tell of each call, in the log or on standard error"},
    {"cgroup-manager", 0, Kind::kValue, "cgroupfs|disabled  accepted: cgroups are the agent's in any case"},
    {"systemd-cgroup", 0, Kind::kSwitch, "refused: the agent has its own part of the cgroup tree"},
    {"rootless", 0, Kind::kValue, "auto|false  accepted"},
    {"criu", 0, Kind::kValue, "PATH  accepted, and of no use"},
    {"help", 'h', Kind::kSwitch, "print this"},
    {"version", 'v', Kind::kSwitch, "print the version of berthctl"},
};
// Behind a command the letters are the command's own.
constexpr Flag kGlobalFlagsAfter[] = {
    {"address", 0, Kind::kValue, {}}, {"secret-file", 0, Kind::kValue, {}},
    {"timeout", 0, Kind::kValue, {}}, {"namespace", 0, Kind::kValue, {}},
    {"json", 0, Kind::kSwitch, {}},   {"timing", 0, Kind::kSwitch, {}},
    {"help", 'h', Kind::kSwitch, {}},
};

std::vector<const Command*> all_commands() {
    std::vector<const Command*> all;
    for (std::span<const Command> group :
         {run_commands(), exec_commands(), lifecycle_commands(), report_commands(), stats_commands(),
          event_commands(), document_commands()}) {
        for (const Command& command : group) all.push_back(&command);
    }
    return all;
}

void print_flags(std::string& out, std::span<const Flag> flags) {
    for (const Flag& flag : flags) {
        std::string name = flag.letter != 0 ? core::format("-%c, --", flag.letter) : "    --";
        name += flag.name;
        out += core::format("  %-22s %.*s\n", name.c_str(), static_cast<int>(flag.help.size()),
                            flag.help.data());
    }
}

int print_usage() {
    std::string out = "usage: berthctl [FLAGS] COMMAND [FLAGS] [ARGUMENTS]\n\ncommands:\n";
    for (const Command* command : all_commands()) {
        out += core::format("  %-10.*s %.*s\n", static_cast<int>(command->name.size()), command->name.data(),
                            static_cast<int>(command->help.size()), command->help.data());
    }
    out += "\nflags:\n";
    print_flags(out, kGlobalFlags);
    out += "\nberthctl COMMAND --help tells more of one.\n";
    print(out);
    return 0;
}

int print_command_usage(const Command& command) {
    std::string out = "usage: berthctl " + std::string(command.name) + " " + std::string(command.usage) +
                      "\n" + std::string(command.help) + "\n";
    if (!command.flags.empty()) out += "\nflags:\n";
    print_flags(out, command.flags);
    print(out);
    return 0;
}

int fail(const core::Error& error, bool json, int status) {
    if (json) {
        JsonText out;
        out.begin_object();
        out.text("error", core::code_name(error.code));
        out.text("message", error.message);
        out.end_object();
        std::fprintf(stderr, "%s\n", out.str().c_str());
    } else {
        std::fprintf(stderr, "berthctl: %s\n", error.message.c_str());
    }
    if (g_log.is_open()) g_log.write("error", error.message);
    return status;
}

// What other runtimes' command lines say of how they manage cgroups and of who they are.
core::Status check_runtime_flags(const Arguments& arguments) {
    if (arguments.has("systemd-cgroup")) {
        return core::make_error(core::Code::kUnimplemented,
                                "--systemd-cgroup: cgroups are the agent's own, systemd is not asked");
    }
    std::string_view manager = arguments.value("cgroup-manager", "cgroupfs");
    if (manager == "systemd") {
        return core::make_error(
            core::Code::kUnimplemented,
            "--cgroup-manager=systemd: cgroups are the agent's own, systemd is not asked");
    }
    if (manager != "cgroupfs" && manager != "disabled")
        return core::invalid("--cgroup-manager: " + core::quoted(manager) + " is not known");
    // Of spec it is a switch.
    std::string_view rootless = arguments.value("rootless");
    if (!rootless.empty() && rootless != "auto" && rootless != "false" && rootless != "true")
        return core::invalid("--rootless must be true, false or auto");
    if (rootless == "true")
        return core::make_error(core::Code::kUnimplemented, "--rootless=true: the agent is root");
    return core::ok();
}

core::Result<client::Address> address_of(const Arguments& arguments) {
    std::string_view text = client::kDefaultLocalSocket;
    const char* environment = ::getenv("BERTH_ADDRESS");
    if (environment != nullptr && *environment != '\0') text = environment;
    return client::parse_address(arguments.value("address", text));
}

core::Result<client::Credentials> credentials_of(const Arguments& arguments, const client::Address& address) {
    const char* environment = ::getenv("BERTH_SECRET_FILE");
    std::string path(arguments.value("secret-file", environment != nullptr ? environment : ""));
    // The local socket asks for none: a variable that is meant for another address does no harm.
    if (path.empty() || address.transport == client::Transport::kLocal) return client::Credentials();
    return client::read_credentials(path);
}

core::Result<int64_t> timeout_of(const Arguments& arguments) {
    if (!arguments.has("timeout")) return int64_t{-1};
    return parse_timeout_ms(arguments.value("timeout"));
}

// In lines with CR: the terminal may be in raw mode.
void tell_timing(std::string_view what, int64_t, int64_t took_ns) {
    std::fprintf(stderr, "timing: %.*s %.3f ms\r\n", static_cast<int>(what.size()), what.data(),
                 static_cast<double>(took_ns) / 1e6);
}

void log_timing(std::string_view what, int64_t, int64_t took_ns) {
    g_log.write("debug", core::format("%.*s took %.3f ms", static_cast<int>(what.size()), what.data(),
                                      static_cast<double>(took_ns) / 1e6));
}

void tell_timing_json(std::string_view what, int64_t start_unix_ns, int64_t took_ns) {
    JsonText out;
    out.begin_object();
    out.text("timing", what);
    out.signed_number("startUnixNs", start_unix_ns);
    out.signed_number("tookNs", took_ns);
    out.end_object();
    std::fprintf(stderr, "%s\n", out.str().c_str());
}

core::Result<int> run_command(const Command& command, const Arguments& arguments) {
    BERTH_TRY(g_log.open(arguments));
    BERTH_TRY(check_runtime_flags(arguments));
    Names names;
    BERTH_TRY(names.open(arguments.value("root")));
    if (g_log.debug()) g_log.write("debug", "command " + std::string(command.name));
    BERTH_ASSIGN(client::Address address, address_of(arguments));
    BERTH_ASSIGN(client::Credentials credentials, credentials_of(arguments, address));
    BERTH_ASSIGN(int64_t timeout_ms, timeout_of(arguments));
    bool has_key = credentials.key.has_value() || address.transport == client::Transport::kLocal;
    client::Session session(std::move(address), std::move(credentials), timeout_ms);
    if (arguments.has("timing")) {
        session.set_timing_observer(arguments.has("json") ? tell_timing_json : tell_timing);
    }
    if (g_log.debug() && !arguments.has("timing")) session.set_timing_observer(log_timing);
    session.set_namespace(names.has_root() ? names.namespace_name()
                                           : std::string(arguments.value("namespace")));
    Context context{arguments, session, names, g_log, arguments.has("json")};
    core::Result<int> status = command.run(context);
    if (status.ok()) return status;
    core::Error error = std::move(status).error();
    if (!has_key && client::is_disconnect(error)) error.message += " (it may want a key: --secret-file)";
    error.message = told_message(error, context.agent_id, context.user_id);
    return error;
}

const Command* find_command(std::string_view name) {
    for (const Command* command : all_commands()) {
        if (command->name == name) return command;
    }
    return nullptr;
}

int run_words(std::span<const std::string_view> words) {
    Arguments global;
    const Flag* tables[] = {kGlobalFlags};
    const size_t sizes[] = {std::size(kGlobalFlags)};
    if (core::Status parsed = global.parse(words, tables, sizes, Arguments::Order::kStopAtFirstWord);
        !parsed.ok()) {
        return fail(parsed.error(), false, 1);
    }
    if (global.has("version")) {
        print("berthctl version " BERTH_VERSION "\nspec: " BERTH_SPEC_VERSION "\n");
        return 0;
    }
    if (global.words().empty()) return global.has("help") ? print_usage() : (print_usage(), 1);
    std::vector<std::string_view> rest = global.words();
    const Command* command = find_command(rest[0]);
    if (command == nullptr) {
        return fail(core::invalid("no command " + core::quoted(rest[0]) + "; see berthctl --help"),
                    global.has("json"), 1);
    }
    // The flags before the command, then those behind it, in one list.
    Arguments arguments;
    std::span<const std::string_view> before = words.first(words.size() - rest.size());
    core::Status parsed = arguments.parse(before, tables, sizes, Arguments::Order::kMixed);
    const Flag* command_tables[] = {command->flags.data(), kGlobalFlagsAfter};
    const size_t command_sizes[] = {command->flags.size(), std::size(kGlobalFlagsAfter)};
    if (parsed.ok()) {
        parsed = arguments.parse(std::span<const std::string_view>(rest).subspan(1), command_tables,
                                 command_sizes, command->order);
    }
    if (!parsed.ok()) {
        return fail(std::move(parsed).error().within(command->name), arguments.has("json"),
                    command->error_status);
    }
    if (arguments.has("help")) return print_command_usage(*command);
    size_t count = arguments.words().size();
    if (count < command->least_words || count > command->most_words) {
        return fail(core::invalid("usage: berthctl " + std::string(command->name) + " " +
                                  std::string(command->usage)),
                    arguments.has("json"), command->error_status);
    }
    core::Result<int> status = run_command(*command, arguments);
    // The program's own failure is the last line of the container's output, as with runc.
    std::string line = status.ok() || command->name != "run" ? "" : exec_failure_line(status.error().message);
    if (!line.empty() && !arguments.has("json")) {
        if (g_log.is_open() || g_log.debug()) g_log.write("error", status.error().message);
        std::fprintf(stderr, "%s\n", line.c_str());
        return command->error_status;
    }
    if (!status.ok()) return fail(status.error(), arguments.has("json"), command->error_status);
    return *status;
}

}  // namespace

void print(std::string_view text) {
    while (!text.empty()) {
        ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            std::fprintf(stderr, "berthctl: stdout: %s\n", core::errno_name(errno).c_str());
            std::_Exit(1);
        }
        text.remove_prefix(static_cast<size_t>(count));
    }
}

}  // namespace berth::ctl

int main(int argc, char** argv) {
    // Nothing that we open may come to lie where a program expects its stdio; close-on-exec marks it as ours.
    while (true) {
        int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0) break;
        if (fd <= STDERR_FILENO) continue;
        ::close(fd);
        break;
    }
    std::vector<std::string_view> words(argv + (argc > 0 ? 1 : 0), argv + argc);
    return berth::ctl::run_words(words);
}
