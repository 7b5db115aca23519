#include "agent/sys/entropy.h"

#include <fcntl.h>
#include <linux/random.h>
#include <sys/ioctl.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "agent/sys/fd.h"

namespace berth::sys {

bool is_random_ready() {
    uint8_t byte = 0;
    return ::getrandom(&byte, 1, GRND_NONBLOCK) == 1;
}

size_t mix_hardware_random(EntropyCredit credit) {
    constexpr size_t kBytes = 64;
    alignas(rand_pool_info) char buffer[sizeof(rand_pool_info) + kBytes] = {};
    UniqueFd source(::open("/dev/hwrng", O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    UniqueFd kernel(::open("/dev/urandom", O_WRONLY | O_CLOEXEC));
    if (!source.valid() || !kernel.valid()) return 0;
    ssize_t got = ::read(source.get(), buffer + sizeof(rand_pool_info), kBytes);
    if (got <= 0) return 0;
    rand_pool_info head{};
    head.buf_size = static_cast<int>(got);
    head.entropy_count = credit == EntropyCredit::kFull ? static_cast<int>(got) * 8 : 0;
    std::memcpy(buffer, &head, sizeof head);
    bool mixed = ::ioctl(kernel.get(), RNDADDENTROPY, buffer) == 0;
    explicit_bzero(buffer, sizeof buffer);
    return mixed ? static_cast<size_t>(got) : 0;
}

core::Status fill_random(std::span<uint8_t> into) {
    while (!into.empty()) {
        ssize_t got = ::getrandom(into.data(), into.size(), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return core::errno_error(errno, "getrandom");
        into = into.subspan(static_cast<size_t>(got));
    }
    return core::ok();
}

}  // namespace berth::sys
