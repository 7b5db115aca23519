#include "agent/berthctl/config.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "agent/berthctl/json_edit.h"
#include "agent/berthctl/json_text.h"
#include "agent/client/session.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/sys/fd.h"

namespace berth::ctl {

namespace {

using core::JsonValue;
using rapidjson::Document;

// {} when config.json has no process.
core::Result<Document> process_of_config(const std::string& path) {
    BERTH_ASSIGN(std::string text, read_file(path));
    BERTH_ASSIGN(Document config, parse_object(text, path));
    Document process(rapidjson::kObjectType);
    JsonValue* found = find_member(config, "process");
    if (found != nullptr && found->IsObject()) process.CopyFrom(*found, process.GetAllocator());
    return process;
}

// As runc: what is not named stays as the container's process has it.
core::Status set_user(std::string_view text, JsonValue& process, Document& document) {
    std::string_view group_text = "";
    size_t colon = text.find(':');
    if (colon != std::string_view::npos) {
        group_text = text.substr(colon + 1);
        text = text.substr(0, colon);
    }
    auto uid = core::parse_number<uint32_t>(text);
    auto gid = core::parse_number<uint32_t>(colon == std::string_view::npos ? "0" : group_text);
    if (!uid || !gid) return core::invalid("--user must be UID or UID:GID, both numbers");
    JsonValue& user = member(process, "user", JsonValue(rapidjson::kObjectType), document);
    set_member(user, "uid", JsonValue(*uid), document);
    if (colon != std::string_view::npos || !user.HasMember("gid"))
        set_member(user, "gid", JsonValue(*gid), document);
    return core::ok();
}

core::Status add_capability(std::string_view name, JsonValue& process, Document& document) {
    if (!name.starts_with("CAP_")) return core::invalid("--cap must be a name such as CAP_NET_ADMIN");
    JsonValue& sets = member(process, "capabilities", JsonValue(rapidjson::kObjectType), document);
    // runc's rule: who inherits capabilities inherits this one, too.
    bool inherits = !is_empty_list(sets, "inheritable");
    for (const char* set : {"bounding", "effective", "permitted", "inheritable", "ambient"}) {
        bool is_inherited = set[0] == 'i' || set[0] == 'a';
        if (is_inherited && !inherits) continue;
        JsonValue& names = member(sets, set, JsonValue(rapidjson::kArrayType), document);
        names.PushBack(string_value(name, document), document.GetAllocator());
    }
    return core::ok();
}

core::Status set_number(const Arguments& arguments, std::string_view flag, JsonValue& object,
                        const char* name, Document& document) {
    if (!arguments.has(flag)) return core::ok();
    std::string_view text = arguments.value(flag);
    if (flag.starts_with("memory")) {
        BERTH_ASSIGN(int64_t bytes, parse_bytes(flag, text));
        set_member(object, name, JsonValue(bytes), document);
        return core::ok();
    }
    auto number = core::parse_number<int64_t>(text);
    if (!number) return core::invalid("--" + std::string(flag) + ": " + core::quoted(text) + " is no number");
    set_member(object, name, JsonValue(*number), document);
    return core::ok();
}

core::Status set_numbers(const Arguments& arguments, Document& resources) {
    struct Entry {
        std::string_view flag;
        const char* object;
        const char* name;
    };
    static constexpr Entry kEntries[] = {
        {"memory", "memory", "limit"},
        {"memory-reservation", "memory", "reservation"},
        {"memory-swap", "memory", "swap"},
        {"cpu-period", "cpu", "period"},
        {"cpu-quota", "cpu", "quota"},
        {"cpu-share", "cpu", "shares"},
        {"pids-limit", "pids", "limit"},
        {"cpu-burst", "cpu", "burst"},
        {"cpu-idle", "cpu", "idle"},
        {"blkio-weight", "blockIO", "weight"},
        {"cpu-shares", "cpu", "shares"},
        {"cpu-rt-period", "cpu", "realtimePeriod"},
        {"cpu-rt-runtime", "cpu", "realtimeRuntime"},
    };
    for (const Entry& entry : kEntries) {
        if (!arguments.has(entry.flag)) continue;
        JsonValue& object = member(resources, entry.object, JsonValue(rapidjson::kObjectType), resources);
        BERTH_TRY(set_number(arguments, entry.flag, object, entry.name, resources));
    }
    // As runc's update: without a limit of memory there is none of memory and swap.
    if (arguments.has("memory") && arguments.value("memory") == "-1" && !arguments.has("memory-swap"))
        set_member(member(resources, "memory", JsonValue(rapidjson::kObjectType), resources), "swap",
                   JsonValue(-1), resources);
    return core::ok();
}

}  // namespace

core::Result<std::string> read_file(const std::string& path) {
    sys::UniqueFd opened;
    int fd = STDIN_FILENO;
    if (path != "-") {
        opened.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
        if (!opened.valid()) return core::errno_error(errno, path);
        fd = opened.get();
    }
    std::string text;
    char buffer[16 * 1024];
    for (;;) {
        ssize_t count = ::read(fd, buffer, sizeof(buffer));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return core::errno_error(errno, path);
        if (count == 0) return text;
        text.append(buffer, static_cast<size_t>(count));
        if (text.size() > limits::kSpecJsonBytes) {
            return core::make_error(core::Code::kResourceExhausted,
                                    path + core::format(": larger than %zu bytes", limits::kSpecJsonBytes));
        }
    }
}

core::Result<bool> wants_terminal(std::string_view process_json) {
    BERTH_ASSIGN(Document document, parse_object(process_json, "process"));
    JsonValue* process = &document;
    JsonValue* inner = find_member(document, "process");
    if (inner != nullptr && inner->IsObject()) process = inner;
    JsonValue* terminal = find_member(*process, "terminal");
    return terminal != nullptr && terminal->IsBool() && terminal->GetBool();
}

core::Result<int64_t> parse_bytes(std::string_view flag, std::string_view text) {
    core::Error wrong = core::invalid("--" + std::string(flag) + ": " + core::quoted(text) + " is no number");
    if (auto number = core::parse_number<int64_t>(text)) return *number;
    std::string_view unit = text;
    std::string digits;
    while (!unit.empty() && ((unit[0] >= '0' && unit[0] <= '9') || unit[0] == '.')) {
        digits += unit[0];
        unit.remove_prefix(1);
    }
    char* end = nullptr;
    double value = std::strtod(digits.c_str(), &end);
    while (unit.starts_with(' ')) unit.remove_prefix(1);
    if (digits.empty() || *end != '\0' || unit.empty()) return wrong;
    constexpr std::string_view kUnits = "bkmgtp";
    size_t power = kUnits.find(static_cast<char>(unit[0] | 0x20));
    unit.remove_prefix(1);
    bool is_known =
        unit.empty() || unit == "b" || unit == "B" || unit == "ib" || unit == "iB" || unit == "IB";
    if (power == kUnits.npos || !is_known) return wrong;
    for (size_t i = 0; i < power; ++i) value *= 1024;
    if (value >= 9.2e18) return wrong;
    return static_cast<int64_t>(value);
}

std::string rootfs_of(const std::string& config_path, const std::string& bundle) {
    core::Result<std::string> text = read_file(config_path);
    if (!text.ok()) return {};
    core::Result<Document> config = parse_object(*text, config_path);
    if (!config.ok()) return {};
    JsonValue* root = find_member(*config, "root");
    JsonValue* path = root != nullptr && root->IsObject() ? find_member(*root, "path") : nullptr;
    if (path == nullptr || !path->IsString()) return {};
    std::string found(path->GetString(), path->GetStringLength());
    return found.starts_with('/') ? found : bundle + "/" + found;
}

void set_spec(pb::task::CreateTaskRequest& request, std::string config) {
    request.mutable_options()->set_type_url(std::string(client::kSpecType));
    request.mutable_options()->set_value(std::move(config));
}

void set_create_options(pb::task::CreateTaskRequest& request, const v1::CreateOptions& options) {
    request.mutable_options()->set_type_url(std::string(client::kCreateOptionsType));
    request.mutable_options()->set_value(options.SerializeAsString());
}

core::Result<std::string> fill_create(const Arguments& arguments, pb::task::CreateTaskRequest& request) {
    std::string bundle(arguments.value("bundle", "."));
    char resolved[PATH_MAX];
    if (::realpath(bundle.c_str(), resolved) == nullptr) return core::errno_error(errno, "bundle " + bundle);
    std::string path = std::string(resolved) + (resolved[1] == '\0' ? "config.json" : "/config.json");
    if (arguments.has("config")) path = arguments.value("config");
    core::Result<std::string> read = read_file(path);
    if (!read.ok()) {
        core::Error error = std::move(read).error();
        if (error.err == ENOENT && !arguments.has("bundle") && !arguments.has("config")) {
            error.message += " (a bundle elsewhere: --bundle DIR)";
        }
        return error;
    }
    std::string config = std::move(read).value();
    core::Result<bool> terminal = wants_terminal(config);
    if (!terminal.ok()) return std::move(terminal).error().within(path);
    request.set_terminal(*terminal || arguments.has("tty"));
    request.set_bundle(resolved);
    for (std::string_view text : arguments.values("rootfs-mount")) {
        BERTH_ASSIGN(*request.add_rootfs(), parse_rootfs_mount(text));
    }
    return config;
}

core::Result<pb::Mount> parse_rootfs_mount(std::string_view text) {
    auto wrong = [&](std::string_view why) {
        return core::invalid("--rootfs-mount " + core::quoted(text) + ": " + std::string(why));
    };
    size_t colon = text.find(':');
    if (colon == std::string_view::npos || colon == 0) return wrong("must be TYPE:SOURCE:OPTIONS");
    pb::Mount mount;
    mount.set_type(std::string(text.substr(0, colon)));
    std::string_view rest = text.substr(colon + 1);
    size_t end = rest.find(':', rest.starts_with("serial:") ? 7 : 0);
    mount.set_source(std::string(rest.substr(0, end)));
    if (end == std::string_view::npos) return mount;
    rest = rest.substr(end + 1);
    if (rest.empty()) return mount;
    for (std::string_view option : core::split(rest, ',')) {
        if (option.empty()) return wrong("an option is empty");
        if (option.starts_with("target=")) {
            mount.set_target(std::string(option.substr(7)));
        } else {
            mount.add_options(std::string(option));
        }
    }
    return mount;
}

core::Result<std::string> build_process(const Arguments& arguments, std::span<const std::string_view> words,
                                        const std::string& base_config_path) {
    Document process(rapidjson::kObjectType);
    if (arguments.has("process")) {
        std::string path(arguments.value("process"));
        BERTH_ASSIGN(std::string text, read_file(path));
        BERTH_ASSIGN(process, parse_object(text, path));
    } else if (!base_config_path.empty()) {
        BERTH_ASSIGN(process, process_of_config(base_config_path));
        // They belong to the init alone.
        process.RemoveMember("args");
        process.RemoveMember("terminal");
        process.RemoveMember("consoleSize");
        // As crun: --no-new-privs says it. The agent holds all but the machine's own root to what the
        // container has.
        process.RemoveMember("noNewPrivileges");
    }
    if (!words.empty()) set_member(process, "args", string_array(words, process), process);
    if (!process.HasMember("args")) return core::invalid("exec: no command given");
    if (arguments.has("tty")) set_member(process, "terminal", JsonValue(true), process);
    if (arguments.has("cwd")) {
        set_member(process, "cwd", string_value(arguments.value("cwd"), process), process);
    }
    if (!process.HasMember("cwd")) set_member(process, "cwd", string_value("/", process), process);
    if (arguments.has("user")) BERTH_TRY(set_user(arguments.value("user"), process, process));
    if (!process.HasMember("user")) BERTH_TRY(set_user("0:0", process, process));
    if (!arguments.values("additional-gids").empty()) {
        JsonValue& user = member(process, "user", JsonValue(rapidjson::kObjectType), process);
        JsonValue& groups = member(user, "additionalGids", JsonValue(rapidjson::kArrayType), process);
        for (std::string_view text : arguments.values("additional-gids")) {
            auto gid = core::parse_number<uint32_t>(text);
            if (!gid) return core::invalid("--additional-gids must be numbers");
            groups.PushBack(JsonValue(*gid), process.GetAllocator());
        }
    }
    if (!process.HasMember("env")) {
        JsonValue env(rapidjson::kArrayType);
        set_environment("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", env, process);
        const char* term = ::getenv("TERM");
        if (arguments.has("tty") && term != nullptr) {
            set_environment(std::string("TERM=") + term, env, process);
        }
        set_member(process, "env", std::move(env), process);
    }
    JsonValue& env = member(process, "env", JsonValue(rapidjson::kArrayType), process);
    for (std::string_view assignment : arguments.values("env")) set_environment(assignment, env, process);
    for (std::string_view name : arguments.values("cap")) BERTH_TRY(add_capability(name, process, process));
    if (arguments.has("no-new-privs")) {
        set_member(process, "noNewPrivileges", JsonValue(true), process);
    }
    for (const auto& [flag, name] :
         {std::pair{"apparmor", "apparmorProfile"}, std::pair{"process-label", "selinuxLabel"}}) {
        if (arguments.has(flag))
            set_member(process, name, string_value(arguments.value(flag), process), process);
    }
    return json_text_of(process);
}

core::Result<std::string> build_resources(const Arguments& arguments) {
    Document resources(rapidjson::kObjectType);
    if (arguments.has("resources")) {
        std::string path(arguments.value("resources"));
        BERTH_ASSIGN(std::string text, read_file(path));
        BERTH_ASSIGN(resources, parse_object(text, path));
    }
    BERTH_TRY(set_numbers(arguments, resources));
    for (std::string_view list : {"cpuset-cpus", "cpuset-mems"}) {
        if (!arguments.has(list)) continue;
        JsonValue& cpu = member(resources, "cpu", JsonValue(rapidjson::kObjectType), resources);
        set_member(cpu, list == "cpuset-cpus" ? "cpus" : "mems",
                   string_value(arguments.value(list), resources), resources);
    }
    for (std::string_view pair : arguments.values("unified")) {
        size_t equals = pair.find('=');
        if (equals == std::string_view::npos) return core::invalid("--unified must be KEY=VALUE");
        JsonValue& unified = member(resources, "unified", JsonValue(rapidjson::kObjectType), resources);
        set_member(unified, std::string(pair.substr(0, equals)).c_str(),
                   string_value(pair.substr(equals + 1), resources), resources);
    }
    return json_text_of(resources);
}

}  // namespace berth::ctl
