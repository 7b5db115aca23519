// The runtime's updates: who may be updated, and what is kept of it.
#include <fcntl.h>

#include "agent/core/device_filter.h"
#include "agent/core/text.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/state_file.h"
#include "agent/runtime/update_job.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/device_program.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

using core::Code;
using core::make_error;

constexpr const char* kSandboxState = ".sandbox";  // no container's id begins with a dot
constexpr const char* kSandboxFile = "resources";

sys::UniqueFd copy_of(sys::FdRef fd) {
    return sys::UniqueFd(fd.get() < 0 ? -1 : fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
}

core::Result<UpdateJob::Target> make_target(std::string_view stored_json, std::string_view request_json) {
    UpdateJob::Target target;
    std::vector<std::string> skipped;
    BERTH_ASSIGN(target.request, core::parse_resources_text(request_json, "linux.resources", &skipped));
    for (const std::string& path : skipped)
        sys::log(sys::LogLevel::kInfo, "update.ignored", "%s", path.c_str());
    if (!stored_json.empty()) {
        BERTH_ASSIGN(target.stored, core::parse_resources_text(stored_json, "the stored resources"));
    }
    return target;
}

}  // namespace

void Runtime::update(const core::ContainerId& id, std::string_view resources_json, Done<core::Unit> done) {
    std::string where = context("update", id, core::ExecId());
    auto refuse = [&](core::Error error) { done(std::move(error).within(where)); };
    if (auto allowed = may_change(); !allowed.ok()) return refuse(std::move(allowed).error());
    auto found = find(id);
    if (!found.ok()) return refuse(std::move(found).error());
    Container& container = **found;
    if (container.deleting || container.status() == TaskStatus::kStopped)
        return refuse(make_error(Code::kFailedPrecondition, "the container is not running"));
    if (container.update_job != nullptr)
        return refuse(make_error(Code::kFailedPrecondition, "another update is under way"));
    auto target = make_target(container.resources_json, resources_json);
    if (!target.ok()) return refuse(std::move(target).error());
    target->outer = copy_of(container.cgroup.outer);
    target->inner = copy_of(container.cgroup.inner);
    target->page_size = guest_.cgroup.page_size;
    target->takes_devices = true;
    target->block_devices = container.block_devices();
    target->files = guest_.cgroup.files;  // equal controllers give equal files

    auto shared = containers_[id.text()];
    UpdateJob::Hooks hooks;
    hooks.keep_intent = [shared](std::string_view undo) {
        shared->update_undo = undo;
        return shared->save();
    };
    hooks.drop_intent = [this, shared] {
        if (shared->update_undo.empty()) return;
        shared->update_undo.clear();
        save_or_log(*shared);
    };
    hooks.persist = [shared](const core::Resources& merged) {
        std::string before = std::exchange(shared->resources_json, core::serialize_resources(merged));
        std::string undo = std::exchange(shared->update_undo, std::string());
        core::Status saved = shared->save();
        if (!saved.ok()) {
            shared->resources_json = std::move(before);
            shared->update_undo = std::move(undo);
        }
        return saved;
    };
    hooks.done = [shared, where, done = std::move(done)](core::Status status) mutable {
        shared->update_job.reset();
        if (!status.ok()) return done(std::move(status).error().within(where));
        done(core::Unit());
    };
    // Null when it is over already: `done` must not see it set afterwards.
    if (auto job = UpdateJob::begin(loop_, std::move(*target), std::move(hooks)); job != nullptr)
        shared->update_job = std::move(job);
}

void Runtime::cancel_update(const core::ContainerId& id, core::Error why) {
    auto found = containers_.find(id.text());
    if (found != containers_.end() && found->second->update_job != nullptr)
        found->second->update_job->cancel(std::move(why));
}

