#include "agent/runtime/cgroup_teardown.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/sys/cgroup.h"

namespace berth::runtime {
namespace {
constexpr size_t kRemovedPerTurn = 256;
}  // namespace

CgroupTeardown::CgroupTeardown(loop::Loop& loop, CgroupPlace place, sys::UniqueFd directory,
                               core::Callback<void(core::Status)> done)
    : loop_(loop), place_(std::move(place)), directory_(std::move(directory)), done_(std::move(done)) {}

std::shared_ptr<CgroupTeardown> CgroupTeardown::begin(loop::Loop& loop, CgroupPlace place,
                                                      sys::UniqueFd directory,
                                                      core::Callback<void(core::Status)> done) {
    std::shared_ptr<CgroupTeardown> teardown(
        new CgroupTeardown(loop, std::move(place), std::move(directory), std::move(done)));
    teardown->self_ = teardown;
    teardown->deadline_.arm_after_ms(limits::kTeardownDeadlineMs);
    teardown->first_.post();
    return teardown;
}

void CgroupTeardown::begin_killing() {
    killing_ = true;
    if (!directory_.valid()) return;
    // Kills the whole subtree, forks included (Linux 5.14). Gone already, or an older kernel: populated
    // tells.
    (void)sys::write_cgroup_file(directory_, "cgroup.kill", "1");
    events_ = sys::UniqueFd(openat(directory_.get(), "cgroup.events", O_RDONLY | O_CLOEXEC));
}

void CgroupTeardown::step() {
    if (!killing_) {
        // With nobody in it and nothing below it, as most are by now, there is nothing to kill.
        if (sys::remove_cgroup(place_.base, place_.path).ok()) {
            remove_ancestors();
            return finish(core::ok());
        }
        begin_killing();
    }
    if (!events_.valid()) return finish(try_remove() ? core::ok() : core::Status(stuck_error()));
    char text[256];
    ssize_t count = pread(events_.get(), text, sizeof text, 0);
    bool populated = count > 0 && std::string_view(text, static_cast<size_t>(count)).find("populated 1") !=
                                      std::string_view::npos;
    if (!populated && try_remove()) return finish(core::ok());
    if (populated) {
        if (!poll_.pending()) loop_.poll_multishot(poll_, events_.get(), POLLPRI);
    } else {
        // Unpopulated, yet EBUSY: the last task is still on its way out. The kernel tells nobody when it is.
        retry_.arm_after_ms(retry_ms_);
        if (retry_ms_ < 256) retry_ms_ *= 2;
    }
}

bool CgroupTeardown::try_remove() {
    auto removed = sys::remove_cgroup_tree(place_.base, place_.path, kRemovedPerTurn);
    if (!removed.ok() || *removed != sys::RemoveOutcome::kRemoved) return false;
    remove_ancestors();
    return true;
}

// Those that cgroupsPath named and nobody else uses.
void CgroupTeardown::remove_ancestors() {
    const std::string& path = place_.path;
    for (size_t slash = path.rfind('/'); slash != std::string::npos; slash = path.rfind('/', slash - 1)) {
        std::string_view ancestor = std::string_view(path).substr(0, slash);
        if (!place_.owner.empty()) {
            auto opened = sys::open_cgroup(place_.base, ancestor);
            if (!opened.ok() || !sys::has_cgroup_mark(*opened, sys::CgroupMark::kAncestor, place_.owner))
                break;
        }
        if (!sys::remove_cgroup(place_.base, ancestor).ok() || slash == 0) break;
    }
}

void CgroupTeardown::on_events(loop::Op&, int32_t) {
    std::shared_ptr<CgroupTeardown> keep = self_;
    if (done_) return step();
    if (!poll_.pending()) self_.reset();
}

core::Error CgroupTeardown::stuck_error() {
    std::string pids;
    constexpr size_t kNamed = 16;
    if (auto found = sys::cgroup_procs_recursive(directory_, kNamed, kRemovedPerTurn); found.ok()) {
        for (pid_t pid : *found) pids.append(core::format(" %d", pid));
    }
    return core::make_error(
        core::Code::kFailedPrecondition,
        core::format("cgroup.remove %s: still populated after %lld ms%s%s", place_.path.c_str(),
                     static_cast<long long>(limits::kTeardownDeadlineMs), pids.empty() ? "" : ", by pids",
                     pids.c_str()));
}

void CgroupTeardown::on_deadline() {
    finish(stuck_error());
}

void CgroupTeardown::finish(core::Status status) {
    std::shared_ptr<CgroupTeardown> keep = self_;
    deadline_.disarm();
    retry_.disarm();
    auto done = done_.take();
    if (poll_.pending()) {
        loop_.cancel(poll_);
    } else {
        self_.reset();
    }
    if (done) done(std::move(status));
}

}  // namespace berth::runtime
