#include "agent/runtime/update_job.h"

#include <fcntl.h>

#include "agent/core/device_filter.h"
#include "agent/core/text.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/device_program.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

using core::CgroupWrite;

using Snapshot = std::map<std::string, std::string, std::less<>>;

// What can be read of `files`; a file that is missing is left out. `known` is not read again.
template <typename Files>
Snapshot read_files(sys::FdRef cgroup, const Files& files, const Snapshot& known = {}) {
    Snapshot snapshot;
    for (const auto& file : files) {
        std::string name(file);
        if (auto found = known.find(name); found != known.end()) {
            snapshot.insert(*found);
            continue;
        }
        if (auto content = sys::read_cgroup_file(cgroup, name.c_str()); content.ok())
            snapshot[std::move(name)] = std::move(*content);
    }
    return snapshot;
}

core::Result<sys::UniqueFd> load_program(const core::Resources& resources, core::BlockDevices blocks) {
    static const std::vector<core::DeviceRule> kNoRules;
    BERTH_ASSIGN(std::vector<bpf_insn> filter,
                 core::build_device_filter(resources.devices ? *resources.devices : kNoRules, {}, blocks));
    return sys::load_device_program(filter);
}

}  // namespace

std::string encode_undo(const std::vector<CgroupWrite>& writes) {
    std::string text = "undo\n";
    for (const CgroupWrite& write : writes) {
        // A value is one line; that of an empty cpuset is a bare newline.
        std::string_view value = write.value == "\n" ? std::string_view() : std::string_view(write.value);
        text.append(write.file).append(" ").append(value).append("\n");
    }
    return text;
}

void apply_undo(sys::FdRef cgroup, std::string_view text) {
    for (std::string_view line : core::split_lines(text)) {
        size_t blank = line.find(' ');
        if (blank == std::string_view::npos) continue;
        std::string file(line.substr(0, blank));
        std::string value(line.substr(blank + 1));
        if (value.empty()) value = "\n";
        if (auto written = sys::write_cgroup_file(cgroup, file.c_str(), value); !written.ok())
            sys::log(sys::LogLevel::kError, "update.undo", "%s", written.error().message.c_str());
    }
}

UpdateJob::UpdateJob(loop::Loop& loop, Target target, Hooks hooks)
    : loop_(loop), target_(std::move(target)), hooks_(std::move(hooks)) {}

std::shared_ptr<UpdateJob> UpdateJob::begin(loop::Loop& loop, Target target, Hooks hooks) {
    std::shared_ptr<UpdateJob> job(new UpdateJob(loop, std::move(target), std::move(hooks)));
    job->self_ = job;
    job->run();
    return job->stage_ == Stage::kOver ? nullptr : job;
}

void UpdateJob::run() {
    if (auto prepared = prepare(); !prepared.ok()) return finish(std::move(prepared));
    advance();
}

core::Status UpdateJob::prepare() {
    if (target_.request.devices && !target_.takes_devices)
        return core::invalid("devices: only a container has a device program");
    core::CgroupFacts facts;
    facts.page_size = target_.page_size;
    facts.files = std::move(target_.files);
    if (facts.files.empty()) {
        BERTH_ASSIGN(sys::CgroupEntries entries, sys::list_cgroup(target_.outer, 0));
        facts.files = std::move(entries.files);
    }
    facts.current = read_files(target_.outer, core::wanted_facts(target_.request));
    BERTH_ASSIGN(plan_,
                 core::plan_resources(target_.stored, target_.request, facts, core::PlanMode::kUpdate));
    BERTH_TRY(prepare_devices());
    snapshot_ = read_files(target_.outer, plan_.snapshot_files, facts.current);
    if (target_.inner.valid()) inner_snapshot_ = read_files(target_.inner, plan_.snapshot_files);
    list_steps(plan_.writes);
    if (steps_.empty() && !plan_.devices_changed) return core::ok();
    return hooks_.keep_intent(encode_undo(core::plan_restore(plan_, plan_.writes.size(), snapshot_)));
}

core::Status UpdateJob::prepare_devices() {
    if (!plan_.devices_changed) return core::ok();
    BERTH_ASSIGN(device_program_, load_program(plan_.merged, target_.block_devices));
    BERTH_ASSIGN(old_program_, load_program(target_.stored, target_.block_devices));
    return core::ok();
}

