#include "agent/service/task_service.h"

#include "agent/runtime/stats.h"
#include "agent/runtime/stdio.h"
#include "agent/service/decode.h"
#include "proto/berth/guest.pb.h"
#include "proto/containerd/task.pb.h"

namespace berth::service {
namespace {

using core::format;
using core::quoted;

constexpr std::string_view kSpecType = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
constexpr std::string_view kProcessType = "types.containerd.io/opencontainers/runtime-spec/1/Process";
constexpr std::string_view kResourcesType =
    "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";
constexpr std::string_view kCreateOptionsType = "berth.v1.CreateOptions";
constexpr std::string_view kExecOptionsType = "berth.v1.ExecOptions";

struct ProcessIds {
    core::ContainerId id;
    core::ExecId exec_id;
};

// Both ids of a request, or nothing after the call was failed.
std::optional<ProcessIds> ids_or_fail(Call& call, const std::string& id, const std::string& exec_id) {
    auto parsed_id = value_or_fail(call, core::ContainerId::parse(id));
    if (!parsed_id) return std::nullopt;
    auto parsed_exec = value_or_fail(call, core::ExecId::parse(exec_id));
    if (!parsed_exec) return std::nullopt;
    return ProcessIds{std::move(*parsed_id), std::move(*parsed_exec)};
}

pb::task::Status wire_status(runtime::TaskStatus status) {
    return static_cast<pb::task::Status>(static_cast<uint8_t>(status));
}

template <typename Message>
void set_exit(Message& message, const runtime::ExitRecord& exit) {
    message.set_exit_status(exit.status);
    set_timestamp(*message.mutable_exited_at(), exit.at_unix_ns);
}

// "fd:N" of a field that takes nothing else.
core::Result<uint32_t> passed_index(const std::string& field, const std::string& text, size_t count) {
    BERTH_ASSIGN(runtime::StdioTarget target, runtime::parse_stdio_target(field, text));
    if (target.kind != runtime::StdioTarget::Kind::kPassed)
        return core::invalid(format("%s %s: must be fd:N", field.c_str(), quoted(text).c_str()));
    if (target.number >= count) {
        return core::invalid(
            format("%s %s: no such descriptor came with the request", field.c_str(), quoted(text).c_str()));
    }
    return target.number;
}

// What both kinds of options say of descriptors.
template <typename Options>
core::Status take_files(const Options& options, runtime::PassedFiles& passed, runtime::StdioPaths& stdio) {
    for (int i = 0; i < options.files_size(); ++i) {
        BERTH_ASSIGN(uint32_t index, passed_index(format("files[%d]", i), options.files(i).source(),
                                                  passed.descriptors.size()));
        passed.files.push_back({options.files(i).descriptor(), index});
    }
    stdio.plain_newlines = options.plain_newlines();
    if (options.console_socket().empty()) return core::ok();
    BERTH_ASSIGN(uint32_t index,
                 passed_index("console_socket", options.console_socket(), passed.descriptors.size()));
    passed.console = std::move(passed.descriptors[index]);
    stdio.console = true;
    return core::ok();
}

core::Status take_options(const pb::task::CreateTaskRequest& request, runtime::CreateRequest& create) {
    if (!request.has_options() || request.options().type_url().empty()) {
        if (!request.options().value().empty()) return core::invalid("options: a value without a type URL");
        return core::ok();
    }
    const pb::Any& options = request.options();
    if (options.type_url() == kSpecType) {
        if (options.value().empty()) return core::invalid("options: an empty runtime spec");
        create.spec_json = options.value();
        return core::ok();
    }
    if (options.type_url() == kCreateOptionsType) {
        v1::CreateOptions own;
        if (!own.ParseFromString(options.value()))
            return core::invalid("options: malformed berth.v1.CreateOptions");
        create.spec_json = own.spec();
        if (!own.source_bundle().empty() && own.source_bundle().front() != '/')
            return core::invalid("options.source_bundle: must be absolute");
        create.source_bundle = own.source_bundle();
        if (!own.name().empty()) {
            BERTH_ASSIGN(core::ContainerId name, core::ContainerId::parse(own.name()));
            create.name = name.text();
        }
        auto taken = take_files(own, create.passed, create.stdio);
        if (!taken.ok()) return std::move(taken).error().within("options");
        return core::ok();
    }
    return core::invalid(format("options: type URL %s is not known, only %s",
                                quoted(options.type_url()).c_str(), quoted(kSpecType).c_str()));
}

core::Status check_sub_cgroup(const std::string& path) {
    for (std::string_view part : core::split(path, '/')) {
        if (part == ".." || path.find('\0') != std::string::npos)
            return core::invalid("cgroup: bad sub cgroup path " + quoted(path));
    }
    return core::ok();
}

core::Status take_process(const pb::Any& spec, runtime::ExecRequest& exec) {
    if (spec.type_url() == kProcessType) {
        exec.process_json = spec.value();
        return core::ok();
    }
    if (spec.type_url() != kExecOptionsType) {
        return core::invalid(format("spec: type URL %s is not known, only %s",
                                    quoted(spec.type_url()).c_str(), quoted(kProcessType).c_str()));
    }
    v1::ExecOptions own;
    if (!own.ParseFromString(spec.value())) return core::invalid("spec: malformed berth.v1.ExecOptions");
    exec.process_json = own.process();
    exec.remove_when_ended = own.remove_when_ended();
    BERTH_TRY(check_sub_cgroup(own.cgroup()));
    exec.sub_cgroup = own.cgroup();
    return take_files(own, exec.passed, exec.stdio);
}

runtime::StdioPaths stdio_of(const std::string& in, const std::string& out, const std::string& err,
                             bool terminal) {
    return {in, out, err, terminal, false, false};
}

// Ends an operation of the runtime when its call runs out of time; a mere disconnect lets it finish.
void cancel_at_deadline(Call& call, runtime::Runtime& runtime, const ProcessIds& ids) {
    call.on_end([&runtime, ids, caller = &call](core::Code why) {
        if (why != core::Code::kDeadlineExceeded) return;
        runtime.cancel_launch(ids.id, ids.exec_id, caller,
                              core::make_error(why, "the caller's deadline passed"));
    });
}

void answer_pid_create(Call& call, core::Result<uint32_t> result) {
    if (!result.ok()) return call.fail(result.error());
    pb::task::CreateTaskResponse response;
    response.set_pid(*result);
    call.reply(response.SerializeAsString());
}

void answer_unit(Call& call, const core::Status& status) {
    if (!status.ok()) return call.fail(status.error());
    reply_empty(call);
}

// Root of a machine that has its own init, on that machine: it may make any device node itself, and enter any
// namespace. A guest's containers are its host's, whoever asks.
bool is_owners(const Call& call, const runtime::Runtime& runtime) {
    return call.is_local && runtime.config().is_helper != 0;
}

}  // namespace

void TaskService::create(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::CreateTaskRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), "");
    if (!ids) return;
    std::string context = format("create %s", quoted(request->id()).c_str());
    if (!request->checkpoint().empty() || !request->parent_checkpoint().empty()) {
        return call->fail(
            core::make_error(core::Code::kUnimplemented, context + ": checkpoint: not supported"));
    }
    runtime::CreateRequest create{
        .id = ids->id,
        .containerd_namespace = call->containerd_namespace,
        .bundle = request->bundle(),
        .spec_json = {},
        .rootfs = {},
        .stdio = stdio_of(request->stdin(), request->stdout(), request->stderr(), request->terminal()),
        .passed = {std::move(call->descriptors), {}, {}}};
    create.is_owners = is_owners(*call, runtime_);
    create.caller = call.get();
    if (auto taken = take_options(*request, create); !taken.ok())
        return call->fail(std::move(taken).error().within(context));
    for (const pb::Mount& mount : request->rootfs()) {
        core::RootfsMount& rootfs = create.rootfs.emplace_back();
        rootfs.type = mount.type();
        rootfs.source = mount.source();
        rootfs.target = mount.target();
        rootfs.options.assign(mount.options().begin(), mount.options().end());
    }
    cancel_at_deadline(*call, runtime_, *ids);
    runtime_.create(std::move(create),
                    [call](core::Result<uint32_t> result) { answer_pid_create(*call, std::move(result)); });
}

