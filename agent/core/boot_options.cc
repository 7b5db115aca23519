#include "agent/core/boot_options.h"

#include <optional>

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint32_t kAnyPort = 0xffffffff;  // VMADDR_PORT_ANY
constexpr size_t kHostnameBytes = 64;      // the kernel's __NEW_UTS_LEN
constexpr size_t kSocketPathBytes = 107;   // sockaddr_un.sun_path without its NUL

struct Word {
    std::string key;
    std::optional<std::string> value;
};

bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

// The next word, as the kernel's next_arg() cuts it: quotes protect spaces; a value or a whole word that
// begins with a quote loses it, and the one at its end.
std::optional<std::string_view> next_word(std::string_view& rest) {
    while (!rest.empty() && is_space(rest.front())) rest.remove_prefix(1);
    if (rest.empty()) return std::nullopt;
    bool quoted_part = false;
    size_t end = 0;
    while (end < rest.size() && (quoted_part || !is_space(rest[end]))) {
        if (rest[end] == '"') quoted_part = !quoted_part;
        ++end;
    }
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(end);
    return word;
}

std::string_view unquote(std::string_view text) {
    if (text.empty() || text.front() != '"') return text;
    text.remove_prefix(1);
    if (!text.empty() && text.back() == '"') text.remove_suffix(1);
    return text;
}

Word split_word(std::string_view word) {
    word = unquote(word);
    size_t equals = word.find('=');
    if (equals == std::string_view::npos) return {std::string(word), std::nullopt};
    return {std::string(word.substr(0, equals)), std::string(unquote(word.substr(equals + 1)))};
}

// `name` is the key or flag as the person wrote it, for the error.
Error bad_value(std::string_view name, std::string_view value, std::string_view want) {
    return invalid(format("%.*s=%s: must be %.*s", static_cast<int>(name.size()), name.data(),
                          quoted(value).c_str(), static_cast<int>(want.size()), want.data()));
}

Result<uint32_t> parse_port(std::string_view name, std::string_view value) {
    std::optional<uint32_t> port = parse_number<uint32_t>(value);
    if (!port || *port == 0 || *port == kAnyPort) return bad_value(name, value, "a port, 1 to 4294967294");
    return *port;
}

Result<bool> parse_switch(std::string_view name, std::string_view value) {
    if (value == "0") return false;
    if (value == "1") return true;
    return bad_value(name, value, "0 or 1");
}

bool is_hostname(std::string_view text) {
    if (text.empty() || text.size() > kHostnameBytes) return false;
    for (char c : text) {
        bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                    c == '.';
        if (!fine) return false;
    }
    auto is_edge = [](char c) { return c == '-' || c == '.'; };
    return !is_edge(text.front()) && !is_edge(text.back());
}

Status set_log_level(BootOptions& options, std::string_view name, std::string_view value) {
    constexpr std::string_view kLevels[] = {"error", "warn", "info", "debug"};
    for (uint8_t level = 0; level < 4; ++level) {
        if (value == kLevels[level]) {
            options.log_level = level;
            return ok();
        }
    }
    return bad_value(name, value, "error, warn, info or debug");
}

Status set_auth(BootOptions& options, std::string_view name, std::string_view value) {
    if (value != "secret" && value != "host-cid") return bad_value(name, value, "secret or host-cid");
    options.auth_host_cid = value == "host-cid";
    return ok();
}

// The options that keys and flags share. `option` is the bare name ("port"); false: no such option.
Result<bool> set_common(BootOptions& options, std::string_view option, std::string_view name,
                        std::string_view value) {
    if (option == "port") {
        BERTH_ASSIGN(options.port, parse_port(name, value));
    } else if (option == "ready") {
        BERTH_ASSIGN(options.ready_port, parse_port(name, value));
    } else if (option == "auth") {
        BERTH_TRY(set_auth(options, name, value));
    } else if (option == "log") {
        BERTH_TRY(set_log_level(options, name, value));
    } else {
        return false;
    }
    return true;
}

Result<bool> set_key(BootOptions& options, std::string_view key, std::string_view value) {
    std::string_view option = key.substr(key.find('.') + 1);
    BERTH_ASSIGN(bool is_common, set_common(options, option, key, value));
    if (is_common) return true;
    if (option == "allow_local") {
        BERTH_ASSIGN(options.allow_local_cid, parse_switch(key, value));
    } else if (option == "local") {
        BERTH_ASSIGN(options.local_socket, parse_switch(key, value));
    } else if (option == "hostname") {
        if (!is_hostname(value)) {
            return bad_value(key, value, "1 to 64 of A-Z a-z 0-9 - . with a letter or digit at both ends");
        }
        options.hostname = value;
    } else {
        return false;
    }
    return true;
}

bool contains(const std::vector<std::string>& list, std::string_view text) {
    for (const std::string& item : list) {
        if (item == text) return true;
    }
    return false;
}

// An absolute path without "." and ".." parts, double or trailing slashes.
bool is_plain_absolute(std::string_view path) {
    if (path.size() < 2 || path.size() > limits::kPathBytes || path.front() != '/') return false;
    for (std::string_view part : split(path.substr(1), '/')) {
        if (part.empty() || part == "." || part == "..") return false;
    }
    return path.find('\0') == std::string_view::npos;
}

Status set_listen(HelperOptions& options, std::string_view value) {
    constexpr std::string_view kUnix = "unix://";
    if (value == "vsock") {
        if (options.listen_vsock) return invalid("--listen vsock: given twice");
        options.listen_vsock = true;
        return ok();
    }
    if (value.starts_with(kUnix) && is_plain_absolute(value.substr(kUnix.size()))) {
        std::string_view path = value.substr(kUnix.size());
        if (!options.listen_unix.empty()) return invalid("--listen unix://...: given twice");
        if (path.size() > kSocketPathBytes) {
            return bad_value("--listen", value, format("a path of at most %zu bytes", kSocketPathBytes));
        }
        options.listen_unix = path;
        return ok();
    }
    return bad_value("--listen", value, "vsock or unix:///PATH");
}

