// create, run, exec, attach: commands that make a process, or end with the status of one.
#include <sys/random.h>
#include <unistd.h>

#include "agent/berthctl/attach.h"
#include "agent/berthctl/command.h"
#include "agent/berthctl/config.h"
#include "agent/berthctl/passing.h"
#include "agent/client/io.h"
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

core::Result<uint32_t> start(Context& context, const std::string& id, const std::string& exec_id) {
    pb::task::ProcessRequest request;
    request.set_id(id);
    request.set_exec_id(exec_id);
    BERTH_ASSIGN(pb::task::StartResponse response,
                 task_call<pb::task::StartResponse>(context, "Start", request));
    return response.pid();
}

core::Status tell_pid(Context& context, uint32_t pid) {
    const Arguments& arguments = context.arguments;
    if (arguments.has("pidfd-socket")) BERTH_TRY(send_pidfd(arguments.value("pidfd-socket"), pid));
    if (arguments.has("pid-file")) BERTH_TRY(write_pid_file(arguments.value("pid-file"), pid));
    return core::ok();
}

// Kills the process, and waits until it is gone: what follows is its deletion.
void end_process(Context& context, const AttachTarget& target) {
    pb::task::KillRequest kill;
    kill.set_id(target.container_id);
    kill.set_exec_id(target.exec_id);
    kill.set_all(target.exec_id.empty());
    kill.set_signal(9);
    if (!task_call<pb::Empty>(context, "Kill", kill).ok()) return;
    pb::task::ProcessRequest wait;
    wait.set_id(target.container_id);
    wait.set_exec_id(target.exec_id);
    (void)task_call<pb::task::WaitResponse>(context, "Wait", wait);
}

