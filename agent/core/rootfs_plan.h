// The `rootfs` of a Create: containerd's mounts, done in the container's own new mount namespace as the first
// steps of its plan, so that nothing is ever mounted in the guest's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/core/guest_facts.h"
#include "agent/core/launch_plan.h"
#include "agent/core/result.h"

namespace berth::core {

// containerd.types.Mount. `type` may begin with "format/" (templates in source and options are filled in) and
// "mkdir/" (options X-containerd.mkdir.path=PATH[:MODE[:UID:GID]] make directories first).
struct RootfsMount {
    std::string type;
    std::string source;
    std::string target;  // empty: the root, or for all but the last of these a place of its own
    std::vector<std::string> options;
};

struct RootfsPlanInput {
    const std::vector<RootfsMount>* mounts = nullptr;
    const GuestFacts* facts = nullptr;
    std::string bundle_dir;
    std::string root_path;  // used when there are no mounts: cleaned, absolute, in the guest
    // root_path is bound onto itself instead of bundle_dir/rootfs: hooks know it by its own name.
    bool root_in_place = false;
};

// Steps after which the register `root` is the container's root, mounted on bundle_dir/rootfs. The last mount
// without a target is the root; earlier ones land on bundle_dir/mounts/N (N = index) for later ones to name:
// `{{ mount N }}`, `{{ source N }}`, `{{ target N }}`, `{{ overlay A B }}` (mounts A to B joined by ":", also
// downwards). Ones with a target come after the root and land in it. Errors begin with "rootfs[N]" (or
// "root.path").
Status emit_rootfs(LaunchPlanBuilder& builder, const RootfsPlanInput& input);

}  // namespace berth::core