void TaskService::start(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ProcessRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    if (!ids->exec_id.is_init()) cancel_at_deadline(*call, runtime_, *ids);
    runtime_.start(ids->id, ids->exec_id, [call](core::Result<uint32_t> result) {
        if (!result.ok()) return call->fail(result.error());
        pb::task::StartResponse response;
        response.set_pid(*result);
        call->reply(response.SerializeAsString());
    });
}

void TaskService::remove(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ProcessRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    runtime_.remove(ids->id, ids->exec_id, [call](core::Result<runtime::DeleteOutcome> outcome) {
        if (!outcome.ok()) return call->fail(outcome.error());
        pb::task::DeleteResponse response;
        response.set_pid(static_cast<uint32_t>(outcome->pid));
        set_exit(response, outcome->exit);
        call->reply(response.SerializeAsString());
    });
}

void TaskService::exec(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ExecProcessRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    std::string context =
        format("exec %s in %s", quoted(request->exec_id()).c_str(), quoted(request->id()).c_str());
    if (ids->exec_id.is_init()) return call->fail(core::invalid(context + ": exec_id: empty"));
    runtime::ExecRequest exec{
        .id = ids->id,
        .exec_id = ids->exec_id,
        .process_json = {},
        .stdio = stdio_of(request->stdin(), request->stdout(), request->stderr(), request->terminal()),
        .passed = {std::move(call->descriptors), {}, {}}};
    exec.is_owners = is_owners(*call, runtime_);
    if (auto taken = take_process(request->spec(), exec); !taken.ok())
        return call->fail(std::move(taken).error().within(context));
    answer_unit(*call, runtime_.add_exec(std::move(exec)));
}

