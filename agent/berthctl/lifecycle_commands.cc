// start, kill, delete, pause, resume, update, wait, shutdown.
#include <regex.h>

#include "agent/berthctl/command.h"
#include "agent/berthctl/config.h"
#include "agent/berthctl/debug_notes.h"
#include "agent/berthctl/notify.h"
#include "agent/berthctl/unified_keys.h"
#include "agent/core/text.h"
#include "proto/berth/guest.pb.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

core::Result<pb::task::ProcessRequest> process_of(Context& context) {
    pb::task::ProcessRequest request;
    BERTH_ASSIGN(std::string id, context.container());
    request.set_id(id);
    request.set_exec_id(std::string(context.arguments.value("exec-id")));
    return request;
}

core::Result<int> start(Context& context) {
    BERTH_ASSIGN(pb::task::ProcessRequest request, process_of(context));
    bool may_notify = context.is_local() && request.exec_id().empty();
    Notify notify(may_notify ? context.names.folder(context.user_id) : std::string());
    BERTH_TRY(notify.listen());
    BERTH_ASSIGN(pb::task::StartResponse response,
                 task_call<pb::task::StartResponse>(context, "Start", request));
    note_start(context.log, !request.exec_id().empty());
    BERTH_TRY(notify.wait_ready(response.pid()));
    print_pid(context, context.user_id, response.pid());
    return 0;
}

// crun's --regex: every container of this root whose id the expression matches, as users call them.
core::Result<std::vector<std::string>> matching_ids(Context& context) {
    std::string expression = context.word(0);
    regex_t regex;
    if (::regcomp(&regex, expression.c_str(), REG_EXTENDED | REG_NOSUB) != 0)
        return core::invalid("--regex: " + core::quoted(expression) + " is no regular expression");
    core::Result<v1::ListResponse> response =
        context.session.call<v1::ListResponse>(client::kGuestService, "List", v1::ListRequest());
    std::vector<std::string> ids;
    if (response.ok()) {
        for (const v1::ContainerSummary& container : response->containers()) {
            std::string id = context.names.user_id(container.id());
            bool is_match = ::regexec(&regex, id.c_str(), 0, nullptr, 0) == 0;
            if (is_match && context.names.owns(container.namespace_())) ids.push_back(container.id());
        }
    }
    ::regfree(&regex);
    if (!response.ok()) return std::move(response).error();
    return ids;
}

core::Status kill_one(Context& context, const std::string& id, uint32_t signal) {
    if (signal == 0) {
        // Not a signal to send: is it there?
        pb::task::ProcessRequest request;
        request.set_id(id);
        BERTH_ASSIGN(pb::task::StateResponse state,
                     task_call<pb::task::StateResponse>(context, "State", request));
        // With --all a container that has ended has no process that could miss the signal, as for runc.
        if (state.status() != pb::task::STOPPED || context.arguments.has("all")) return core::ok();
        return core::make_error(core::Code::kNotFound, "container not running");
    }
    pb::task::KillRequest request;
    request.set_id(id);
    request.set_exec_id(std::string(context.arguments.value("exec-id")));
    request.set_all(context.arguments.has("all"));
    request.set_signal(signal);
    BERTH_TRY(task_call<pb::Empty>(context, "Kill", request));
    return core::ok();
}

core::Result<int> kill(Context& context) {
    const auto& words = context.arguments.words();
    BERTH_ASSIGN(uint32_t signal, parse_signal(words.size() > 1 ? words[1] : "TERM"));
    if (context.arguments.has("regex")) {
        BERTH_ASSIGN(std::vector<std::string> ids, matching_ids(context));
        for (const std::string& id : ids) BERTH_TRY(kill_one(context, id, signal));
        return 0;
    }
    BERTH_ASSIGN(std::string id, context.container());
    BERTH_TRY(kill_one(context, id, signal));
    return 0;
}

// Kills everything in the container and waits for its end. What is gone already is fine.
core::Status kill_and_wait(Context& context, const pb::task::ProcessRequest& request) {
    pb::task::KillRequest kill_request;
    kill_request.set_id(request.id());
    kill_request.set_exec_id(request.exec_id());
    kill_request.set_all(request.exec_id().empty());
    kill_request.set_signal(9);
    core::Result<pb::Empty> killed = task_call<pb::Empty>(context, "Kill", kill_request);
    if (!killed.ok() && killed.error().code != core::Code::kNotFound &&
        killed.error().code != core::Code::kFailedPrecondition) {
        return std::move(killed).error();
    }
    if (!killed.ok()) return core::ok();
    BERTH_TRY(task_call<pb::task::WaitResponse>(context, "Wait", request));
    return core::ok();
}

