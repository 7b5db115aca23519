// Update: new limits for a cgroup that lives, as one transaction.
//
//   facts (read) -> plan -> snapshot (read) -> the old values on disk -> writes, one by one -> device program
//   -> persist -> answer
//                                               on failure: the old values, in reverse, and then the answer
//
// Writes to memory.* may reclaim inside write(2), for seconds: they are operations of the ring, and every
// other call is answered meanwhile. The inner level of a two-level container shows the same limits to the
// programs inside; the outer one is what binds, so what the inner level refuses is ignored.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/cgroup_plan.h"
#include "agent/core/device_filter.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

// The old values while an update is under way: never empty, `FILE VALUE` lines in the order of the writes
// that bring them back. An agent that finds them at its start (its predecessor died in between) writes them.
std::string encode_undo(const std::vector<core::CgroupWrite>& writes);
// Writes what encode_undo() made into the cgroup; what cannot be written is logged. Inline: only at the
// start.
void apply_undo(sys::FdRef cgroup, std::string_view text);

class UpdateJob : public std::enable_shared_from_this<UpdateJob> {
 public:
    struct Target {
        sys::UniqueFd outer;
        sys::UniqueFd inner;      // invalid: one level
        core::Resources stored;   // what was asked before, merged
        core::Resources request;  // parsed
        // Names in the cgroup's directory; empty: not known, it is listed.
        std::vector<std::string> files = {};
        uint64_t page_size = 4096;
        bool takes_devices = false;
        core::BlockDevices block_devices = core::BlockDevices::kAttached;
    };
    struct Hooks {
        // Keeps the old values (encode_undo) until persist() or drop_intent(), before the first write.
        core::Callback<core::Status(std::string_view undo)> keep_intent;
        core::Callback<void()> drop_intent;
        // Makes `merged` what was asked; after it the update stands.
        core::Callback<core::Status(const core::Resources& merged)> persist;
        // Once, at once or later: everything is written and persisted, or nothing is changed.
        core::Callback<void(core::Status)> done;
    };

    // An update that needs no ring operation is over when this returns; then the result is null.
    static std::shared_ptr<UpdateJob> begin(loop::Loop& loop, Target target, Hooks hooks);

    // Takes back what was written; `done` then gets `why`. Once the old values are being restored, or the
    // update stands, this changes nothing.
    void cancel(core::Error why);

    // `next` runs when the job is over: for a deletion, whose rmdir would wait for a write that reclaims.
    void when_over(core::Callback<void()> next) { over_.push_back(std::move(next)); }

 private:
    enum class Stage : uint8_t { kWriting, kRestoring, kOver };
    // One write of one level.
    struct Step {
        const core::CgroupWrite* write;
        bool inner;
    };

    UpdateJob(loop::Loop& loop, Target target, Hooks hooks);
    void run();
    core::Status prepare();
    core::Status prepare_devices();
    void list_steps(const std::vector<core::CgroupWrite>& writes);
    void advance();
    void on_written(loop::Op& op, int32_t result);
    void after(const Step& step, core::Status written);
    void finish_writes();
    void restore(core::Error error);
    void list_restores();
    void finish(core::Status status);

    loop::Loop& loop_;
    Target target_;
    Hooks hooks_;
    Stage stage_ = Stage::kWriting;
    core::CgroupPlan plan_;
    std::map<std::string, std::string, std::less<>> snapshot_;
    std::map<std::string, std::string, std::less<>> inner_snapshot_;
    sys::UniqueFd device_program_;  // the new one, loaded before the first write
    sys::UniqueFd old_program_;
    bool devices_attached_ = false;
    std::vector<Step> steps_;
    size_t next_ = 0;
    std::vector<core::CgroupWrite> restores_;
    std::vector<core::CgroupWrite> inner_restores_;
    std::optional<core::Error> cancelled_;
    core::Error error_;
    std::string failed_file_;  // whose write made it turn around
    sys::UniqueFd file_;
    std::vector<core::Callback<void()>> over_;
    std::shared_ptr<UpdateJob> self_;  // while an operation is pending
    loop::Op op_{loop::Op::to<&UpdateJob::on_written>(), this};
};

}  // namespace berth::runtime
