// Where cgroup2 is, from the kernel's own tables.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace berth::core {

// The mount point of the first cgroup2 hierarchy in the text of /proc/self/mountinfo ("/sys/fs/cgroup", or
// "/sys/fs/cgroup/unified" on hybrid hosts), with octal escapes resolved. Malformed lines are skipped.
std::optional<std::string> find_cgroup2_mount(std::string_view mountinfo);

// The path behind "0::" in the text of /proc/PID/cgroup.
std::optional<std::string> find_own_cgroup2(std::string_view proc_cgroup);

}  // namespace berth::core
