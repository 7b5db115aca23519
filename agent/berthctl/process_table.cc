#include "agent/berthctl/process_table.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include "agent/core/text.h"
#include "agent/sys/fd.h"

namespace berth::ctl {

namespace {

std::string read_all(int fd) {
    std::string text;
    char buffer[4096];
    for (;;) {
        ssize_t count = ::read(fd, buffer, sizeof(buffer));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return text;
        text.append(buffer, static_cast<size_t>(count));
    }
}

std::string read_proc(const char* path) {
    sys::UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    return file.valid() ? read_all(file.get()) : std::string();
}

std::vector<std::string_view> fields_of(std::string_view line) {
    std::vector<std::string_view> fields;
    for (std::string_view part : core::split(line, ' ')) {
        if (!part.empty()) fields.push_back(part);
    }
    return fields;
}

uint64_t number(std::string_view text) {
    return core::parse_number<uint64_t>(text).value_or(0);
}

// getpwuid() would drag name services into a static program.
std::string user_name(uint32_t uid) {
    const std::string table = read_proc("/etc/passwd");
    for (std::string_view line : core::split_lines(table)) {
        std::vector<std::string_view> parts = core::split(line, ':');
        if (parts.size() > 2 && core::parse_number<uint32_t>(parts[2]) == uid) return std::string(parts[0]);
    }
    return core::format("%u", uid);
}

std::string terminal_name(uint64_t device) {
    if (device == 0) return "?";
    uint64_t major = device >> 8 & 0xfff;
    uint64_t minor = (device & 0xff) | (device >> 12 & 0xfff00);
    if (major >= 136 && major <= 143)
        return core::format("pts/%llu", static_cast<unsigned long long>((major - 136) * 256 + minor));
    return core::format("%llu:%llu", static_cast<unsigned long long>(major),
                        static_cast<unsigned long long>(minor));
}

int64_t boot_time() {
    const std::string table = read_proc("/proc/stat");
    for (std::string_view line : core::split_lines(table)) {
        if (line.starts_with("btime ")) return static_cast<int64_t>(number(line.substr(6)));
    }
    return 0;
}

std::string command_of(uint32_t pid, std::string_view name) {
    std::string command = read_proc(core::format("/proc/%u/cmdline", pid).c_str());
    while (!command.empty() && command.back() == '\0') command.pop_back();
    std::replace(command.begin(), command.end(), '\0', ' ');
    return command.empty() ? "[" + std::string(name) + "]" : command;
}

std::string row_of(uint32_t pid, int64_t booted) {
    std::string folder = core::format("/proc/%u", pid);
    struct stat owner {};
    std::string text = read_proc((folder + "/stat").c_str());
    size_t open = text.find('(');
    size_t close = text.rfind(')');
    if (close == std::string::npos || ::stat(folder.c_str(), &owner) != 0) return {};
    // From the third on, behind the name in brackets: state, parent, ...
    std::vector<std::string_view> fields = fields_of(std::string_view(text).substr(close + 1));
    if (fields.size() < 20) return {};
    auto ticks = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
    uint64_t cpu_s = (number(fields[11]) + number(fields[12])) / ticks;
    time_t started = booted + static_cast<int64_t>(number(fields[19]) / ticks);
    tm parts{};
    ::localtime_r(&started, &parts);
    return core::format(
        "%-8s %7u %7s  0 %02d:%02d %-8s %02llu:%02llu:%02llu %s\n", user_name(owner.st_uid).c_str(), pid,
        std::string(fields[1]).c_str(), parts.tm_hour, parts.tm_min, terminal_name(number(fields[4])).c_str(),
        static_cast<unsigned long long>(cpu_s / 3600), static_cast<unsigned long long>(cpu_s / 60 % 60),
        static_cast<unsigned long long>(cpu_s % 60),
        command_of(pid, std::string_view(text).substr(open + 1, close - open - 1)).c_str());
}

}  // namespace

std::string process_table(std::span<const uint32_t> pids) {
    std::string table = "UID          PID    PPID  C STIME TTY          TIME CMD\n";
    int64_t booted = boot_time();
    for (uint32_t pid : pids) table += row_of(pid, booted);
    return table;
}

core::Result<std::string> filter_table(std::string_view table, std::span<const uint32_t> pids) {
    std::vector<std::string_view> lines = core::split_lines(table);
    std::vector<std::string_view> header =
        lines.empty() ? std::vector<std::string_view>() : fields_of(lines[0]);
    auto column = std::find(header.begin(), header.end(), "PID");
    if (column == header.end()) return core::invalid("ps: its table has no column PID");
    auto index = static_cast<size_t>(column - header.begin());
    std::string kept = std::string(lines[0]) + "\n";
    for (std::string_view line : std::span(lines).subspan(1)) {
        std::vector<std::string_view> fields = fields_of(line);
        if (fields.size() <= index) continue;
        auto pid = core::parse_number<uint32_t>(fields[index]);
        if (pid && std::find(pids.begin(), pids.end(), *pid) != pids.end()) kept.append(line).append("\n");
    }
    return kept;
}

core::Result<std::string> process_table_of_ps(std::span<const std::string_view> options,
                                              std::span<const uint32_t> pids) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return core::errno_error(errno, "pipe2");
    sys::UniqueFd output(ends[0]);
    sys::UniqueFd input(ends[1]);
    std::vector<std::string> words{"ps"};
    for (std::string_view option : options) words.emplace_back(option);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_t child = ::fork();
    if (child < 0) return core::errno_error(errno, "fork");
    if (child == 0) {
        ::dup2(input.get(), STDOUT_FILENO);
        ::execvp("ps", argv.data());
        ::_exit(127);
    }
    input.reset();
    std::string table = read_all(output.get());
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return core::make_error(core::Code::kNotFound, "ps: no such program");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return core::invalid("ps: failed");
    return filter_table(table, pids);
}

}  // namespace berth::ctl
