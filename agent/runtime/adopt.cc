// A new agent takes over from one that ended: containers, processes, counters and events go on as if nothing
// had been.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>

#include "agent/core/cgroup_mount.h"
#include "agent/core/cgroup_path.h"
#include "agent/core/text.h"
#include "agent/runtime/cgroup_teardown.h"
#include "agent/runtime/guest_facts.h"
#include "agent/runtime/log_replay.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/stdio.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

std::unique_ptr<Process> process_of(Container& container, core::ExecId exec_id,
                                    const pb::state::Process& state) {
    StdioPaths paths{state.stdin(),    state.stdout(), state.stderr(),
                     state.terminal(), false,          state.plain_newlines()};
    auto process = std::make_unique<Process>(container, std::move(exec_id), std::move(paths));
    process->key = state.key();
    process->pid = state.pid();
    process->status = static_cast<TaskStatus>(state.status());
    process->spec_json = state.spec();
    process->stdin_closed = state.stdin_closed();
    process->is_owners = state.is_owners();
    process->added_sequence = state.added_sequence();
    process->start_sequence = state.start_sequence();
    process->sub_cgroup = state.sub_cgroup();
    process->with_passed_files = state.with_descriptors();
    process->remove_when_ended = state.remove_when_ended();
    if (process->status == TaskStatus::kStopped) {
        process->exit = ExitRecord{state.exit_status(), state.exited_at_ns(), state.oom_likely()};
    }
    return process;
}

bool is_readable(sys::FdRef fd) {
    pollfd item{fd.get(), POLLIN, 0};
    return poll(&item, 1, 0) > 0;
}

