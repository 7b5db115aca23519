// create, start, kill, delete, pause, resume, update, wait, shutdown.
#include "agent/berthctl/command.h"
#include "agent/berthctl/config.h"
#include "agent/core/text.h"
#include "proto/berth/guest.pb.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

pb::task::ProcessRequest process_of(const Context& context) {
    pb::task::ProcessRequest request;
    request.set_id(context.word(0));
    request.set_exec_id(std::string(context.arguments.value("exec-id")));
    return request;
}

void print_pid(const Context& context, std::string_view id, uint32_t pid) {
    if (!context.json) return;
    JsonText out;
    out.begin_object();
    out.text("id", id);
    out.number("pid", pid);
    out.end_object();
    print(out.str() + "\n");
}

core::Result<int> create(Context& context) {
    pb::task::CreateTaskRequest request;
    BERTH_TRY(fill_create(context.arguments, context.session.address(), request));
    request.set_id(context.word(0));
    request.set_stdin(std::string(context.arguments.value("stdin")));
    request.set_stdout(std::string(context.arguments.value("stdout")));
    request.set_stderr(std::string(context.arguments.value("stderr")));
    BERTH_ASSIGN(pb::task::CreateTaskResponse response,
                 task_call<pb::task::CreateTaskResponse>(context, "Create", request));
    print_pid(context, request.id(), response.pid());
    return 0;
}

core::Result<int> start(Context& context) {
    pb::task::ProcessRequest request = process_of(context);
    BERTH_ASSIGN(pb::task::StartResponse response,
                 task_call<pb::task::StartResponse>(context, "Start", request));
    print_pid(context, request.id(), response.pid());
    return 0;
}

core::Result<int> kill(Context& context) {
    pb::task::KillRequest request;
    request.set_id(context.word(0));
    request.set_exec_id(std::string(context.arguments.value("exec-id")));
    request.set_all(context.arguments.has("all"));
    const auto& words = context.arguments.words();
    BERTH_ASSIGN(uint32_t signal, parse_signal(words.size() > 1 ? words[1] : "TERM"));
    request.set_signal(signal);
    BERTH_TRY(task_call<pb::Empty>(context, "Kill", request));
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

core::Result<int> remove(Context& context) {
    pb::task::ProcessRequest request = process_of(context);
    bool force = context.arguments.has("force");
    if (force) {
        pb::task::ProcessRequest state_request = request;
        core::Result<pb::task::StateResponse> state =
            task_call<pb::task::StateResponse>(context, "State", state_request);
        if (!state.ok() && state.error().code == core::Code::kNotFound) return 0;
        if (!state.ok()) return std::move(state).error();
        // An exec that was only added has no process to kill; a created container has one.
        bool has_process = state->status() != pb::task::CREATED || request.exec_id().empty();
        if (state->status() != pb::task::STOPPED && has_process) {
            BERTH_TRY(kill_and_wait(context, request));
        }
    }
    BERTH_ASSIGN(pb::task::DeleteResponse response,
                 task_call<pb::task::DeleteResponse>(context, "Delete", request));
    if (context.json) {
        JsonText out;
        out.begin_object();
        out.text("id", request.id());
        out.number("pid", response.pid());
        out.number("exitStatus", response.exit_status());
        out.text("exitedAt", rfc3339(response.exited_at().seconds(), response.exited_at().nanos()));
        out.end_object();
        print(out.str() + "\n");
    }
    return 0;
}

template <typename Response>
core::Result<int> container_call(Context& context, std::string_view method) {
    pb::task::ContainerRequest request;
    request.set_id(context.word(0));
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
    bool sandbox = context.arguments.has("sandbox");
    if (sandbox != context.arguments.words().empty()) return core::invalid("update: an ID or --sandbox");
    if (sandbox) {
        v1::SetSandboxResourcesRequest request;
        request.set_resources(std::move(resources));
        BERTH_TRY(context.session.call<pb::Empty>(client::kGuestService, "SetSandboxResources", request));
        return 0;
    }
    pb::task::UpdateTaskRequest request;
    request.set_id(context.word(0));
    request.mutable_resources()->set_type_url(std::string(client::kResourcesType));
    request.mutable_resources()->set_value(std::move(resources));
    BERTH_TRY(task_call<pb::Empty>(context, "Update", request));
    return 0;
}

core::Result<int> wait(Context& context) {
    pb::task::ProcessRequest request = process_of(context);
    BERTH_ASSIGN(pb::task::WaitResponse response,
                 task_call<pb::task::WaitResponse>(context, "Wait", request));
    if (!context.json) {
        print(core::format("%u\n", response.exit_status()));
        return 0;
    }
    JsonText out;
    out.begin_object();
    out.text("id", request.id());
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

constexpr Flag kCreateFlags[] = {
    {"bundle", 'b', Kind::kValue, "DIR  the directory with config.json (default: the current one)"},
    {"rootfs-mount", 0, Kind::kValue, "TYPE:SOURCE:OPTIONS  a mount of the root file system (repeatable)"},
    {"stdin", 0, Kind::kValue, "URI  stream://, vsock://PORT, file:///PATH (default: /dev/null)"},
    {"stdout", 0, Kind::kValue, "URI"},
    {"stderr", 0, Kind::kValue, "URI"},
};
constexpr Flag kKillFlags[] = {{"all", 'a', Kind::kSwitch, "every process of the container"}, kExecId};
constexpr Flag kDeleteFlags[] = {{"force", 'f', Kind::kSwitch, "kill it first; no error when there is none"},
                                 kExecId};
constexpr Flag kUpdateFlags[] = {
    {"resources", 'r', Kind::kValue, "FILE  linux.resources as JSON (\"-\": standard input)"},
    {"memory", 0, Kind::kValue, "BYTES"},
    {"memory-reservation", 0, Kind::kValue, "BYTES"},
    {"memory-swap", 0, Kind::kValue, "BYTES  memory and swap together"},
    {"cpu-period", 0, Kind::kValue, "MICROSECONDS"},
    {"cpu-quota", 0, Kind::kValue, "MICROSECONDS"},
    {"cpu-burst", 0, Kind::kValue, "MICROSECONDS"},
    {"cpu-share", 0, Kind::kValue, "SHARES"},
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
    {"create", "[FLAGS] ID", "make a container that waits to be started", kCreateFlags, 1, 1, kMixed, 1,
     create},
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
