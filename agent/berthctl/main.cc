// berthctl: drives an agent from a terminal or a script.
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "agent/berthctl/command.h"
#include "agent/client/address.h"
#include "agent/client/dial.h"
#include "agent/core/text.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

constexpr Flag kGlobalFlags[] = {
    {"address", 'a', Kind::kValue,
     "ADDRESS  vsock://CID:PORT, hvsock:///PATH:PORT, unix:///PATH or a local socket's path\n"
     "                         (default: $BERTH_ADDRESS, then /run/berth/berth.sock)"},
    {"secret-file", 's', Kind::kValue, "FILE  the guest's key (default: $BERTH_SECRET_FILE)"},
    {"timeout", 0, Kind::kValue, "TIME  give up after 5, 5s or 500ms (default: never)"},
    {"namespace", 0, Kind::kValue, "NAME  containerd's namespace, for the events of what is created"},
    {"json", 'j', Kind::kSwitch, "print for programs"},
    {"help", 'h', Kind::kSwitch, "print this"},
    {"version", 'v', Kind::kSwitch, "print the version of berthctl"},
};
// Behind a command the letters are the command's own.
constexpr Flag kGlobalFlagsAfter[] = {
    {"address", 0, Kind::kValue, {}}, {"secret-file", 0, Kind::kValue, {}},
    {"timeout", 0, Kind::kValue, {}}, {"namespace", 0, Kind::kValue, {}},
    {"json", 0, Kind::kSwitch, {}},   {"help", 'h', Kind::kSwitch, {}},
};

std::vector<const Command*> all_commands() {
    std::vector<const Command*> all;
    for (std::span<const Command> group :
         {run_commands(), lifecycle_commands(), report_commands(), event_commands()}) {
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
    return status;
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
    std::string_view text = arguments.value("timeout");
    bool is_ms = text.ends_with("ms");
    std::string_view digits = text;
    if (is_ms) {
        digits.remove_suffix(2);
    } else if (text.ends_with("s")) {
        digits.remove_suffix(1);
    }
    auto number = core::parse_number<uint32_t>(digits);
    int64_t milliseconds = static_cast<int64_t>(number.value_or(0)) * (is_ms ? 1 : 1000);
    if (milliseconds < 1 || milliseconds > 86'400'000) {
        return core::invalid("--timeout must be seconds (5, 5s) or milliseconds (500ms), at most a day");
    }
    return milliseconds;
}

core::Result<int> run_command(const Command& command, const Arguments& arguments) {
    BERTH_ASSIGN(client::Address address, address_of(arguments));
    BERTH_ASSIGN(client::Credentials credentials, credentials_of(arguments, address));
    BERTH_ASSIGN(int64_t timeout_ms, timeout_of(arguments));
    bool has_key = credentials.key.has_value() || address.transport == client::Transport::kLocal;
    client::Session session(std::move(address), std::move(credentials), timeout_ms);
    session.set_namespace(std::string(arguments.value("namespace")));
    Context context{arguments, session, arguments.has("json")};
    core::Result<int> status = command.run(context);
    if (!status.ok() && !has_key && client::is_disconnect(status.error())) {
        core::Error error = std::move(status).error();
        error.message += " (it may want a key: --secret-file)";
        return error;
    }
    return status;
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
        print("berthctl " BERTH_VERSION "\n");
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

std::string rfc3339(int64_t seconds, int32_t nanos) {
    time_t time = seconds;
    tm parts{};
    ::gmtime_r(&time, &parts);
    char text[32];
    size_t size = ::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
    return std::string(text, size) + core::format(".%09dZ", nanos);
}

std::string rfc3339(int64_t unix_ns) {
    return rfc3339(unix_ns / 1'000'000'000, static_cast<int32_t>(unix_ns % 1'000'000'000));
}

core::Result<uint32_t> parse_signal(std::string_view text) {
    if (auto number = core::parse_number<uint32_t>(text)) return *number;
    std::string_view name = text.starts_with("SIG") ? text.substr(3) : text;
    for (int signal = 1; signal < SIGRTMIN; signal++) {
        const char* known = ::sigabbrev_np(signal);
        if (known != nullptr && name == known) return static_cast<uint32_t>(signal);
    }
    return core::invalid("no signal " + core::quoted(text));
}

}  // namespace berth::ctl

int main(int argc, char** argv) {
    std::vector<std::string_view> words(argv + (argc > 0 ? 1 : 0), argv + argc);
    return berth::ctl::run_words(words);
}