void TaskService::state(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ProcessRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    auto state = value_or_fail(*call, runtime_.state(ids->id, ids->exec_id));
    if (!state) return;
    pb::task::StateResponse response;
    response.set_id(request->id());
    response.set_exec_id(request->exec_id());
    response.set_bundle(state->bundle);
    response.set_pid(static_cast<uint32_t>(state->pid));
    response.set_status(wire_status(state->status));
    response.set_stdin(state->stdio.in);
    response.set_stdout(state->stdio.out);
    response.set_stderr(state->stdio.err);
    response.set_terminal(state->stdio.terminal);
    if (state->exited) set_exit(response, state->exit);
    call->reply(response.SerializeAsString());
}

void TaskService::pids(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ContainerRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), "");
    if (!ids) return;
    auto entries = value_or_fail(*call, runtime_.pids(ids->id));
    if (!entries) return;
    pb::task::PidsResponse response;
    for (const runtime::PidEntry& entry : *entries) {
        pb::task::ProcessInfo& process = *response.add_processes();
        process.set_pid(static_cast<uint32_t>(entry.pid));
        if (entry.exec_id.empty()) continue;
        process.mutable_info()->set_type_url("berth.v1.ExecId");
        process.mutable_info()->set_value(entry.exec_id);
    }
    call->reply(response.SerializeAsString());
}

void TaskService::pause(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ContainerRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), "");
    if (!ids) return;
    runtime_.pause(ids->id, [call](core::Status status) { answer_unit(*call, status); });
}

void TaskService::resume(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ContainerRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), "");
    if (!ids) return;
    runtime_.resume(ids->id, [call](core::Status status) { answer_unit(*call, status); });
}

