#include "agent/keeper/resources.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "agent/core/limits.h"
#include "agent/sys/entropy.h"

namespace berth::keeper {
namespace {

constexpr size_t kLedgerSlotBytes = 64;

core::Status store_memory_file(FdStore& store, const char* name, size_t bytes) {
    sys::UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) return core::errno_error(errno, std::string("memfd ") + name);
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
        return core::errno_error(errno, std::string("size of memfd ") + name);
    }
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return core::errno_error(errno, std::string("seals of memfd ") + name);
    }
    return store.put(name, std::move(fd));
}

core::Status copy_path(char* into, size_t size, const std::string& path) {
    if (path.size() >= size) return core::invalid(path + ": too long");
    std::memcpy(into, path.c_str(), path.size() + 1);
    return core::ok();
}

}  // namespace

core::Status store_memory_files(FdStore& store) {
    BERTH_TRY(store_memory_file(store, "memory/events", limits::kEventLogBytes));
    return store_memory_file(store, "memory/ledger", limits::kLedgerSlots * kLedgerSlotBytes);
}

core::Result<core::AgentConfig> make_agent_config(const core::BootOptions& options,
                                                  const std::string& cgroup_root,
                                                  const std::string& run_dir) {
    core::AgentConfig config;
    config.vsock_port = options.port;
    config.ready_port = options.ready_port;
    config.auth_host_cid = options.auth_host_cid ? 1 : 0;
    config.allow_local_cid = options.allow_local_cid ? 1 : 0;
    config.log_level = options.log_level;
    BERTH_TRY(copy_path(config.cgroup_root, sizeof config.cgroup_root, cgroup_root));
    BERTH_TRY(copy_path(config.run_dir, sizeof config.run_dir, run_dir));
    BERTH_TRY(sys::fill_random(config.instance_id));
    return config;
}

core::Result<std::string> own_program() {
    char path[4096];
    ssize_t bytes = ::readlink("/proc/self/exe", path, sizeof path);
    if (bytes < 0) return core::errno_error(errno, "readlink /proc/self/exe");
    return std::string(path, static_cast<size_t>(bytes));
}

int64_t boottime_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace berth::keeper
