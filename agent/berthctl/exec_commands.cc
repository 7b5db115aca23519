// exec and attach: further processes of a container, and a second look at one.
#include <sys/random.h>
#include <unistd.h>

#include "agent/berthctl/attach.h"
#include "agent/berthctl/command.h"
#include "agent/berthctl/config.h"
#include "agent/berthctl/debug_notes.h"
#include "agent/berthctl/process_steps.h"
#include "agent/core/text.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

constexpr int kExecErrorStatus = 255;  // as runc: a status that is hardly the process's own

core::Result<std::string> fresh_exec_id() {
    uint8_t random[8];
    if (::getrandom(random, sizeof(random), 0) != sizeof(random)) {
        return core::errno_error(errno, "getrandom");
    }
    return "exec-" + core::hex(random, sizeof(random));
}

// Where the container's own configuration can be read: the given bundle, or, beside the agent, what the agent
// was given.
core::Result<std::string> base_config(Context& context, const std::string& id) {
    if (context.arguments.has("bundle")) {
        return std::string(context.arguments.value("bundle")) + "/config.json";
    }
    if (!context.is_local()) return std::string();
    std::string path = agent_config_path(context, id);
    return ::access(path.c_str(), R_OK) == 0 ? path : std::string();
}

// --ignore-paused: it comes to run when the container is resumed, as a process that was put into a frozen
// cgroup would.
core::Status check_paused(Context& context, const std::string& id) {
    constexpr int64_t kPauseMs = 50;
    for (;;) {
        pb::task::ProcessRequest request;
        request.set_id(id);
        BERTH_ASSIGN(pb::task::StateResponse state,
                     task_call<pb::task::StateResponse>(context, "State", request));
        if (state.status() == pb::task::STOPPED)
            return core::make_error(core::Code::kFailedPrecondition, "cannot exec in a stopped container");
        if (state.status() != pb::task::PAUSED && state.status() != pb::task::PAUSING) return core::ok();
        if (!context.arguments.has("ignore-paused")) {
            return core::make_error(core::Code::kFailedPrecondition,
                                    "cannot exec in a paused container (use --ignore-paused to override)");
        }
        ::usleep(kPauseMs * 1000);
    }
}

void set_process(pb::task::ExecProcessRequest& request, Context& context, std::string process,
                 const Passing& passing, bool detach) {
    if (!context.is_local()) {
        request.mutable_spec()->set_type_url(std::string(client::kProcessType));
        request.mutable_spec()->set_value(std::move(process));
        return;
    }
    v1::ExecOptions options;
    options.set_process(std::move(process));
    options.set_cgroup(std::string(context.arguments.value("cgroup")));
    // Nobody will ask for it: only who names an exec can.
    options.set_remove_when_ended(detach && !context.arguments.has("exec-id"));
    passing.fill(options);
    request.mutable_spec()->set_type_url(std::string(client::kExecOptionsType));
    request.mutable_spec()->set_value(options.SerializeAsString());
}

core::Result<int> exec_detached(Context& context, const AttachTarget& target) {
    core::Result<uint32_t> pid = start(context, target.container_id, target.exec_id);
    if (!pid.ok()) return remove_after(context, target, std::move(pid).error());
    core::Status told = tell_pid(context, *pid);
    if (!told.ok()) {
        end_process(context, target);
        return remove_after(context, target, std::move(told).error());
    }
    // The id is of use to who cannot pass a name and wants to attach; beside the agent the line is runc's:
    // none.
    if (!context.is_local() || context.json) print(target.exec_id + "\n");
    return 0;
}