// An update that our predecessor did not bring to its end is taken back: nobody was told of it.
void Runtime::undo_update(Container& container) {
    if (container.update_undo.empty()) return;
    sys::log(sys::LogLevel::kWarn, "update.undo", "%s: an update was cut off", container.id.text().c_str());
    apply_undo(container.cgroup.outer, container.update_undo);
    if (container.cgroup.inner.valid()) apply_undo(container.cgroup.inner, container.update_undo);
    std::vector<core::DeviceRule> rules;
    auto stored = core::parse_resources_text(container.resources_json, "the stored resources");
    if (stored.ok() && stored->devices) rules = std::move(*stored->devices);
    core::Status set = core::ok();
    if (auto filter = core::build_device_filter(rules, {}, container.block_devices()); !filter.ok()) {
        set = std::move(filter).error();
    } else if (auto program = sys::load_device_program(*filter); !program.ok()) {
        set = std::move(program).error();
    } else {
        set = sys::set_device_program(container.cgroup.outer, *program);
    }
    if (!set.ok()) {
        sys::log(sys::LogLevel::kError, "update.undo", "%s: %s", container.id.text().c_str(),
                 set.error().message.c_str());
    }
    container.update_undo.clear();
    save_or_log(container);
}

void Runtime::update_sandbox(std::string_view resources_json, Done<core::Unit> done) {
    auto refuse = [&](core::Error error) { done(std::move(error).within("update the sandbox")); };
    if (auto allowed = may_change(); !allowed.ok()) return refuse(std::move(allowed).error());
    if (sandbox_update_ != nullptr)
        return refuse(make_error(Code::kFailedPrecondition, "another update is under way"));
    auto target = make_target(sandbox_resources_, resources_json);
    if (!target.ok()) return refuse(std::move(target).error());
    target->outer = copy_of(sandbox_);
    target->page_size = guest_.cgroup.page_size;

    UpdateJob::Hooks hooks;
    hooks.keep_intent = [this](std::string_view undo) {
        sandbox_undo_ = undo;
        return save_sandbox();
    };
    hooks.drop_intent = [this] {
        if (sandbox_undo_.empty()) return;
        sandbox_undo_.clear();
        if (auto saved = save_sandbox(); !saved.ok())
            sys::log(sys::LogLevel::kError, "state.write", "sandbox: %s", saved.error().message.c_str());
    };
    hooks.persist = [this](const core::Resources& merged) {
        std::string before = std::exchange(sandbox_resources_, core::serialize_resources(merged));
        std::string undo = std::exchange(sandbox_undo_, std::string());
        core::Status saved = save_sandbox();
        if (!saved.ok()) {
            sandbox_resources_ = std::move(before);
            sandbox_undo_ = std::move(undo);
        }
        return saved;
    };
    hooks.done = [this, done = std::move(done)](core::Status status) mutable {
        sandbox_update_.reset();
        if (!status.ok()) return done(std::move(status).error().within("update the sandbox"));
        done(core::Unit());
    };
    if (auto job = UpdateJob::begin(loop_, std::move(*target), std::move(hooks)); job != nullptr)
        sandbox_update_ = std::move(job);
}

void Runtime::cancel_sandbox_update(core::Error why) {
    if (sandbox_update_ != nullptr) sandbox_update_->cancel(std::move(why));
}

core::Status Runtime::save_sandbox() {
    pb::state::Sandbox state;
    state.set_version(kStateVersion);
    state.set_resources_json(sandbox_resources_);
    state.set_update_undo(sandbox_undo_);
    return write_state_file(config_.run_dir, kSandboxState, kSandboxFile, state.SerializeAsString());
}

core::Status Runtime::adopt_sandbox() {
    auto bytes = read_state_file(config_.run_dir, kSandboxState, kSandboxFile);
    if (!bytes.ok()) return core::ok();  // never set
    pb::state::Sandbox state;
    if (!state.ParseFromString(*bytes) || state.version() != kStateVersion)
        return make_error(Code::kInternal, "malformed state file of the sandbox");
    sandbox_resources_ = state.resources_json();
    if (state.update_undo().empty()) return core::ok();
    sys::log(sys::LogLevel::kWarn, "update.undo", "sandbox: an update was cut off");
    apply_undo(sandbox_, state.update_undo());
    return save_sandbox();
}

}  // namespace berth::runtime
