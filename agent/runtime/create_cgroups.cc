// The part of a Create that decides about its cgroups and makes them.
#include <array>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/runtime/container.h"
#include "agent/runtime/create_plans.h"
#include "agent/runtime/runtime.h"
#include "agent/sys/cgroup.h"
#include "agent/sys/device_program.h"

namespace berth::runtime {

using core::Code;
using core::format;
using core::make_error;
using core::quoted;

namespace {

// Whoever has cgroups below it must pass its controllers on.
core::Status pass_controllers_on(sys::FdRef cgroup) {
    BERTH_ASSIGN(std::vector<std::string> controllers, sys::available_controllers(cgroup));
    return sys::enable_controllers(cgroup, controllers);
}

// The same of a cgroup that others made: all of them or none, since the kernel would take single ones (cpu,
// pids) even where it refuses the rest because of the processes in it.
core::Status pass_controllers_on_at_once(sys::FdRef cgroup) {
    BERTH_ASSIGN(std::vector<std::string> controllers, sys::available_controllers(cgroup));
    std::string all;
    for (const std::string& controller : controllers) all.append(all.empty() ? "+" : " +").append(controller);
    if (all.empty()) return core::ok();
    return sys::write_cgroup_file(cgroup, "cgroup.subtree_control", all);
}

}  // namespace

core::Status CreateJob::plan_cgroup(Plans& plans, const core::CgroupPowers& powers) const {
    core::CgroupsPathFrom from = runtime_.config().cgroups_path_from;
    bool from_mount = from == core::CgroupsPathFrom::kMount ||
                      (from == core::CgroupsPathFrom::kLocal && container_.is_owners);
    BERTH_ASSIGN(plans.layout, core::plan_cgroup_layout(plans.spec.cgroups_path, container_.id, powers,
                                                        from_mount ? core::AbsoluteCgroups::kFromMount
                                                                   : core::AbsoluteCgroups::kInSandbox));
    std::vector<std::string_view> existing;
    existing.reserve(runtime_.containers().size());
    for (const auto& [id, other] : runtime_.containers()) {
        if (other.get() != &container_ && !other->cgroup_path.empty()) existing.push_back(other->cgroup_path);
    }
    // A path of each kind cannot meet the other's: none from the mount point leads into the sandbox.
    BERTH_TRY(core::check_cgroup_collision(plans.layout.path, existing));
    if (!plans.layout.path.starts_with('/')) return core::ok();
    std::string sandbox = std::string(runtime_.config().cgroup_root).substr(runtime_.cgroup_mount_.size());
    return core::check_own_cgroups(plans.layout.path,
                                   std::array{sandbox, sandbox + ".agent", sandbox + ".spawner"});
}

core::Status CreateJob::make_cgroups(Plans& plans) {
    const core::CgroupLayout& layout = plans.layout;
    // The first of the way is the hierarchy itself; for the sandbox the keeper has done it.
    if (layout.path.starts_with('/')) BERTH_TRY(pass_controllers_on(runtime_.hierarchy_));
    for (const std::string& directory : layout.directories) {
        CgroupPlace place = runtime_.cgroup_place(directory);
        auto made = sys::create_cgroup(place.base, place.path);
        bool is_ancestor = directory != layout.path && directory != layout.process_path;
        if (made.ok() || (is_ancestor && made.error().code == Code::kAlreadyExists)) {
            if (!is_ancestor && !(layout.two_levels && directory == layout.path)) continue;
            BERTH_ASSIGN(sys::UniqueFd cgroup, sys::open_cgroup(place.base, place.path));
            if (is_ancestor && made.ok() && !place.owner.empty())
                BERTH_TRY(sys::mark_cgroup(cgroup, sys::CgroupMark::kAncestor, place.owner));
            bool is_others = !made.ok() && !place.owner.empty();
            BERTH_TRY(is_others ? pass_controllers_on_at_once(cgroup) : pass_controllers_on(cgroup));
            continue;
        }
        if (made.error().code != Code::kAlreadyExists || directory != layout.path) return made;
        BERTH_TRY(adopt_empty_cgroup(place));
    }
    BERTH_TRY(runtime_.open_cgroup_dirs(container_, layout.two_levels));
    if (layout.path.starts_with('/')) {
        BERTH_TRY(sys::mark_cgroup(container_.cgroup.outer, sys::CgroupMark::kContainer,
                                   runtime_.config().cgroup_root));
    }
    if (layout.two_levels) BERTH_TRY(container_.save(/*creating=*/true));
    // So that what it makes below can be removed again in bounded time.
    BERTH_TRY(sys::write_cgroup_file(container_.cgroup.outer, "cgroup.max.descendants",
                                     format("%zu", limits::kCgroupsOfContainer)));
    BERTH_TRY(sys::write_cgroup_file(container_.cgroup.outer, "cgroup.max.depth",
                                     format("%zu", limits::kCgroupDepthOfContainer)));
    for (const core::CgroupWrite& write : plans.cgroup.writes) {
        // Nothing is charged to a cgroup that nobody was in: these writes do not reclaim.
        auto written = sys::write_cgroup_file(container_.cgroup.outer, write.file.c_str(), write.value);
        if (!written.ok()) return written;
        if (layout.two_levels)
            BERTH_TRY(sys::write_cgroup_file(container_.cgroup.inner, write.file.c_str(), write.value));
    }
    BERTH_ASSIGN(device_program_, runtime_.device_programs_.get(std::move(plans.device_filter)));
    return core::ok();
}

core::Status CreateJob::adopt_empty_cgroup(const CgroupPlace& place) {
    // Left by somebody else. Cloning into a frozen one would hang, and limits would hit processes that are
    // not ours.
    BERTH_ASSIGN(sys::UniqueFd cgroup, sys::open_cgroup(place.base, place.path));
    BERTH_ASSIGN(core::CgroupState state, sys::cgroup_state(cgroup));
    if (state.populated)
        return make_error(Code::kFailedPrecondition,
                          format("cgroup %s: not empty", quoted(place.path).c_str()));
    if (state.frozen)
        return make_error(Code::kFailedPrecondition, format("cgroup %s: frozen", quoted(place.path).c_str()));
    cgroup.reset();
    // Made anew: limits and programs of before would otherwise live on.
    BERTH_ASSIGN(sys::RemoveOutcome removed,
                 sys::remove_cgroup_tree(place.base, place.path, limits::kCgroupsOfContainer));
    if (removed != sys::RemoveOutcome::kRemoved) {
        return make_error(Code::kFailedPrecondition,
                          format("cgroup %s: too many cgroups in it", quoted(place.path).c_str()));
    }
    return sys::create_cgroup(place.base, place.path);
}

}  // namespace berth::runtime