void TaskService::checkpoint(std::shared_ptr<Call> call) {
    call->fail(core::make_error(core::Code::kUnimplemented, "Checkpoint: not supported"));
}

void TaskService::kill(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::KillRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    if (request->signal() < 1 || request->signal() > 64) {
        return call->fail(core::invalid(format("kill %s: signal: %u is not from 1 to 64",
                                               quoted(request->id()).c_str(), request->signal())));
    }
    answer_unit(*call,
                runtime_.kill(ids->id, ids->exec_id, static_cast<int>(request->signal()), request->all()));
}

void TaskService::resize_pty(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ResizePtyRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    if (request->width() > UINT16_MAX || request->height() > UINT16_MAX) {
        return call->fail(core::invalid(
            format("resize %s: width and height: at most 65535", quoted(request->id()).c_str())));
    }
    answer_unit(*call, runtime_.resize(ids->id, ids->exec_id, request->height(), request->width()));
}

void TaskService::close_io(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::CloseIORequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    if (!request->stdin()) return reply_empty(*call);  // containerd: nothing but stdin can be closed
    answer_unit(*call, runtime_.close_stdin(ids->id, ids->exec_id));
}

void TaskService::update(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::UpdateTaskRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), "");
    if (!ids) return;
    const pb::Any& resources = request->resources();
    if (resources.type_url() != kResourcesType) {
        return call->fail(core::invalid(
            format("update %s: resources: type URL %s is not known, only %s", quoted(request->id()).c_str(),
                   quoted(resources.type_url()).c_str(), quoted(kResourcesType).c_str())));
    }
    call->on_end([this, id = ids->id](core::Code why) {
        if (why != core::Code::kDeadlineExceeded) return;
        runtime_.cancel_update(id, core::make_error(why, "the caller's deadline passed"));
    });
    runtime_.update(ids->id, resources.value(), [call](core::Status status) { answer_unit(*call, status); });
}

void TaskService::wait(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ProcessRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), request->exec_id());
    if (!ids) return;
    auto waiter = runtime_.wait(ids->id, ids->exec_id, [call](const runtime::ExitRecord& exit) {
        pb::task::WaitResponse response;
        set_exit(response, exit);
        call->reply(response.SerializeAsString());
    });
    if (!waiter.ok()) return call->fail(waiter.error());
    if (!call->alive()) return;  // it had ended already
    call->on_end([this, ids = *ids, waiter = *waiter](core::Code) {
        runtime_.cancel_wait(ids.id, ids.exec_id, waiter);
    });
}

void TaskService::stats(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ContainerRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), "");
    if (!ids) return;
    auto container = value_or_fail(*call, runtime_.find(ids->id));
    if (!container) return;
    pb::task::StatsResponse response;
    response.mutable_stats()->set_type_url(runtime::kMetricsType);
    response.mutable_stats()->set_value(
        runtime::container_metrics(**container, runtime_.guest().cgroup.files));
    call->reply(response.SerializeAsString());
}

void TaskService::connect(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ContainerRequest>(*call);
    if (!request) return;
    auto ids = ids_or_fail(*call, request->id(), "");
    if (!ids) return;
    auto state = value_or_fail(*call, runtime_.state(ids->id, core::ExecId()));
    if (!state) return;
    pb::task::ConnectResponse response;
    response.set_shim_pid(static_cast<uint32_t>(getpid()));
    response.set_task_pid(static_cast<uint32_t>(state->pid));
    response.set_version(BERTH_VERSION);
    call->reply(response.SerializeAsString());
}

void TaskService::shutdown(std::shared_ptr<Call> call) {
    auto request = decode<pb::task::ShutdownRequest>(*call);
    if (!request) return;
    reply_empty(*call);
    runtime_.shutdown(request->now());
}

}  // namespace berth::service