core::Status force_end(Context& context, const pb::task::ProcessRequest& request) {
    BERTH_ASSIGN(pb::task::StateResponse state,
                 task_call<pb::task::StateResponse>(context, "State", request));
    // An exec that was only added has no process to kill; a created container has one.
    bool has_process = state.status() != pb::task::CREATED || request.exec_id().empty();
    if (state.status() == pb::task::STOPPED || !has_process) return core::ok();
    return kill_and_wait(context, request);
}

core::Status remove_one(Context& context, const pb::task::ProcessRequest& request) {
    bool force = context.arguments.has("force");
    core::Status ended = force ? force_end(context, request) : core::ok();
    if (!ended.ok()) return ended;
    BERTH_ASSIGN(pb::task::DeleteResponse response,
                 task_call<pb::task::DeleteResponse>(context, "Delete", request));
    if (context.is_local() && request.exec_id().empty())
        Notify::remove_folder(context.names.folder(context.names.user_id(request.id())));
    if (context.json) {
        JsonText out;
        out.begin_object();
        out.text("id", context.names.user_id(request.id()));
        out.number("pid", response.pid());
        out.number("exitStatus", response.exit_status());
        out.text("exitedAt", rfc3339(response.exited_at().seconds(), response.exited_at().nanos()));
        out.end_object();
        print(out.str() + "\n");
    }
    return core::ok();
}

core::Result<int> remove(Context& context) {
    bool force = context.arguments.has("force");
    if (context.arguments.has("regex")) {
        BERTH_ASSIGN(std::vector<std::string> ids, matching_ids(context));
        for (const std::string& id : ids) {
            pb::task::ProcessRequest request;
            request.set_id(id);
            core::Status removed = remove_one(context, request);
            if (!removed.ok() && !(force && removed.error().code == core::Code::kNotFound))
                return std::move(removed).error();
        }
        return 0;
    }
    core::Result<pb::task::ProcessRequest> request = process_of(context);
    core::Status removed = request.ok() ? remove_one(context, *request) : core::Status(request.error());
    // Gone is what was asked for.
    if (!removed.ok() && !(force && removed.error().code == core::Code::kNotFound))
        return std::move(removed).error();
    return 0;
}

template <typename Response>
core::Result<int> container_call(Context& context, std::string_view method) {
    pb::task::ContainerRequest request;
    BERTH_ASSIGN(std::string id, context.container());
    request.set_id(id);
    BERTH_TRY(task_call<Response>(context, method, request));
    return 0;
}

core::Result<int> pause(Context& context) {
    return container_call<pb::Empty>(context, "Pause");
}

core::Result<int> resume(Context& context) {
    return container_call<pb::Empty>(context, "Resume");
}

core::Result<int> update(Context& context) {
    BERTH_ASSIGN(std::string resources, build_resources(context.arguments));
    BERTH_ASSIGN(bool any_unified, takes_any_unified(context, resources));
    if (any_unified) {
        BERTH_ASSIGN(resources, with_unified_keys_moved(resources));
    }
    bool sandbox = context.arguments.has("sandbox");
    if (sandbox != context.arguments.words().empty()) return core::invalid("update: an ID or --sandbox");
    if (sandbox) {
        v1::SetSandboxResourcesRequest request;
        request.set_resources(std::move(resources));
        BERTH_TRY(context.session.call<pb::Empty>(client::kGuestService, "SetSandboxResources", request));
        return 0;
    }
    pb::task::UpdateTaskRequest request;
    BERTH_ASSIGN(std::string id, context.container());
    request.set_id(id);
    request.mutable_resources()->set_type_url(std::string(client::kResourcesType));
    request.mutable_resources()->set_value(std::move(resources));
    BERTH_TRY(task_call<pb::Empty>(context, "Update", request));
    return 0;
}