core::Result<int> exec(Context& context) {
    BERTH_ASSIGN(std::string id, context.container());
    if (context.is_local()) BERTH_TRY(check_paused(context, id));
    std::string base;
    if (!context.arguments.has("process")) {
        BERTH_ASSIGN(base, base_config(context, id));
    }
    std::span<const std::string_view> words(context.arguments.words());
    words = words.subspan(1);
    // As people write it for other engines: exec ID -- COMMAND.
    if (!words.empty() && words.front() == "--") words = words.subspan(1);
    BERTH_ASSIGN(std::string process, build_process(context.arguments, words, base));
    BERTH_ASSIGN(bool terminal, wants_terminal(process));
    pb::task::ExecProcessRequest request;
    request.set_id(id);
    BERTH_ASSIGN(std::string exec_id, fresh_exec_id());
    if (context.arguments.has("exec-id")) exec_id = context.arguments.value("exec-id");
    request.set_exec_id(exec_id);
    request.set_terminal(terminal);
    bool detach = context.arguments.has("detach");
    BERTH_ASSIGN(Stdio stdio, choose_stdio(context, request, detach));
    if (context.is_local()) BERTH_TRY(stdio.passing.add_preserved(context.arguments, /*listen=*/false));
    set_process(request, context, process, stdio.passing, detach);
    BERTH_TRY(task_call<pb::Empty>(context, "Exec", request, stdio.passing.descriptors()));
    note_exec(context.log, process);
    AttachTarget target{request.id(), request.exec_id(), terminal, !context.arguments.has("no-stdin"),
                        stdio.with_streams};
    if (detach) return exec_detached(context, target);
    return remove_after(context, target, start_attached(context, target));
}

core::Result<int> attach(Context& context) {
    pb::task::ProcessRequest request;
    BERTH_ASSIGN(std::string id, context.container());
    request.set_id(id);
    request.set_exec_id(std::string(context.arguments.value("exec-id")));
    BERTH_ASSIGN(pb::task::StateResponse state,
                 task_call<pb::task::StateResponse>(context, "State", request));
    Attachment attachment(context.session, {request.id(), request.exec_id(), state.terminal(),
                                            !context.arguments.has("no-stdin")});
    BERTH_TRY(attachment.open());
    BERTH_TRY(attachment.begin_wait());
    return attachment.pump();
}

constexpr Flag kExecFlags[] = {
    {"tty", 't', Kind::kSwitch, "give it a terminal"},
    kInteractive,
    {"env", 'e', Kind::kValue, "NAME=VALUE  (repeatable)"},
    {"cwd", 0, Kind::kValue, "DIR  its working directory"},
    {"user", 'u', Kind::kValue, "UID[:GID]"},
    {"additional-gids", 'g', Kind::kValue, "GID  (repeatable)"},
    {"cap", 'c', Kind::kValue, "NAME  a further capability (repeatable)"},
    {"no-new-privs", 0, Kind::kSwitch, "no privileges by execve"},
    {"apparmor", 0, Kind::kValue, "PROFILE"},
    {"process-label", 0, Kind::kValue, "LABEL  of SELinux"},
    {"process", 'p', Kind::kValue, "FILE  the whole process object as JSON"},
    {"bundle", 'b', Kind::kValue, "DIR  take user, environment and the like from its config.json"},
    {"exec-id", 0, Kind::kValue, "ID  its name (default: a random one)"},
    {"detach", 'd', Kind::kSwitch, "start it and return (stdio: ours beside the agent, else /dev/null)"},
    {"ignore-paused", 0, Kind::kSwitch, "in a paused container: wait until it is resumed"},
    {"cgroup", 0, Kind::kValue, "PATH  a cgroup below the container's to run in"},
    kPidFile,
    kConsoleSocket,
    kPidfdSocket,
    kPreserveFds,
    {"no-subreaper", 0, Kind::kSwitch, "accepted; there is none"},
    kNoStdin,
};

constexpr Flag kAttachFlags[] = {
    {"exec-id", 0, Kind::kValue, "ID  an exec instead of the init"},
    {"no-stdin", 0, Kind::kSwitch, "only read"},
};

constexpr Command kCommands[] = {
    {"exec", "[FLAGS] ID [--] COMMAND [ARGUMENT...]", "run a further process in a container", kExecFlags, 1,
     SIZE_MAX, Arguments::Order::kStopAtFirstWord, kExecErrorStatus, exec},
    {"attach", "[FLAGS] ID", "connect to the streams of a running process, stay until it ends", kAttachFlags,
     1, 1, Arguments::Order::kMixed, 1, attach},
};

}  // namespace

// The socket lies in the agent's run directory.
std::string agent_config_path(const Context& context, const std::string& id) {
    const std::string& socket = context.session.address().path;
    return socket.substr(0, socket.rfind('/') + 1) + "state/" + id + "/config.json";
}

std::span<const Command> exec_commands() {
    return kCommands;
}

}  // namespace berth::ctl
