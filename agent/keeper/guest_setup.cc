#include "agent/keeper/guest_setup.h"

#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "agent/core/boot_options.h"
#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/sys/entropy.h"
#include "agent/sys/log.h"
#include "agent/sys/modules.h"
#include "agent/sys/small_file.h"

namespace berth::keeper {
namespace {

using core::errno_error;
using core::Result;
using core::Status;
using sys::LogLevel;

constexpr char kModuleList[] = "/lib/modules/berth.modules";
constexpr size_t kModuleListBytes = 64 * 1024;
constexpr rlim_t kDescriptorLimit = 1'048'576;

struct MountStep {
    const char* type;
    const char* target;
    unsigned long flags;
    const char* data;
    mode_t mode;  // of the mount point when it is missing
    bool is_optional;
};

Status apply_mount(const MountStep& step) {
    BERTH_TRY(sys::make_directory(step.target, step.mode));
    if (::mount(step.type, step.target, step.type, step.flags, step.data) != 0 && errno != EBUSY) {
        return errno_error(errno, std::string("mount ") + step.type + " on " + step.target);
    }
    return core::ok();
}

Status apply_mounts(std::span<const MountStep> steps) {
    for (const MountStep& step : steps) {
        Status mounted = apply_mount(step);
        if (mounted.ok()) continue;
        if (!step.is_optional) return mounted;
        sys::log(LogLevel::kInfo, "boot.mount", "%s", mounted.error().message.c_str());
    }
    return core::ok();
}

constexpr unsigned long kQuiet = MS_NOSUID | MS_NODEV | MS_NOEXEC;

}  // namespace

Status mount_first() {
    constexpr MountStep kSteps[] = {
        {"proc", "/proc", kQuiet, nullptr, 0555, false},
        {"sysfs", "/sys", kQuiet, nullptr, 0555, false},
        {"devtmpfs", "/dev", MS_NOSUID, "mode=0755", 0755, false},
    };
    return apply_mounts(kSteps);
}

Status mount_rest() {
    // /run may hold bundles with a root file system in them, so programs, set-ids and nodes work there.
    constexpr MountStep kSteps[] = {
        {"devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666", 0755, false},
        {"tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777", 01777, false},
        {"mqueue", "/dev/mqueue", kQuiet, nullptr, 01777, true},
        {"tmpfs", "/run", 0, "mode=0755", 0755, false},
        {"tmpfs", "/tmp", MS_NOSUID | MS_NODEV, "mode=1777", 01777, false},
        {"cgroup2", "/sys/fs/cgroup", kQuiet, "nsdelegate", 0755, false},
    };
    BERTH_TRY(apply_mounts(kSteps));
    constexpr const char* kLinks[][2] = {{"/proc/self/fd", "/dev/fd"},
                                         {"/proc/self/fd/0", "/dev/stdin"},
                                         {"/proc/self/fd/1", "/dev/stdout"},
                                         {"/proc/self/fd/2", "/dev/stderr"}};
    for (const auto& [target, path] : kLinks) {
        if (::symlink(target, path) != 0 && errno != EEXIST)
            return errno_error(errno, std::string("link ") + path);
    }
    // devtmpfs makes the old single-instance ptmx; that of the mounted devpts has the right mode and
    // instance.
    ::unlink("/dev/ptmx");
    if (::symlink("pts/ptmx", "/dev/ptmx") != 0) return errno_error(errno, "link /dev/ptmx");
    return core::ok();
}

sys::UniqueFd open_console() {
    sys::UniqueFd console(::open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (!console.valid()) console.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
    for (int fd = 0; fd <= 2 && console.valid(); ++fd) {
        if (console.get() == fd) {
            // 0-2 were closed: this opening took one of them, and has to stay.
            int taken = console.release();
            ::fcntl(taken, F_SETFD, 0);
            console = sys::UniqueFd(::fcntl(taken, F_DUPFD_CLOEXEC, 3));
        } else {
            ::dup2(console.get(), fd);
        }
    }
    sys::UniqueFd log(::open("/dev/console", O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    if (!log.valid()) log.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    return log;
}

Result<ModuleLoader> ModuleLoader::open() {
    ModuleLoader loader;
    Result<std::string> text = sys::read_small_file(kModuleList, kModuleListBytes);
    if (!text.ok()) {
        if (text.error().err == ENOENT) return loader;
        return std::move(text).error();
    }
    BERTH_ASSIGN(std::vector<std::string_view> paths, core::parse_module_list(*text));
    loader.paths_.assign(paths.begin(), paths.end());
    return loader;
}

bool ModuleLoader::load_next() {
    if (next_ == paths_.size()) return false;
    const std::string& path = paths_[next_++];
    Status loaded = sys::load_module(path.c_str());
    // ENODEV: the device is not in this guest.
    if (!loaded.ok()) {
        LogLevel level = loaded.error().err == ENODEV ? LogLevel::kDebug : LogLevel::kError;
        sys::log(level, "boot.module", "%s", loaded.error().message.c_str());
    }
    return true;
}

void tune_kernel() {
    constexpr const char* kValues[][2] = {
        {"/sys/kernel/rcu_expedited", "1"},  // namespaces and cgroups are made and destroyed all the time
        {"/proc/sys/fs/protected_symlinks", "1"},
        {"/proc/sys/fs/protected_hardlinks", "1"},
        {"/proc/sys/fs/protected_fifos", "2"},
        {"/proc/sys/fs/protected_regular", "2"},
        {"/proc/sys/fs/suid_dumpable", "0"},
        {"/proc/sys/kernel/kptr_restrict", "2"},
        {"/proc/sys/kernel/dmesg_restrict", "1"},
        {"/proc/sys/kernel/unprivileged_bpf_disabled", "1"},
        {"/proc/sys/kernel/core_pattern",
         "core"},                           // a file beside the program: never a helper of the guest's
        {"/proc/sys/kernel/modprobe", ""},  // no program of the guest is run for a missing module
        {"/proc/sys/kernel/hotplug", ""},
        {"/proc/sys/kernel/pid_max", "4194304"},
        {"/proc/sys/kernel/keys/maxkeys", "20000"},  // a session keyring a container, all of one uid
        {"/proc/sys/kernel/keys/maxbytes", "2000000"},
        {"/proc/sys/fs/inotify/max_user_instances", "8192"},  // per uid, and all containers are uid 0
        {"/proc/sys/fs/inotify/max_user_watches", "524288"},
    };
    for (const auto& [path, value] : kValues) {
        Status written = sys::write_existing_file(path, std::string(value) + "\n");
        if (!written.ok() && written.error().err != ENOENT) {
            sys::log(LogLevel::kWarn, "boot.sysctl", "%s", written.error().message.c_str());
        }
    }
}

void mix_entropy() {
    bool was_ready = sys::is_random_ready();
    size_t mixed =
        sys::mix_hardware_random(was_ready ? sys::EntropyCredit::kNone : sys::EntropyCredit::kFull);
    if (!was_ready && !sys::is_random_ready()) {
        sys::log(LogLevel::kWarn, "boot.entropy",
                 "the kernel's random numbers are not ready; waiting for them");
    } else {
        sys::log(LogLevel::kDebug, "boot.entropy", "%s, %zu bytes of /dev/hwrng mixed in",
                 was_ready ? "ready" : "made ready", mixed);
    }
}

void set_hostname(const std::string& name) {
    utsname current{};
    ::uname(&current);
    if (name.empty() && std::strcmp(current.nodename, "(none)") != 0) return;
    const std::string wanted = name.empty() ? "berth" : name;
    if (::sethostname(wanted.data(), wanted.size()) != 0) {
        sys::log(LogLevel::kWarn, "boot.hostname", "sethostname: %s", core::errno_name(errno).c_str());
    }
}

void bring_loopback_up() {
    sys::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, "lo", sizeof request.ifr_name - 1);
    request.ifr_flags = IFF_UP;
    if (!socket.valid() || ::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) {
        sys::log(LogLevel::kInfo, "boot.loopback", "%s", core::errno_name(errno).c_str());
    }
}

void raise_descriptor_limit() {
    rlimit limit = {kDescriptorLimit, kDescriptorLimit};
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
    // A helper without the right to raise the hard limit takes all that it has.
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    sys::log(LogLevel::kInfo, "limit.nofile", "%llu descriptors",
             static_cast<unsigned long long>(limit.rlim_cur));
}

}  // namespace berth::keeper
