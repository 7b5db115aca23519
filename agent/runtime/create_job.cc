#include "agent/runtime/create_job.h"

#include <fcntl.h>

#include <cerrno>
#include <csignal>

#include "agent/core/cgroup_path.h"
#include "agent/core/device_filter.h"
#include "agent/core/device_nodes.h"
#include "agent/core/text.h"
#include "agent/runtime/container.h"
#include "agent/runtime/create_plans.h"
#include "agent/runtime/hook_run.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/stdio.h"
#include "agent/runtime/user_namespace.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/device_program.h"
#include "agent/sys/log.h"

namespace berth::runtime {

using core::Code;
using core::format;
using core::make_error;
using core::quoted;

CreateJob::CreateJob(Runtime& runtime, Container& container, CreateRequest request, Done<uint32_t> done)
    : runtime_(runtime),
      container_(container),
      request_(std::make_unique<CreateRequest>(std::move(request))),
      done_(std::move(done)),
      caller_(request_->caller) {
    container_.is_owners = request_->is_owners;
}

CreateJob::~CreateJob() = default;

core::Status CreateJob::plan(Plans& plans) {
    CreateRequest& request = *request_;
    core::ContainerSpec& spec = plans.spec;
    BERTH_TRY(complete_user_namespace(spec));
    // containerd says it in the request, the spec says it in process.terminal: either is enough.
    request.stdio.terminal = request.stdio.terminal || spec.process.terminal;
    spec.process.terminal = request.stdio.terminal;
    StdioRequest stdio{request.stdio.in,
                       request.stdio.out,
                       request.stdio.err,
                       request.stdio.terminal,
                       request.stdio.console,
                       spec.berth.drop_stdio,
                       nullptr};
    BERTH_TRY(check_stdio(stdio, request.passed.descriptors.size()));

    core::CgroupPowers powers;
    powers.writable_cgroup_mount = core::needs_two_cgroup_levels(spec);
    BERTH_TRY(plan_cgroup(plans, powers));
    BERTH_ASSIGN(plans.cgroup,
                 core::plan_resources({}, spec.resources, runtime_.guest().cgroup, core::PlanMode::kCreate));
    BERTH_TRY(plan_devices(spec));
    std::vector<core::DeviceRule> no_rules;
    BERTH_ASSIGN(plans.device_filter, core::build_device_filter(spec.resources.devices.value_or(no_rules), {},
                                                                container_.block_devices()));

    core::GuestFacts own_facts;
    const core::GuestFacts* known = &runtime_.guest().facts;
    if (core::names_block_devices(spec, request.rootfs)) {
        own_facts = *known;
        own_facts.block_devices = list_block_devices();  // the host may have attached one since the boot
        known = &own_facts;
    }
    const core::GuestFacts& facts = *known;
    core::ContainerLaunch launch;
    launch.spec = &spec;
    launch.facts = &facts;
    launch.id = container_.id.text();
    launch.bundle_dir = plans.bundle_dir;
    launch.source_bundle = plans.source_bundle;
    launch.rootfs = request.rootfs;
    launch.stdio = Runtime::stdio_layout(request.stdio, request.passed.files);
    BERTH_ASSIGN(container_.seccomp_profile, runtime_.seccomp_.profile(spec));
    launch.seccomp = runtime_.seccomp_programs(container_);
    BERTH_ASSIGN(plans.launch, core::plan_container(launch));
    BERTH_ASSIGN(container_.root_place, core::root_place_of(launch));
    return core::ok();
}

core::Status CreateJob::plan_devices(const core::ContainerSpec& spec) {
    std::vector<core::DeviceNodeRequest> nodes;
    for (const core::DeviceSpec& device : spec.devices)
        nodes.push_back({device.path, device.type, device.major, device.minor});
    if (container_.is_owners) {
        for (size_t i = 0; i < nodes.size(); ++i)
            BERTH_TRY(core::check_node_numbers(nodes[i], format("linux.devices[%zu]", i)));
        return core::ok();
    }
    return core::check_device_nodes(nodes, "linux.devices", char_device_exists);
}

core::Status CreateJob::apply(std::string_view json, Plans& plans) {
    for (const std::string& ignored : plans.spec.ignored) {
        sys::log(sys::LogLevel::kInfo, "spec.ignored", "%s: %s", container_.id.text().c_str(),
                 ignored.c_str());
    }
    for (const std::string& warning : plans.spec.process.warnings) {
        sys::log(sys::LogLevel::kWarn, "spec.warning", "%s: %s", container_.id.text().c_str(),
                 warning.c_str());
    }
    changed_ = true;
    CreateRequest& request = *request_;
    container_.containerd_namespace = request.containerd_namespace;
    container_.name = request.name;
    container_.bundle = request.bundle;
    container_.rootfs = std::move(request.rootfs);
    container_.cgroup_path = plans.layout.path;
    container_.created_at_ns = unix_time_ns();
    container_.resources_json = core::serialize_resources(plans.cgroup.merged);
    container_.stdio_drop = plans.spec.berth.drop_stdio;
    for (const auto& [key, value] : plans.spec.annotations) container_.annotations[key] = value;
    container_.set_init(std::make_unique<Process>(container_, core::ExecId(), request.stdio));
    container_.init().key = runtime_.new_process_key();
    runtime_.keys_[container_.init().key] = {&container_, ""};
    // The intent first: an agent that comes after a crash of ours takes all of it back.
    BERTH_TRY(container_.save(/*creating=*/true));
    BERTH_TRY(write_first_state_file(runtime_.config().run_dir, container_.id.text(), "config.json", json));
    BERTH_TRY(make_cgroups(plans));
    BERTH_TRY(arm_memory_watch());
    BERTH_TRY(launch(plans));
    container_.keep_for_execs(std::move(plans.spec));
    return core::ok();
}

core::Status CreateJob::arm_memory_watch() {
    if (!runtime_.guest().has_memory_controller) return core::ok();
    Container* container = &container_;
    BERTH_ASSIGN(
        container_.memory,
        MemoryWatch::begin(runtime_.loop(), container_.cgroup.outer, container_.cgroup.leaf(),
                           [container](const MemoryReading& reading) { container->on_memory(reading); }));
    container_.memory_total = container_.memory->first().total;
    container_.memory_local = container_.memory->first().local;
    return core::ok();
}

core::Status CreateJob::launch(Plans& plans) {
    Process& init = container_.init();
    init.passed = std::move(request_->passed);
    BERTH_TRY(runtime_.make_stdio(container_, init));
    LaunchSources sources;
    sources.cgroup = container_.cgroup.leaf().get();
    for (int i = 0; i < 3; ++i) sources.stdio[i] = init.stdio->child_fd(i);
    sources.passed = init.passed.descriptors;
    init.launch = Launch::create(runtime_.loop(), runtime_.spawner(), init);
    return init.launch->begin(init.key, std::move(plans.launch), sources);
}

void CreateJob::on_hook() {
    using core::HookKind;
    if (failing_) return;
    hooks_begun_ = true;
    container_.hook_run =
        HookRun::begin(runtime_, runtime_.containers_[container_.id.text()],
                       {HookKind::kPrestart, HookKind::kCreateRuntime, HookKind::kCreateContainer}, "created",
                       HookRun::OnFailure::kStop, [this](core::Status status) {
                           container_.hook_run.reset();
                           if (status.ok()) status = container_.init().launch->go();
                           if (!status.ok()) fail(std::move(status).error());
                       });
}

void CreateJob::on_ready() {
    if (failing_) return;
    // Not before: the program would refuse the set-up the block devices that the root is mounted from.
    // Nothing but the plan has run in the cgroup so far.
    if (auto set = sys::set_device_program(container_.cgroup.outer, device_program_->fd); !set.ok()) {
        return fail(std::move(set).error());
    }
    container_.init().stdio->when_connected([this](core::Status connected) {
        if (failing_) return;
        if (!connected.ok()) return fail(std::move(connected).error());
        finish();
    });
}

void CreateJob::finish() {
    Process& init = container_.init();
    // The gate is in the keeper's store before anybody is told of the container: it must outlive us.
    const int launch_fds[] = {init.launch->gate().get(), init.launch->plan_fd().get()};
    runtime_.keeper().store_all(container_.launch_prefix(core::ExecId()), launch_fds);
    init.launch_is_stored = true;
    init.status = TaskStatus::kCreated;
    init.stdio->close_child_fds();
    init.passed = PassedFiles();
    if (auto saved = container_.save(); !saved.ok()) return fail(std::move(saved).error());
    runtime_.device_programs_.keep(std::move(device_program_));
    v1::Event created = container_.event(core::ExecId());
    created.mutable_created()->set_pid(static_cast<uint32_t>(init.pid));
    uint32_t pid = static_cast<uint32_t>(init.pid);
    Runtime& runtime = runtime_;
    auto container = runtime.containers_[container_.id.text()];
    auto done = done_.take();
    std::unique_ptr<CreateJob> self =
        std::move(container->create_job);  // find() sees the container from here on
    runtime.events().emit(std::move(created), container.get());
    container->rootfs.clear();
    container->root_place = std::string();
    done(pid);
    if (init.held_exit) {
        core::ProcessRecord record = *init.held_exit;
        init.held_exit.reset();
        runtime.finish_exit(*container, init, record);
    }
}

void CreateJob::fail(core::Error error) {
    if (failing_) return;
    failing_ = true;
    error_ = std::move(error);
    for (loop::Op* op : {&open_op_, &read_op_}) {
        if (!op->pending()) continue;
        runtime_.loop().cancel(*op);  // its handler goes on
        return;
    }
    roll_back();
}

bool CreateJob::queue(CreateRequest& request, Done<uint32_t>& done) {
    if (!failing_ || next_ != nullptr) return false;
    next_ = std::make_unique<CreateRequest>(std::move(request));
    next_done_ = std::move(done);
    return true;
}

void CreateJob::cancel(const void* caller, core::Error why) {
    if (next_ != nullptr && next_->caller == caller) {
        next_.reset();
        next_done_.take()(std::move(why).within(Runtime::context("create", container_.id, core::ExecId())));
    } else if (caller_ == caller) {
        fail(std::move(why));
    }
}

void CreateJob::roll_back() {
    if (!changed_) return end(std::move(error_));
    if (container_.hook_run != nullptr) std::exchange(container_.hook_run, nullptr)->cancel();
    Process& init = container_.init();
    if (init.pidfd.valid()) (void)init.signal(SIGKILL);
    init.end_launch();
    if (init.held_exit) runtime_.keeper().acknowledge_exit(init.held_exit->key);
    runtime_.keys_.erase(init.key);
    init.stdio.reset();
    runtime_.streams().discard_process(container_.id.text(), "");
    runtime_.keeper().drop(container_.fd_prefix());
    if (container_.memory != nullptr) container_.memory->retire();
    container_.memory.reset();
    if (!container_.cgroup.valid()) return finish_roll_back();
    CgroupTeardown::begin(runtime_.loop(), runtime_.cgroup_place(container_.cgroup_path),
                          std::move(container_.cgroup.outer), [this](core::Status status) {
                              if (!status.ok()) {
                                  error_.message += "; and the clean-up: " + status.error().message;
                              }
                              finish_roll_back();
                          });
}

// What prestart and its like did is for poststop to undo.
void CreateJob::finish_roll_back() {
    if (!hooks_begun_ || !container_.spec.hooks.has(core::HookKind::kPoststop)) return end(std::move(error_));
    container_.hook_run =
        HookRun::begin(runtime_, runtime_.containers_[container_.id.text()], {core::HookKind::kPoststop},
                       "stopped", HookRun::OnFailure::kWarn, [this](core::Status) {
                           container_.hook_run.reset();
                           end(std::move(error_));
                       });
}

void CreateJob::end(core::Result<uint32_t> result) {
    Runtime& runtime = runtime_;
    std::string id = container_.id.text();
    auto container = runtime.containers_[id];
    std::unique_ptr<CreateJob> self = std::move(container->create_job);
    auto done = done_.take();
    if (changed_) {
        runtime.open_state_file().close();
        remove_state(runtime.config().run_dir, id);
    }
    runtime.containers_.erase(id);
    done(std::move(std::move(result).error())
             .within(Runtime::context("create", container->id, core::ExecId())));
    if (self->next_ != nullptr) runtime.create(std::move(*self->next_), self->next_done_.take());
    // `self` and the container end here; the caller of this function touches neither any more.
}

}  // namespace berth::runtime
