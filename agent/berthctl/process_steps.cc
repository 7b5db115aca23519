#include "agent/berthctl/process_steps.h"

#include "agent/berthctl/debug_notes.h"
#include "agent/core/text.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

constexpr char kStreamUri[] = "stream://";

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

}  // namespace

core::Status remove(Context& context, const std::string& id, const std::string& exec_id) {
    pb::task::ProcessRequest request;
    request.set_id(id);
    request.set_exec_id(exec_id);
    BERTH_TRY(task_call<pb::task::DeleteResponse>(context, "Delete", request));
    if (context.is_local() && exec_id.empty()) Notify::remove_folder(context.names.folder(context.user_id));
    return core::ok();
}

core::Result<uint32_t> start(Context& context, const std::string& id, const std::string& exec_id) {
    pb::task::ProcessRequest request;
    request.set_id(id);
    request.set_exec_id(exec_id);
    BERTH_ASSIGN(pb::task::StartResponse response,
                 task_call<pb::task::StartResponse>(context, "Start", request));
    note_start(context.log, !exec_id.empty());
    return response.pid();
}

core::Status tell_pid(Context& context, uint32_t pid) {
    const Arguments& arguments = context.arguments;
    if (arguments.has("pidfd-socket")) BERTH_TRY(send_pidfd(arguments.value("pidfd-socket"), pid));
    if (arguments.has("pid-file")) BERTH_TRY(write_pid_file(arguments.value("pid-file"), pid));
    return core::ok();
}

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

core::Result<int> start_attached(Context& context, const AttachTarget& target, Notify* notify) {
    Attachment attachment(context.session, target);
    if (notify != nullptr) attachment.set_notify(*notify);
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
        stdio.passing.plain_newlines = stdio.with_streams;
        if (!stdio.with_streams) BERTH_TRY(stdio.passing.connect_console(arguments));
    }
    if (stdio.with_streams) set_streams(request, with_stdin);
    return stdio;
}

template core::Result<Stdio> choose_stdio(Context&, pb::task::CreateTaskRequest&, bool);
template core::Result<Stdio> choose_stdio(Context&, pb::task::ExecProcessRequest&, bool);

}  // namespace berth::ctl