void UpdateJob::list_steps(const std::vector<CgroupWrite>& writes) {
    for (const CgroupWrite& write : writes) {
        steps_.push_back({&write, false});
        if (target_.inner.valid()) steps_.push_back({&write, true});
    }
}

void UpdateJob::advance() {
    while (next_ < steps_.size()) {
        const Step step = steps_[next_];
        const sys::UniqueFd& cgroup = step.inner ? target_.inner : target_.outer;
        if (!step.write->may_reclaim) {
            ++next_;
            after(step, sys::write_cgroup_file(cgroup, step.write->file.c_str(), step.write->value));
            if (stage_ == Stage::kOver) return;
            continue;
        }
        auto opened = sys::open_cgroup_file(cgroup, step.write->file.c_str(), O_WRONLY);
        if (!opened.ok()) {
            ++next_;
            core::Error error = std::move(opened).error();
            error.message = step.write->label + ": " + core::errno_name(error.err);
            after(step, std::move(error));
            if (stage_ == Stage::kOver) return;
            continue;
        }
        file_ = std::move(*opened);
        return loop_.write(op_, file_.get(), std::as_bytes(std::span(step.write->value)), 0);
    }
    if (stage_ == Stage::kRestoring) return finish(std::move(error_));
    finish_writes();
}

void UpdateJob::on_written(loop::Op&, int32_t result) {
    std::shared_ptr<UpdateJob> keep = self_;
    const Step step = steps_[next_++];
    file_.reset();
    core::Status written = core::ok();
    if (result < 0) {
        written = core::errno_error(-result, step.write->label);
    } else if (static_cast<size_t>(result) != step.write->value.size()) {
        written = core::errno_error(EIO, step.write->label);
    }
    after(step, std::move(written));
    if (stage_ != Stage::kOver) advance();
}

// Judges one write. May turn the job around; the caller goes on with advance().
void UpdateJob::after(const Step& step, core::Status written) {
    if (stage_ == Stage::kRestoring) {
        // What was refused before is refused again (a disk that is not there), and had changed nothing. About
        // anything else nothing more can be done than to say so.
        if (written.ok() || step.inner) return;
        if (step.write->file == failed_file_ && written.error().err == error_.err) return;
        error_.message += "; " + written.error().message;
        return;
    }
    if (cancelled_) return restore(std::move(*cancelled_));
    if (written.ok() || step.inner) return;
    failed_file_ = step.write->file;
    restore(std::move(written).error());
}

void UpdateJob::finish_writes() {
    if (plan_.devices_changed) {
        // One step for the kernel: the container is never without a program.
        if (auto set = sys::set_device_program(target_.outer, device_program_); !set.ok()) {
            restore(std::move(set).error());
            return advance();
        }
        devices_attached_ = true;
    }
    if (auto persisted = hooks_.persist(plan_.merged); !persisted.ok()) {
        restore(std::move(persisted).error());
        return advance();
    }
    finish(core::ok());
}

void UpdateJob::restore(core::Error error) {
    error_ = std::move(error);
    stage_ = Stage::kRestoring;
    if (devices_attached_) {
        if (auto set = sys::set_device_program(target_.outer, old_program_); !set.ok())
            error_.message += "; " + set.error().message;
    }
    list_restores();
}

void UpdateJob::list_restores() {
    // How many of the outer level's writes were tried.
    size_t tried = 0;
    for (size_t i = 0; i < next_; ++i) tried += !steps_[i].inner;
    restores_ = core::plan_restore(plan_, tried, snapshot_);
    inner_restores_ = core::plan_restore(plan_, tried, inner_snapshot_);
    steps_.clear();
    next_ = 0;
    for (const CgroupWrite& write : restores_) steps_.push_back({&write, false});
    for (const CgroupWrite& write : inner_restores_) steps_.push_back({&write, true});
}

void UpdateJob::cancel(core::Error why) {
    if (stage_ != Stage::kWriting || cancelled_ || !op_.pending()) return;
    cancelled_ = std::move(why);
    loop_.cancel(op_);  // on_written goes on
}

void UpdateJob::finish(core::Status status) {
    std::shared_ptr<UpdateJob> keep = std::move(self_);
    stage_ = Stage::kOver;
    hooks_.drop_intent();
    hooks_.done.take()(std::move(status));
    for (core::Callback<void()>& next : over_) next();
}

}  // namespace berth::runtime