// The child's end of the gate is closed, and it had nothing more to say: no failed step. Of one that was let
// go it means that it became its program, of any other that it was killed: whether its pidfd says so yet does
// not matter (the kernel closes the files of what it ends before it tells of the end).
bool has_ended_well(sys::FdRef gate) {
    std::byte byte;
    return recv(gate.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

}  // namespace

core::Status Runtime::adopt(Welcome& welcome) {
    BERTH_TRY(make_state_directories(config_.run_dir));
    sandbox_.reset(open(config_.cgroup_root, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!sandbox_.valid()) return core::errno_error(errno, std::string("open ") + config_.cgroup_root);
    BERTH_ASSIGN(guest_, probe_guest(config_));
    auto mount = core::find_cgroup2_mount(read_whole_file("/proc/self/mountinfo"));
    if (!mount) return core::make_error(core::Code::kFailedPrecondition, "no cgroup2 hierarchy is mounted");
    cgroup_mount_ = std::move(*mount);
    if (config_.cgroups_path_from != core::CgroupsPathFrom::kOwn) {
        hierarchy_.reset(open(cgroup_mount_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!hierarchy_.valid()) return core::errno_error(errno, "open " + cgroup_mount_);
    }
    BERTH_TRY(adopt_sandbox());
    BERTH_ASSIGN(std::vector<std::string> ids, list_states(config_.run_dir));
    if (config_.agent_starts == 0) {
        // Of a helper that was killed: its containers went with their cgroups, and nobody knows their exits.
        for (const std::string& id : ids) remove_state(config_.run_dir, id);
        ids.clear();
    }
    for (const std::string& id : ids) {
        if (auto adopted = adopt_container(welcome, id); !adopted.ok()) {
            // One that cannot be taken over must not keep the others from it.
            sys::log(sys::LogLevel::kError, "adopt", "%s: %s", id.c_str(), adopted.error().message.c_str());
            containers_.erase(id);
        }
    }
    LogReplay replay(*this);
    replay.read();
    replay.tell();
    for (auto& [name, fd] : welcome.stored) (void)streams_.adopt(name, fd);
    streams_.adopt_done();
    // Of a Create or Exec that was cut off between storing its pipes and its state: nobody will ask for them.
    for (const StreamId& id : streams_.undeleted()) {
        auto found = containers_.find(id.container);
        if (found == containers_.end() || found->second->find_process(id.exec) == nullptr)
            streams_.discard_process(id.container, id.exec);
    }
    for (auto& [id, container] : containers_) {
        container->init().stdio = streams_.adopted_stdio(id, "");
        for (auto& [exec_id, process] : container->execs) {
            if (process->key != 0) {
                process->stdio = streams_.adopted_stdio(id, exec_id);
                continue;
            }
            // Not started: the child's ends of its pipes ended with our predecessor. Nothing was written to
            // them yet.
            streams_.discard_process(id, exec_id);
            if (process->with_passed_files) continue;  // without stdio it is not started
            if (auto made = make_stdio(*container, *process); !made.ok()) {
                sys::log(sys::LogLevel::kError, "adopt.stdio", "%s: %s", id.c_str(),
                         made.error().message.c_str());
            }
        }
    }
    replay.finish_deletions();
    spawner_.replace(std::move(welcome.spawner));
    for (const core::ProcessRecord& record : welcome.exited) on_exit(record);
    kill_unclaimed(welcome);
    if (config_.agent_starts > 0) {
        v1::Event restarted;
        restarted.mutable_agent_restarted()->set_count(config_.agent_starts + 1);
        restarted.mutable_agent_restarted()->set_reason(config_.last_crash[0] != 0 ? config_.last_crash
                                                                                   : "asked (SIGHUP)");
        events_.emit(std::move(restarted), nullptr);
    }
    for (auto& [id, container] : containers_) container->check_memory();
    return core::ok();
}

core::Status Runtime::adopt_container(Welcome& welcome, const std::string& id) {
    BERTH_ASSIGN(core::ContainerId container_id, core::ContainerId::parse(id));
    auto read = StateLog::read(config_.run_dir, id);
    if (!read.ok() && read.error().code == core::Code::kNotFound) {
        remove_state(config_.run_dir, id);  // the intent comes before all else: there is nothing to take back
        return core::ok();
    }
    BERTH_ASSIGN(std::string bytes, std::move(read));
    pb::state::Container state;
    if (!state.ParseFromString(bytes)) return core::make_error(core::Code::kInternal, "malformed state file");
    if (state.version() != kStateVersion) {
        return core::make_error(core::Code::kFailedPrecondition,
                                core::format("state file of version %u", state.version()));
    }
    if (state.creating()) return take_back_creation(id, state);
    auto container = std::make_shared<Container>(*this, container_id);
    containers_[id] = container;
    container->containerd_namespace = state.containerd_namespace();
    container->name = state.name();
    container->bundle = state.bundle();
    container->cgroup_path = state.cgroup_path();
    container->created_at_ns = state.created_at_ns();
    container->paused = state.paused();
    container->resources_json = state.resources_json();
    container->stdio_drop = state.stdio_drop();
    container->is_owners = state.is_owners();
    for (const pb::KeyValue& annotation : state.annotations())
        container->annotations[annotation.key()] = annotation.value();
    container->memory_total = known_counters(state.memory_total());
    container->memory_local = known_counters(state.memory_local());
    container->memory_sequence = state.memory_sequence();
    container->exit_oom_kill_local = state.exit_oom_kill_local();
    container->update_undo = state.update_undo();
    BERTH_ASSIGN(std::string json, read_state_file(config_.run_dir, id, "config.json"));
    BERTH_ASSIGN(core::ContainerSpec spec, core::parse_container_spec(json));
    BERTH_ASSIGN(container->seccomp_profile, seccomp_.profile(spec));
    container->keep_for_execs(std::move(spec));
    std::map<std::string_view, const pb::state::Process*> last;  // the init first
    for (const pb::state::Process& written : state.processes()) last[written.exec_id()] = &written;
    for (const auto& [name, found] : last) {
        const pb::state::Process& process_state = *found;
        if (process_state.removed()) continue;
        BERTH_ASSIGN(core::ExecId exec_id, core::ExecId::parse(process_state.exec_id()));
        bool is_init = exec_id.is_init();
        auto process = process_of(*container, exec_id, process_state);
        Process& adopted = *process;
        if (is_init) {
            container->set_init(std::move(process));
        } else {
            container->execs[exec_id.text()] = std::move(process);
        }
        adopt_process(welcome, *container, adopted);
        if (adopted.exit) remove_when_ended(adopted);
    }
    if (container->find_process("") == nullptr)
        return core::make_error(core::Code::kInternal, "state file without an init");
    auto mounts = welcome.stored.find(container->mounts_name());
    if (mounts != welcome.stored.end()) container->mounts = std::move(mounts->second);
    auto opened = open_cgroup_dirs(*container, state.two_cgroup_levels());
    // Gone: our predecessor was deleting it. The deletion is asked for again.
    if (!opened.ok() && opened.error().code != core::Code::kNotFound) return opened;
    if (opened.ok()) undo_update(*container);
    if (opened.ok() && guest_.has_memory_controller) {
        Container* raw = container.get();
        BERTH_ASSIGN(container->memory,
                     MemoryWatch::begin(loop_, container->cgroup.outer, container->cgroup.leaf(),
                                        [raw](const MemoryReading& reading) { raw->on_memory(reading); }));
    }
    settle_freezer(*container);
    return core::ok();
}

core::Status Runtime::take_back_creation(const std::string& id, const pb::state::Container& state) {
    keeper_.drop("c/" + id + "/");
    if (state.cgroup_path().empty()) {
        remove_state(config_.run_dir, id);
        return core::ok();
    }
    CgroupPlace place = cgroup_place(state.cgroup_path());
    sys::UniqueFd directory;
    if (auto opened = sys::open_cgroup(place.base, place.path); opened.ok()) directory = std::move(*opened);
    CgroupTeardown::begin(loop_, std::move(place), std::move(directory), [this, id](core::Status status) {
        if (!status.ok())
            sys::log(sys::LogLevel::kError, "adopt", "%s: %s", id.c_str(), status.error().message.c_str());
        // The id may be in use again by then: a creation that is answered has its own
        // state.
        if (!containers_.contains(id)) remove_state(config_.run_dir, id);
    });
    return core::ok();
}

void Runtime::adopt_process(Welcome& welcome, Container& container, Process& process) {
    if (process.status == TaskStatus::kStopped || process.key == 0) {
        return;
    }
    keys_[process.key] = {&container, process.exec_id().text()};
    for (Welcome::Registered& registered : welcome.registered) {
        if (registered.process.key != process.key) continue;
        process.pid = registered.process.pid;
        process.pidfd = std::move(registered.pidfd);
        registered.process.key = 0;  // claimed
    }
    for (const core::ProcessRecord& exited : welcome.exited) {
        if (exited.key == process.key && process.pid == 0) process.pid = exited.pid;
    }
    if (process.pid == 0) {
        // It was not started, or its Start was not answered and the spawner had not cloned it: it can be
        // started (again).
        keys_.erase(process.key);
        process.key = 0;
        return;
    }
    if (process.status == TaskStatus::kCreated && adopt_gate(welcome, container, process)) return;
    // Its Start was not answered (the init's gate leaves the store when it is let go): it runs, or ran. Its
    // start is told by LogReplay, its end by the keeper.
    process.status = TaskStatus::kRunning;
    if (welcome.stored.contains(container.gate_name(process.exec_id())) ||
        welcome.stored.contains(container.plan_name(process.exec_id()))) {
        keeper_.drop(container.launch_prefix(process.exec_id()));
    }
}

// True: it waits behind its gate, or ended there. False: it was let go, and became its program.
bool Runtime::adopt_gate(Welcome& welcome, Container& container, Process& process) {
    auto gate = welcome.stored.find(container.gate_name(process.exec_id()));
    if (gate == welcome.stored.end()) return false;
    auto plan = welcome.stored.find(container.plan_name(process.exec_id()));
    bool may_be_let_go = plan == welcome.stored.end();  // see start_init
    bool is_alive = process.pidfd.valid() && !is_readable(process.pidfd);
    if (has_ended_well(gate->second) && may_be_let_go) return false;
    process.launch = Launch::create(loop_, spawner_, process);
    if (may_be_let_go) {
        process.launch->adopt_let_go(std::move(gate->second));
    } else {
        process.launch->adopt_ready(std::move(gate->second), std::move(plan->second));
    }
    process.launch_is_stored = true;
    // A Start that our predecessor had begun goes on. A second go byte does not matter to a process that has
    // the first, unless it stops once more, for hooks.
    if (!may_be_let_go || !is_alive || container.spec.hooks.has(core::HookKind::kStartContainer)) return true;
    process.starting = true;
    if (auto going = process.launch->go(); !going.ok()) {
        process.starting = false;
        sys::log(sys::LogLevel::kError, "adopt.start", "%s: %s", container.id.text().c_str(),
                 going.error().message.c_str());
    }
    return true;
}

void Runtime::settle_freezer(Container& container) {
    if (!container.cgroup.outer.valid()) return;
    auto freeze = sys::read_cgroup_file(container.cgroup.outer, "cgroup.freeze");
    if (!freeze.ok()) return;
    bool is_frozen = core::trim(*freeze) == "1";
    if (is_frozen == container.paused) return;
    // A Pause that was not answered is taken back, a Resume that was not answered was done.
    if (is_frozen) {
        (void)sys::set_freezer(container.cgroup.outer, sys::FreezerState::kThawed);
    } else {
        container.paused = false;
        save_or_log(container);
    }
}

void Runtime::kill_unclaimed(Welcome& welcome) {
    for (Welcome::Registered& registered : welcome.registered) {
        if (registered.process.key == 0 || !registered.pidfd.valid()) continue;
        // Cloned for a request that was never answered, and whose intent is gone.
        (void)syscall(SYS_pidfd_send_signal, registered.pidfd.get(), SIGKILL, nullptr, 0);
        sys::log(sys::LogLevel::kWarn, "adopt.kill", "pid %d belongs to no container",
                 registered.process.pid);
    }
}

CgroupPlace Runtime::cgroup_place(const std::string& path) const {
    if (!path.starts_with('/')) return {sandbox_, path, ""};
    return {hierarchy_, path.substr(1), config_.cgroup_root};
}

core::Status Runtime::open_cgroup_dirs(Container& container, bool two_levels) {
    CgroupPlace place = cgroup_place(container.cgroup_path);
    BERTH_ASSIGN(container.cgroup.outer, sys::open_cgroup(place.base, place.path));
    container.cgroup.inner.reset();
    if (two_levels) {
        BERTH_ASSIGN(container.cgroup.inner, sys::open_cgroup(container.cgroup.outer, core::kInnerCgroup));
    }
    return core::ok();
}

}  // namespace berth::runtime
