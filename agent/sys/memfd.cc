#include "agent/sys/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "agent/core/text.h"

// Not in Debian 12's headers (Linux 6.3).
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace berth::sys {

using core::errno_error;

namespace {

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

}  // namespace

core::Result<UniqueFd> make_sealed_memfd(const char* name, std::span<const std::byte> content) {
    // Kernels with vm.memfd_noexec=2 demand the flag; older ones than 6.3 do not know it.
    static unsigned no_exec = MFD_NOEXEC_SEAL;
    UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | no_exec));
    if (!fd.valid() && errno == EINVAL && no_exec != 0) {
        no_exec = 0;
        fd.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    }
    if (!fd.valid()) return errno_error(errno, "memfd_create");
    size_t done = 0;
    while (done < content.size()) {
        ssize_t written = ::write(fd.get(), content.data() + done, content.size() - done);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno_error(errno, "write to memfd");
        done += static_cast<size_t>(written);
    }
    if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return errno_error(errno, "seal memfd");
    return fd;
}

core::Result<size_t> sealed_size(FdRef memfd, size_t limit_bytes) {
    int seals = ::fcntl(memfd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kSeals) != kSeals) return core::invalid("memfd is not sealed");
    struct stat status {};
    // The call itself: glibc's fstat asks by an empty name, for which the kernel takes a page.
    if (::syscall(SYS_fstat, memfd.get(), &status) != 0) return errno_error(errno, "fstat memfd");
    if (status.st_size <= 0 || static_cast<size_t>(status.st_size) > limit_bytes) {
        return core::invalid(core::format("memfd has %lld bytes; 1 to %zu are allowed",
                                          static_cast<long long>(status.st_size), limit_bytes));
    }
    return static_cast<size_t>(status.st_size);
}

Mapping::Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    if (this != &other) {
        reset();
        bytes_ = std::exchange(other.bytes_, {});
    }
    return *this;
}

void Mapping::reset() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
    bytes_ = {};
}

core::Result<Mapping> map_private(FdRef fd, size_t size_bytes) {
    void* address = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), 0);
    if (address == MAP_FAILED) return errno_error(errno, "mmap");
    Mapping mapping;
    mapping.bytes_ = {static_cast<std::byte*>(address), size_bytes};
    return mapping;
}

}  // namespace berth::sys