Result<bool> set_flag(HelperOptions& options, std::string_view flag, std::string_view value) {
    BERTH_ASSIGN(bool is_common, set_common(options.boot, flag.substr(2), flag, value));
    if (is_common) return true;
    if (flag == "--secret-file") {
        if (value.empty()) return bad_value(flag, value, "a file");
        options.secret_file = value;
    } else if (flag == "--run-dir") {
        // "/berth.sock" is put behind it.
        if (!is_plain_absolute(value) || value.size() > 90) {
            return bad_value(flag, value, "an absolute path of at most 90 bytes");
        }
        options.run_dir = value;
    } else if (flag == "--cgroup-parent") {
        if (value != "/" && (!is_plain_absolute(value) || value.size() > 256)) {
            return bad_value(flag, value, "an absolute path in the cgroup2 hierarchy, of at most 256 bytes");
        }
        options.cgroup_parent = value == "/" ? std::string_view() : value;
    } else if (flag == "--cgroups-path") {
        if (value == "own") {
            options.cgroups_path_from = CgroupsPathFrom::kOwn;
        } else if (value == "mount") {
            options.cgroups_path_from = CgroupsPathFrom::kMount;
        } else if (value != "local") {
            return bad_value(flag, value, "\"local\", \"own\" or \"mount\"");
        }
    } else {
        return false;
    }
    return true;
}

}  // namespace

Result<BootOptions> parse_kernel_command_line(std::string_view text) {
    BootOptions options;
    std::vector<std::string> seen;
    while (std::optional<std::string_view> raw = next_word(text)) {
        Word word = split_word(*raw);
        if (!word.key.starts_with("berth.")) continue;
        // Its value must not be repeated on the console either.
        if (word.key == "berth.secret") {
            return invalid(
                "berth.secret: a secret on the kernel command line is readable in every container; "
                "use the file /berth/secret of the initramfs, fw_cfg or SMBIOS");
        }
        if (contains(seen, word.key)) return invalid(word.key + ": given twice");
        if (!word.value) return invalid(quoted(word.key) + ": needs a value");
        BERTH_ASSIGN(bool is_known, set_key(options, word.key, *word.value));
        if (!is_known) {
            return invalid(
                quoted(word.key) +
                ": unknown key; known: berth.port, ready, auth, log, allow_local, local, hostname");
        }
        seen.push_back(word.key);
    }
    return options;
}

bool ends_by_reset(std::string_view text) {
    while (std::optional<std::string_view> raw = next_word(text)) {
        Word word = split_word(*raw);
        if (word.key == "reboot" && word.value && !word.value->empty()) return true;
    }
    return false;
}

Result<HelperOptions> parse_helper_flags(std::span<const std::string_view> flags) {
    HelperOptions options;
    std::vector<std::string> seen;
    for (size_t i = 0; i < flags.size(); ++i) {
        std::string_view flag = flags[i].substr(0, flags[i].find('='));
        bool has_value = flag.size() < flags[i].size();
        if (!flag.starts_with("--")) return invalid(quoted(flags[i]) + ": not a flag of --helper");
        if (flag != "--listen" && contains(seen, flag)) return invalid(std::string(flag) + ": given twice");
        seen.emplace_back(flag);
        if (flag == "--allow-local") {
            if (has_value) return invalid("--allow-local: takes no value");
            options.boot.allow_local_cid = true;
            continue;
        }
        if (flag == "--secret")
            return invalid("--secret: every process can read it there; use --secret-file FILE");
        std::string_view value = has_value ? flags[i].substr(flag.size() + 1) : std::string_view();
        if (!has_value && i + 1 < flags.size()) value = flags[i + 1];
        bool is_missing = !has_value && i + 1 >= flags.size();
        // An unknown flag is named as such before its value is missed.
        Result<bool> is_known =
            flag == "--listen" && !is_missing ? Result<bool>(true) : set_flag(options, flag, value);
        if (is_known.ok() && !*is_known && flag != "--listen") {
            return invalid(
                quoted(flag) +
                ": unknown flag; known: --port --ready --auth --log --allow-local --secret-file --listen "
                "--run-dir --cgroup-parent --cgroups-path");
        }
        if (is_missing) return invalid(std::string(flag) + ": needs a value");
        if (!is_known.ok()) return std::move(is_known).error();
        if (flag == "--listen") BERTH_TRY(set_listen(options, value));
        if (!has_value) ++i;
    }
    if (contains(seen, "--cgroup-parent") && !contains(seen, "--cgroups-path"))
        options.cgroups_path_from = CgroupsPathFrom::kOwn;
    if (!options.listen_unix.empty() && options.secret_file.empty()) {
        return invalid("--listen unix://" + options.listen_unix + ": needs --secret-file");
    }
    if (options.listen_vsock && options.secret_file.empty() && !options.boot.auth_host_cid) {
        return invalid("--listen vsock: needs --secret-file or --auth host-cid");
    }
    options.boot.local_socket = true;
    return options;
}

Result<std::vector<std::string_view>> parse_module_list(std::string_view text) {
    std::vector<std::string_view> modules;
    for (std::string_view raw : split_lines(text)) {
        std::string_view line = trim(raw);
        if (line.empty() || line.front() == '#') continue;
        if (!is_plain_absolute(line))
            return invalid("berth.modules: " + quoted(line) + ": must be an absolute path");
        modules.push_back(line);
    }
    return modules;
}

}  // namespace berth::core
