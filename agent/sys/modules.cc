#include "agent/sys/modules.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "agent/sys/fd.h"

namespace berth::sys {
namespace {
constexpr int kModuleInitCompressedFile = 4;  // Linux 5.17
}  // namespace

core::Status load_module(const char* path) {
    UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return core::errno_error(errno, std::string("open module ") + path);
    int flags = std::string_view(path).ends_with(".ko") ? 0 : kModuleInitCompressedFile;
    if (::syscall(SYS_finit_module, fd.get(), "", flags) == 0 || errno == EEXIST) return core::ok();
    core::Error error = core::errno_error(errno, std::string("load module ") + path);
    if (error.err == ENOENT) error.message += " (it needs a module that is not loaded)";
    return error;
}

core::Status unload_module(const char* name) {
    // ENOSYS: a kernel without modules.
    if (::syscall(SYS_delete_module, name, O_NONBLOCK) != 0 && errno != ENOENT && errno != ENOSYS) {
        return core::errno_error(errno, std::string("unload module ") + name);
    }
    return core::ok();
}

}  // namespace berth::sys