// Attaches to what was created and not started, starts it, and stays until it ends. An exec has its pid only
// now.
core::Result<int> start_attached(Context& context, const AttachTarget& target) {
    Attachment attachment(context.session, target);
    BERTH_TRY(attachment.open());
    BERTH_TRY(attachment.begin_wait());
    BERTH_ASSIGN(uint32_t pid, start(context, target.container_id, target.exec_id));
    if (!target.exec_id.empty()) {
        core::Status told = tell_pid(context, pid);
        if (!told.ok()) {
            end_process(context, target);
            return std::move(told).error();
        }
    }
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
void set_streams(Request& request, bool with_stdin) {
    if (with_stdin) request.set_stdin(kStreamUri);
    request.set_stdout(kStreamUri);
    if (!request.terminal()) request.set_stderr(kStreamUri);
}

// runc's rules: who lets go of a terminal has to say who takes it.
core::Status check_terminal(const Arguments& arguments, bool terminal, bool detach) {
    bool has_socket = arguments.has("console-socket");
    if (has_socket && !terminal) {
        return core::invalid(
            "--console-socket: cannot use console socket if the process has no terminal (process.terminal, "
            "--tty)");
    }
    if (terminal && detach && !has_socket) {
        return core::invalid(
            "cannot allocate tty if it will be detached without setting console socket (--console-socket)");
    }
    return core::ok();
}

// What becomes of a process's stdio.
struct Stdio {
    Passing passing;
    bool with_streams = false;
};

// Beside the agent a process gets the caller's own stdio, its terminal goes to the console socket. Streams
// are for all others, and for a terminal that is shown on the caller's.
template <typename Request>
core::Result<Stdio> choose_stdio(Context& context, Request& request, bool detach) {
    const Arguments& arguments = context.arguments;
    Stdio stdio;
    bool with_stdin = !arguments.has("no-stdin");
    if (!context.is_local()) {
        for (std::string_view flag : {"preserve-fds", "console-socket", "pidfd-socket"}) {
            if (arguments.has(flag)) {
                return core::make_error(
                    core::Code::kUnimplemented,
                    "--" + std::string(flag) + ": only beside the agent, on its local socket");
            }
        }
        stdio.with_streams = !detach;
    } else if (!request.terminal()) {
        BERTH_TRY(check_terminal(arguments, false, detach));
        stdio.passing.add_stdio(with_stdin);
        stdio.passing.fill_stdio(request);
    } else {
        BERTH_TRY(check_terminal(arguments, true, detach));
        stdio.with_streams = !arguments.has("console-socket");
        if (!stdio.with_streams) BERTH_TRY(stdio.passing.connect_console(arguments));
    }
    if (stdio.with_streams) set_streams(request, with_stdin);
    return stdio;
}

bool has_own_stdio(const Arguments& arguments) {
    return arguments.has("stdin") || arguments.has("stdout") || arguments.has("stderr");
}

// Creates the container of the command line under an id that is free.
core::Result<uint32_t> create_container(Context& context, pb::task::CreateTaskRequest& request,
                                        std::string config, Stdio& stdio) {
    std::string id = context.word(0);
    context.user_id = id;
    if (context.is_local()) {
        BERTH_TRY(stdio.passing.add_preserved(context.arguments, /*listen=*/true));
        v1::CreateOptions options;
        BERTH_ASSIGN(config, complete_config(std::move(config), stdio.passing.environment));
        options.set_spec(std::move(config));
        options.set_source_bundle(request.bundle());
        options.set_name(id);
        stdio.passing.fill(options);
        set_create_options(request, options);
    } else {
        set_spec(request, std::move(config));
    }
    request.set_id(id);
    context.agent_id = id;
    core::Result<pb::task::CreateTaskResponse> response =
        task_call<pb::task::CreateTaskResponse>(context, "Create", request, stdio.passing.descriptors());
    if (!response.ok() && response.error().code == core::Code::kAlreadyExists && context.names.has_root()) {
        // Another root's may have it; one of this root is in our way.
        core::Result<std::string> own = context.names.find(context.session, id);
        if (own.ok()) return std::move(response).error();
        request.set_id(context.names.other_id(id));
        context.agent_id = request.id();
        response =
            task_call<pb::task::CreateTaskResponse>(context, "Create", request, stdio.passing.descriptors());
    }
    if (!response.ok()) return std::move(response).error();
    core::Status told = tell_pid(context, response->pid());
    if (!told.ok()) {
        (void)remove(context, request.id(), "");
        return std::move(told).error();
    }
    return response->pid();
}

core::Result<int> create(Context& context) {
    pb::task::CreateTaskRequest request;
    BERTH_ASSIGN(std::string config, fill_create(context.arguments, request));
    Stdio stdio;
    if (has_own_stdio(context.arguments)) {
        request.set_stdin(std::string(context.arguments.value("stdin")));
        request.set_stdout(std::string(context.arguments.value("stdout")));
        request.set_stderr(std::string(context.arguments.value("stderr")));
    } else {
        BERTH_ASSIGN(stdio, choose_stdio(context, request, /*detach=*/true));
    }
    BERTH_ASSIGN(uint32_t pid, create_container(context, request, std::move(config), stdio));
    print_pid(context, context.user_id, pid);
    return 0;
}

core::Result<int> run(Context& context) {
    pb::task::CreateTaskRequest request;
    BERTH_ASSIGN(std::string config, fill_create(context.arguments, request));
    bool detach = context.arguments.has("detach");
    BERTH_ASSIGN(Stdio stdio, choose_stdio(context, request, detach));
    BERTH_TRY(create_container(context, request, std::move(config), stdio));
    AttachTarget target{request.id(), "", request.terminal(), !context.arguments.has("no-stdin"),
                        stdio.with_streams};
    if (detach) {
        core::Result<uint32_t> started = start(context, request.id(), "");
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
    set_process(request, context, std::move(process), stdio.passing, detach);
    BERTH_TRY(task_call<pb::Empty>(context, "Exec", request, stdio.passing.descriptors()));
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

constexpr Flag kInteractive = {"interactive", 'i', Kind::kSwitch, "connect standard input (the default)"};
constexpr Flag kBundle = {"bundle", 'b', Kind::kValue,
                          "DIR  the directory with config.json (default: the current one)"};
constexpr Flag kConfig = {"config", 'f', Kind::kValue, "FILE  instead of the bundle's config.json"};
constexpr Flag kRootfsMount = {"rootfs-mount", 0, Kind::kValue,
                               "TYPE:SOURCE:OPTIONS  a mount of the root file system (repeatable)"};
constexpr Flag kPidFile = {"pid-file", 0, Kind::kValue, "FILE  write the process's pid there"};
constexpr Flag kConsoleSocket = {"console-socket", 0, Kind::kValue,
                                 "PATH  a unix socket that is sent the terminal's master"};
constexpr Flag kPidfdSocket = {"pidfd-socket", 0, Kind::kValue, "PATH  a unix socket that is sent a pidfd"};
constexpr Flag kPreserveFds = {"preserve-fds", 0, Kind::kValue, "N  pass on descriptors 3 to 2+N"};
constexpr Flag kNoPivot = {"no-pivot", 0, Kind::kSwitch, "accepted; pivot_root works here"};
constexpr Flag kNoKeyring = {"no-new-keyring", 0, Kind::kSwitch, "accepted; the keyring is always a new one"};
constexpr Flag kNoSubreaper = {"no-subreaper", 0, Kind::kSwitch, "accepted; there is none"};
constexpr Flag kNoStdin = {"no-stdin", 0, Kind::kSwitch, "give it /dev/null as standard input"};

constexpr Flag kCreateFlags[] = {
    kBundle,
    kConfig,
    kRootfsMount,
    kPidFile,
    kConsoleSocket,
    kPidfdSocket,
    kPreserveFds,
    kNoPivot,
    kNoKeyring,
    kNoStdin,
    {"stdin", 0, Kind::kValue,
     "URI  stream://, vsock://PORT, file:///PATH (default: ours beside the agent, else /dev/null)"},
    {"stdout", 0, Kind::kValue, "URI"},
    {"stderr", 0, Kind::kValue, "URI"},
};

constexpr Flag kRunFlags[] = {
    {"tty", 't', Kind::kSwitch, "give it a terminal, also when config.json does not"},
    kInteractive,
    kBundle,
    kConfig,
    kRootfsMount,
    {"detach", 'd', Kind::kSwitch, "start it and return (stdio: ours beside the agent, else /dev/null)"},
    {"keep", 0, Kind::kSwitch, "do not delete the container when it has ended"},
    kPidFile,
    kConsoleSocket,
    kPidfdSocket,
    kPreserveFds,
    kNoPivot,
    kNoKeyring,
    kNoSubreaper,
    kNoStdin,
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
    {"create", "[FLAGS] ID", "make a container that waits to be started", kCreateFlags, 1, 1,
     Arguments::Order::kMixed, 1, create},
    {"run", "[FLAGS] ID", "create and start a container, stay until it ends, delete it", kRunFlags, 1, 1,
     Arguments::Order::kMixed, 1, run},
    {"exec", "[FLAGS] ID [--] COMMAND [ARGUMENT...]", "run a further process in a container", kExecFlags, 1,
     SIZE_MAX, Arguments::Order::kStopAtFirstWord, kExecErrorStatus, exec},
    {"attach", "[FLAGS] ID", "connect to the streams of a running process, stay until it ends", kAttachFlags,
     1, 1, Arguments::Order::kMixed, 1, attach},
};

}  // namespace

void print_pid(const Context& context, std::string_view id, uint32_t pid) {
    if (!context.json) return;
    JsonText out;
    out.begin_object();
    out.text("id", id);
    out.number("pid", pid);
    out.end_object();
    print(out.str() + "\n");
}

// The socket lies in the agent's run directory.
std::string agent_config_path(const Context& context, const std::string& id) {
    const std::string& socket = context.session.address().path;
    return socket.substr(0, socket.rfind('/') + 1) + "state/" + id + "/config.json";
}

std::span<const Command> run_commands() {
    return kCommands;
}

}  // namespace berth::ctl
