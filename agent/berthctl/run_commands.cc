// create and run.
#include <cstdio>

#include "agent/berthctl/attach.h"
#include "agent/berthctl/command.h"
#include "agent/berthctl/completion.h"
#include "agent/berthctl/config.h"
#include "agent/berthctl/debug_notes.h"
#include "agent/berthctl/notify.h"
#include "agent/berthctl/process_steps.h"
#include "agent/berthctl/unified_keys.h"
#include "agent/core/text.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

bool has_own_stdio(const Arguments& arguments) {
    return arguments.has("stdin") || arguments.has("stdout") || arguments.has("stderr");
}

// The configuration, and beside the agent what the container gets of our own.
core::Status set_options(Context& context, pb::task::CreateTaskRequest& request, std::string config,
                         Stdio& stdio, Notify& notify) {
    if (!context.is_local()) {
        set_spec(request, std::move(config));
        return core::ok();
    }
    BERTH_TRY(stdio.passing.add_preserved(context.arguments, /*listen=*/true));
    BERTH_TRY(notify.make_folder());
    std::vector<BindMount> mounts;
    if (notify.is_wanted()) {
        mounts.push_back(notify.mount());
        stdio.passing.environment.push_back(notify.variable());
    }
    BERTH_ASSIGN(bool any_unified, takes_any_unified(context, config));
    std::vector<std::string> warnings;
    BERTH_ASSIGN(config, complete_config(std::move(config),
                                         {stdio.passing.environment, mounts, any_unified, request.bundle()},
                                         &warnings));
    for (const std::string& warning : warnings)
        std::fprintf(stderr, "berthctl: warning: %s\n", warning.c_str());
    v1::CreateOptions options;
    options.set_spec(std::move(config));
    options.set_source_bundle(request.bundle());
    options.set_name(context.user_id);
    stdio.passing.fill(options);
    set_create_options(request, options);
    return core::ok();
}

// Sends the request, under an id that is free.
core::Result<uint32_t> send_create(Context& context, pb::task::CreateTaskRequest& request,
                                   const Stdio& stdio) {
    const std::string& id = context.user_id;
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
    note_creation(context.log);
    core::Status told = tell_pid(context, response->pid());
    if (!told.ok()) {
        (void)remove(context, request.id(), "");
        return std::move(told).error();
    }
    return response->pid();
}

// Creates the container of the command line.
core::Result<uint32_t> create_container(Context& context, pb::task::CreateTaskRequest& request,
                                        std::string config, Stdio& stdio, Notify& notify) {
    core::Status ready = set_options(context, request, std::move(config), stdio, notify);
    core::Result<uint32_t> pid =
        ready.ok() ? send_create(context, request, stdio) : core::Result<uint32_t>(std::move(ready).error());
    if (!pid.ok()) notify.undo();
    return pid;
}

Notify notify_of(Context& context) {
    context.user_id = context.word(0);
    return Notify(context.is_local() ? context.names.folder(context.user_id) : std::string());
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
    Notify notify = notify_of(context);
    BERTH_ASSIGN(uint32_t pid, create_container(context, request, std::move(config), stdio, notify));
    print_pid(context, context.user_id, pid);
    return 0;
}

core::Result<int> run(Context& context) {
    pb::task::CreateTaskRequest request;
    BERTH_ASSIGN(std::string config, fill_create(context.arguments, request));
    bool detach = context.arguments.has("detach");
    BERTH_ASSIGN(Stdio stdio, choose_stdio(context, request, detach));
    Notify notify = notify_of(context);
    BERTH_TRY(create_container(context, request, std::move(config), stdio, notify));
    AttachTarget target{request.id(), "", request.terminal(), !context.arguments.has("no-stdin"),
                        stdio.with_streams};
    core::Status listening = notify.listen();
    if (!listening.ok()) return remove_after(context, target, std::move(listening).error());
    if (detach) {
        core::Result<uint32_t> started = start(context, request.id(), "");
        if (!started.ok()) return remove_after(context, target, std::move(started).error());
        BERTH_TRY(notify.wait_ready(*started));
        return 0;
    }
    core::Result<int> status = start_attached(context, target, &notify);
    if (status.ok() && context.arguments.has("keep")) return status;
    return remove_after(context, target, std::move(status));
}

constexpr Flag kBundle = {"bundle", 'b', Kind::kValue,
                          "DIR  the directory with config.json (default: the current one)"};
constexpr Flag kConfig = {"config", 'f', Kind::kValue, "FILE  instead of the bundle's config.json"};
constexpr Flag kRootfsMount = {"rootfs-mount", 0, Kind::kValue,
                               "TYPE:SOURCE:OPTIONS  a mount of the root file system (repeatable)"};
constexpr Flag kNoPivot = {"no-pivot", 0, Kind::kSwitch, "accepted; pivot_root works here"};
constexpr Flag kNoKeyring = {"no-new-keyring", 0, Kind::kSwitch, "accepted; the keyring is always a new one"};

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

constexpr Command kCommands[] = {
    {"create", "[FLAGS] ID", "make a container that waits to be started", kCreateFlags, 1, 1,
     Arguments::Order::kMixed, 1, create},
    {"run", "[FLAGS] ID", "create and start a container, stay until it ends, delete it", kRunFlags, 1, 1,
     Arguments::Order::kMixed, 1, run},
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

std::span<const Command> run_commands() {
    return kCommands;
}

}  // namespace berth::ctl
