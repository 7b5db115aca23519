// run, exec, attach: commands that end with the status of a process.
#include <sys/random.h>
#include <unistd.h>

#include "agent/berthctl/attach.h"
#include "agent/berthctl/command.h"
#include "agent/berthctl/config.h"
#include "agent/core/text.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

constexpr char kStreamUri[] = "stream://";
constexpr int kExecErrorStatus = 255;  // as runc: a status that is hardly the process's own

core::Status remove(Context& context, const std::string& id, const std::string& exec_id) {
    pb::task::ProcessRequest request;
    request.set_id(id);
    request.set_exec_id(exec_id);
    BERTH_TRY(task_call<pb::task::DeleteResponse>(context, "Delete", request));
    return core::ok();
}

core::Status start(Context& context, const std::string& id, const std::string& exec_id) {
    pb::task::ProcessRequest request;
    request.set_id(id);
    request.set_exec_id(exec_id);
    BERTH_TRY(task_call<pb::task::StartResponse>(context, "Start", request));
    return core::ok();
}

// Attaches to what was created and not started, starts it, and stays until it ends.
core::Result<int> start_attached(Context& context, const AttachTarget& target) {
    Attachment attachment(context.session, target);
    BERTH_TRY(attachment.open());
    BERTH_TRY(attachment.begin_wait());
    BERTH_TRY(start(context, target.container_id, target.exec_id));
    return attachment.pump();
}

// What a failed or finished command leaves behind is removed; the first error is the one to tell.
core::Result<int> remove_after(Context& context, const AttachTarget& target, core::Result<int> status) {
    core::Status removed = remove(context, target.container_id, target.exec_id);
    if (!removed.ok() && !status.ok()) return status;
    // A guest that is gone, or an id that another client deleted, does not change what the process said.
    if (!removed.ok() && removed.error().code != core::Code::kNotFound) {
        return std::move(removed).error();
    }
    return status;
}

template <typename Request>
void set_stdio(Request& request, bool with_streams, bool with_stdin) {
    if (!with_streams) return;
    if (with_stdin) request.set_stdin(kStreamUri);
    request.set_stdout(kStreamUri);
    if (!request.terminal()) request.set_stderr(kStreamUri);
}

core::Result<int> run(Context& context) {
    pb::task::CreateTaskRequest request;
    BERTH_TRY(fill_create(context.arguments, context.session.address(), request));
    request.set_id(context.word(0));
    bool detach = context.arguments.has("detach");
    bool with_stdin = !context.arguments.has("no-stdin");
    set_stdio(request, !detach, with_stdin);
    BERTH_TRY(task_call<pb::task::CreateTaskResponse>(context, "Create", request));
    AttachTarget target{request.id(), "", request.terminal(), with_stdin};
    if (detach) {
        core::Status started = start(context, request.id(), "");
        if (started.ok()) return 0;
        return remove_after(context, target, std::move(started).error());
    }
    core::Result<int> status = start_attached(context, target);
    if (status.ok() && context.arguments.has("keep")) return status;
    return remove_after(context, target, std::move(status));
}

core::Result<std::string> fresh_exec_id() {
    uint8_t random[8];
    if (::getrandom(random, sizeof(random), 0) != sizeof(random)) {
        return core::errno_error(errno, "getrandom");
    }
    return "exec-" + core::hex(random, sizeof(random));
}

// Where the container's own configuration can be read: the given bundle, or, beside the agent, what the agent
// was given.
core::Result<std::string> base_config(Context& context) {
    if (context.arguments.has("bundle")) {
        return std::string(context.arguments.value("bundle")) + "/config.json";
    }
    if (context.session.address().transport != client::Transport::kLocal) return std::string();
    pb::task::ProcessRequest request;
    request.set_id(context.word(0));
    BERTH_ASSIGN(pb::task::StateResponse state,
                 task_call<pb::task::StateResponse>(context, "State", request));
    std::string path = state.bundle() + "/config.json";
    return !state.bundle().empty() && ::access(path.c_str(), R_OK) == 0 ? path : std::string();
}