core::Result<int> wait(Context& context) {
    BERTH_ASSIGN(pb::task::ProcessRequest request, process_of(context));
    BERTH_ASSIGN(pb::task::WaitResponse response,
                 task_call<pb::task::WaitResponse>(context, "Wait", request));
    if (!context.json) {
        print(core::format("%u\n", response.exit_status()));
        return 0;
    }
    JsonText out;
    out.begin_object();
    out.text("id", context.user_id);
    out.number("exitStatus", response.exit_status());
    out.text("exitedAt", rfc3339(response.exited_at().seconds(), response.exited_at().nanos()));
    out.end_object();
    print(out.str() + "\n");
    return 0;
}

core::Result<int> shutdown(Context& context) {
    pb::task::ShutdownRequest request;
    request.set_now(context.arguments.has("now"));
    core::Result<pb::Empty> done = task_call<pb::Empty>(context, "Shutdown", request);
    // The guest may be gone before its answer has left it.
    if (!done.ok() && !client::is_disconnect(done.error())) return std::move(done).error();
    return 0;
}

constexpr Flag kExecId = {"exec-id", 0, Kind::kValue, "ID  an exec instead of the init"};
constexpr Flag kExecIdFlags[] = {kExecId};

constexpr Flag kRegex = {"regex", 'r', Kind::kSwitch,
                         "ID is a regular expression: every container it matches"};
constexpr Flag kKillFlags[] = {
    {"all", 'a', Kind::kSwitch, "every process of the container"}, kRegex, kExecId};
constexpr Flag kDeleteFlags[] = {
    {"force", 'f', Kind::kSwitch, "kill it first; no error when there is none"}, kRegex, kExecId};
constexpr Flag kUpdateFlags[] = {
    {"resources", 'r', Kind::kValue, "FILE  linux.resources as JSON (\"-\": standard input)"},
    {"memory", 0, Kind::kValue, "BYTES  or with a unit: 64M"},
    {"memory-reservation", 0, Kind::kValue, "BYTES"},
    {"memory-swap", 0, Kind::kValue, "BYTES  memory and swap together"},
    {"cpu-period", 0, Kind::kValue, "MICROSECONDS"},
    {"cpu-quota", 0, Kind::kValue, "MICROSECONDS"},
    {"cpu-burst", 0, Kind::kValue, "MICROSECONDS"},
    {"cpu-share", 0, Kind::kValue, "SHARES"},
    {"cpu-shares", 0, Kind::kValue, "SHARES  the same"},
    {"cpu-rt-period", 0, Kind::kValue, "MICROSECONDS  refused: cgroup v2 has no such limit"},
    {"cpu-rt-runtime", 0, Kind::kValue, "MICROSECONDS  refused, too"},
    {"cpu-idle", 0, Kind::kValue, "0|1"},
    {"cpuset-cpus", 0, Kind::kValue, "LIST"},
    {"cpuset-mems", 0, Kind::kValue, "LIST"},
    {"pids-limit", 0, Kind::kValue, "COUNT"},
    {"blkio-weight", 0, Kind::kValue, "WEIGHT  10 to 1000"},
    {"unified", 0, Kind::kValue, "KEY=VALUE  (repeatable)"},
    {"sandbox", 0, Kind::kSwitch, "of the cgroup that all containers are in, instead of one"},
};
constexpr Flag kShutdownFlags[] = {{"now", 0, Kind::kSwitch, "also when containers are left"}};

constexpr Arguments::Order kMixed = Arguments::Order::kMixed;

constexpr Command kCommands[] = {
    {"start", "ID", "start what was created", kExecIdFlags, 1, 1, kMixed, 1, start},
    {"kill", "[FLAGS] ID [SIGNAL]", "send a signal (default: TERM)", kKillFlags, 1, 2, kMixed, 1, kill},
    {"delete", "[FLAGS] ID", "remove a container that has ended or never ran", kDeleteFlags, 1, 1, kMixed, 1,
     remove},
    {"pause", "ID", "freeze a container", {}, 1, 1, kMixed, 1, pause},
    {"resume", "ID", "thaw a container", {}, 1, 1, kMixed, 1, resume},
    {"update", "[FLAGS] ID", "change a container's limits, all or nothing", kUpdateFlags, 0, 1, kMixed, 1,
     update},
    {"wait", "[FLAGS] ID", "print the exit status once the process has ended", kExecIdFlags, 1, 1, kMixed, 1,
     wait},
    {"shutdown", "[--now]", "power the guest off", kShutdownFlags, 0, 0, kMixed, 1, shutdown},
};

}  // namespace

std::span<const Command> lifecycle_commands() {
    return kCommands;
}

}  // namespace berth::ctl
