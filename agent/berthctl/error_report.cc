#include "agent/berthctl/error_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "agent/berthctl/json_text.h"
#include "agent/berthctl/values.h"
#include "agent/core/text.h"

namespace berth::ctl {

namespace {

// "No such file" -> "no such file", not "RFS ...".
std::string with_small_letter(std::string words) {
    if (words.size() > 1 && words[0] >= 'A' && words[0] <= 'Z' && words[1] >= 'a')
        words[0] = static_cast<char>(words[0] - 'A' + 'a');
    return words;
}

// "ENOENT" -> "no such file or directory"; empty when it is no errno's name.
std::string errno_words(std::string_view name) {
    constexpr int kLast = 133;
    for (int number = 1; number <= kLast; ++number) {
        if (core::errno_name(number) != name) continue;
        return with_small_letter(std::strerror(number));
    }
    return {};
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
}

// What crun says of a key of linux.resources.unified that is not one of the agent's; empty: it is about no
// such key.
std::string words_of_unified(std::string_view message) {
    constexpr std::string_view kBefore = "unified[\"";
    constexpr std::string_view kControllers[] = {"cgroup", "cpu",  "cpuset", "hugetlb", "io",
                                                 "memory", "misc", "pids",   "rdma"};
    size_t at = message.find(kBefore);
    if (at == message.npos || message.find("; allowed are ") == message.npos) return {};
    std::string_view key = message.substr(at + kBefore.size());
    key = key.substr(0, key.find("\"]"));
    std::string_view controller = key.substr(0, key.find('.'));
    if (controller.size() == key.size() || controller.empty())
        return "the specified key has not the form CONTROLLER.VALUE `" + std::string(key) + "`";
    if (std::find(std::begin(kControllers), std::end(kControllers), controller) == std::end(kControllers))
        return "the requested cgroup controller `" + std::string(controller) + "` is not available";
    return "no such file or directory for a container";
}

// `before`"NAME"`after`...: the name. Empty: not so.
std::string_view name_between(std::string_view message, std::string_view before, std::string_view after) {
    size_t at = message.find(before);
    if (at == message.npos) return {};
    std::string_view name = message.substr(at + before.size());
    size_t end = name.find(after);
    return end == name.npos ? std::string_view() : name.substr(0, end);
}

// What runc says of an errno where it was a program's or a cgroup's.
std::string words_with_place(std::string_view message, const std::string& words) {
    std::string_view program = name_between(message, ": exec \"", "\": execve: ");
    if (!program.empty()) return "exec " + std::string(program) + ": " + words;
    std::string_view cgroup = name_between(message, ": cgroup \"", "\": ");
    bool is_busy = message.ends_with("clone3: EBUSY");
    if (cgroup.empty() && !is_busy) return words;
    if (cgroup.starts_with('/')) cgroup.remove_prefix(1);
    return words + "; runc: adding pid of it to cgroups /" + std::string(cgroup) + (is_busy ? "" : "/") +
           "cgroup.procs: " + words;
}

// What others say of a message that has both parts in it, in this order.
struct Words {
    std::string_view part;
    std::string_view later;
    std::string_view words;
};
constexpr Words kWords[] = {
    {"(proc on ", ": ELOOP", "must be mounted on ordinary directory"},
    {"(sysfs on ", ": ELOOP", "must be mounted on ordinary directory"},
    {": cgroup \"", "\": is another container's", "container's cgroup is not empty"},
    {": cgroup \"", "\": not empty", "container's cgroup is not empty"},
    {": cgroup \"", "\": frozen", "container's cgroup unexpectedly frozen"},
    {"memory.limit: ", " (checkBeforeUpdate)", "rejecting memory limit"},
    {"memory.swap: ", " (checkBeforeUpdate)", "rejecting memory+swap limit"},
    {"linux.seccomp.listenerPath ", ": connect: ", "failed to connect with seccomp agent"},
    {"SCMP_ACT_NOTIFY on \"write\"", "", "SCMP_ACT_NOTIFY cannot be used for the write syscall"},
    {"process.scheduler", ": EPERM", "process scheduler can't be used together with AllowedCPUs"},
};

std::string words_of(std::string_view message) {
    constexpr std::string_view kKilled = "killed by signal ";
    if (size_t at = message.find(kKilled); at != message.npos) {
        std::string_view number = message.substr(at + kKilled.size());
        auto signal = core::parse_number<int>(number.substr(0, number.find_first_not_of("0123456789")));
        if (signal) return with_small_letter(::strsignal(*signal));
    }
    for (const Words& each : kWords) {
        size_t at = message.find(each.part);
        if (at != message.npos && message.find(each.later, at) != message.npos)
            return std::string(each.words);
    }
    return words_of_unified(message);
}

}  // namespace

core::Status Log::open(const Arguments& arguments) {
    debug_ = arguments.has("debug");
    std::string_view format = arguments.value("log-format", "text");
    if (format != "text" && format != "json")
        return core::invalid("--log-format must be text or json, is " + core::quoted(format));
    json_ = format == "json";
    std::string_view where = arguments.value("log");
    if (where.empty()) return core::ok();
    if (where.starts_with("file:")) {
        where.remove_prefix(5);
    } else if (size_t colon = where.find(':'); colon != where.npos && where.find('/') > colon) {
        return core::make_error(core::Code::kUnimplemented,
                                "--log " + core::quoted(where) + ": only files are supported");
    }
    std::string path(where);
    fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
    if (fd_ < 0) return core::errno_error(errno, "--log " + path);
    return core::ok();
}

void Log::write(std::string_view level, std::string_view message) const {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    std::string line = log_line(json_, level, message, int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
    // Nobody is there to be told of a log that cannot be written.
    ssize_t ignored = ::write(fd_ >= 0 ? fd_ : STDERR_FILENO, line.data(), line.size());
    (void)ignored;
}

std::string log_line(bool json, std::string_view level, std::string_view message, int64_t unix_ns) {
    std::string time = rfc3339(unix_ns);
    if (json) {
        JsonText out;
        out.begin_object();
        out.text("level", level);
        out.text("msg", message);
        out.text("time", time);
        out.end_object();
        return out.str() + "\n";
    }
    JsonText quoted;
    quoted.item(message);
    return "time=\"" + time + "\" level=" + std::string(level) + " msg=" + quoted.str() + "\n";
}

std::string told_message(const core::Error& error, std::string_view agent_id, std::string_view user_id) {
    std::string message = error.message;
    if (agent_id != user_id && !agent_id.empty())
        replace_all(message, core::quoted(agent_id), core::quoted(user_id));
    size_t colon = message.rfind(": ");
    std::string words = errno_words(colon == message.npos ? std::string_view(message)
                                                          : std::string_view(message).substr(colon + 2));
    if (!words.empty()) message += " (" + words_with_place(message, words) + ")";
    std::string_view outside = name_between(message, "bad sub cgroup path \"", "\"");
    if (!outside.empty()) message += " (path " + std::string(outside) + " is not a sub cgroup path)";
    if (error.code == core::Code::kNotFound && message.find("container \"") != message.npos &&
        message.ends_with(": not found"))
        message += " (container does not exist)";
    if (std::string also = words_of(message); !also.empty()) message += " (" + also + ")";
    if (error.code == core::Code::kInvalidArgument && user_id.find('/') != user_id.npos)
        message += " (invalid character `/` in the ID)";
    // What other runtimes say, which some of those who run them look for.
    constexpr std::pair<std::string_view, std::string_view> kAlso[] = {
        {"a container of that id exists", "already exists"},
        {"process already finished", "container not running"},
        {"is not stopped", "cannot delete container that is not stopped"},
    };
    for (const auto& [end, also] : kAlso) {
        if (message.ends_with(end)) message.append(" (").append(also).append(")");
    }
    return message;
}

std::string exec_failure_line(std::string_view told) {
    std::string_view program = name_between(told, ": exec \"", "\": execve: ");
    if (program.empty()) return {};
    std::string begin = "exec " + std::string(program) + ": ";
    std::string_view words = name_between(told, " (" + begin, ")");
    return words.empty() ? std::string() : begin + std::string(words);
}

}  // namespace berth::ctl