core::Result<int> exec(Context& context) {
    std::string base;
    if (!context.arguments.has("process")) {
        BERTH_ASSIGN(base, base_config(context));
    }
    std::span<const std::string_view> words(context.arguments.words());
    words = words.subspan(1);
    // As people write it for other engines: exec ID -- COMMAND.
    if (!words.empty() && words.front() == "--") words = words.subspan(1);
    BERTH_ASSIGN(std::string process, build_process(context.arguments, words, base));
    BERTH_ASSIGN(bool terminal, wants_terminal(process));
    pb::task::ExecProcessRequest request;
    request.set_id(context.word(0));
    BERTH_ASSIGN(std::string exec_id, fresh_exec_id());
    if (context.arguments.has("exec-id")) exec_id = context.arguments.value("exec-id");
    request.set_exec_id(exec_id);
    request.set_terminal(terminal);
    request.mutable_spec()->set_type_url(std::string(client::kProcessType));
    request.mutable_spec()->set_value(std::move(process));
    bool detach = context.arguments.has("detach");
    bool with_stdin = !context.arguments.has("no-stdin");
    set_stdio(request, !detach, with_stdin);
    BERTH_TRY(task_call<pb::Empty>(context, "Exec", request));
    AttachTarget target{request.id(), request.exec_id(), terminal, with_stdin};
    if (detach) {
        core::Status started = start(context, request.id(), request.exec_id());
        if (!started.ok()) return remove_after(context, target, std::move(started).error());
        print(request.exec_id() + "\n");
        return 0;
    }
    return remove_after(context, target, start_attached(context, target));
}

core::Result<int> attach(Context& context) {
    pb::task::ProcessRequest request;
    request.set_id(context.word(0));
    request.set_exec_id(std::string(context.arguments.value("exec-id")));
    BERTH_ASSIGN(pb::task::StateResponse state,
                 task_call<pb::task::StateResponse>(context, "State", request));
    Attachment attachment(context.session, {request.id(), request.exec_id(), state.terminal(),
                                            !context.arguments.has("no-stdin")});
    BERTH_TRY(attachment.open());
    BERTH_TRY(attachment.begin_wait());
    return attachment.pump();
}

constexpr Flag kInteractive = {"interactive", 'i', Kind::kSwitch, "connect standard input (the default)"};

constexpr Flag kRunFlags[] = {
    {"tty", 't', Kind::kSwitch, "give it a terminal, also when config.json does not"},
    kInteractive,
    {"bundle", 'b', Kind::kValue, "DIR  the directory with config.json (default: the current one)"},
    {"rootfs-mount", 0, Kind::kValue, "TYPE:SOURCE:OPTIONS  a mount of the root file system (repeatable)"},
    {"detach", 'd', Kind::kSwitch, "start it on /dev/null and return"},
    {"keep", 0, Kind::kSwitch, "do not delete the container when it has ended"},
    {"no-stdin", 0, Kind::kSwitch, "give it /dev/null as standard input"},
};

constexpr Flag kExecFlags[] = {
    {"tty", 't', Kind::kSwitch, "give it a terminal"},
    kInteractive,
    {"env", 'e', Kind::kValue, "NAME=VALUE  (repeatable)"},
    {"cwd", 0, Kind::kValue, "DIR  its working directory"},
    {"user", 'u', Kind::kValue, "UID[:GID]"},
    {"additional-gids", 'g', Kind::kValue, "GID  (repeatable)"},
    {"cap", 'c', Kind::kValue, "NAME  a further capability (repeatable)"},
    {"no-new-privs", 0, Kind::kSwitch, "no privileges by execve"},
    {"process", 'p', Kind::kValue, "FILE  the whole process object as JSON"},
    {"bundle", 'b', Kind::kValue, "DIR  take user, environment and the like from its config.json"},
    {"exec-id", 0, Kind::kValue, "ID  its name (default: a random one)"},
    {"detach", 'd', Kind::kSwitch, "start it on /dev/null, print its exec id and return"},
    {"no-stdin", 0, Kind::kSwitch, "give it /dev/null as standard input"},
};

constexpr Flag kAttachFlags[] = {
    {"exec-id", 0, Kind::kValue, "ID  an exec instead of the init"},
    {"no-stdin", 0, Kind::kSwitch, "only read"},
};

constexpr Command kCommands[] = {
    {"run", "[FLAGS] ID", "create and start a container, stay until it ends, delete it", kRunFlags, 1, 1,
     Arguments::Order::kMixed, 1, run},
    {"exec", "[FLAGS] ID [--] COMMAND [ARGUMENT...]", "run a further process in a container", kExecFlags, 1,
     SIZE_MAX, Arguments::Order::kStopAtFirstWord, kExecErrorStatus, exec},
    {"attach", "[FLAGS] ID", "connect to the streams of a running process, stay until it ends", kAttachFlags,
     1, 1, Arguments::Order::kMixed, 1, attach},
};

}  // namespace

std::span<const Command> run_commands() {
    return kCommands;
}

}  // namespace berth::ctl
