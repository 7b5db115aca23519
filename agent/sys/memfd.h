// Sealed memory files: how a launch plan travels, so that its receiver may check it once and then trust it.
#pragma once

#include <cstddef>
#include <span>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::sys {

// A memfd that holds `content` and can never change again (sealed against write, grow, shrink and further
// seals). `name` shows in /proc/PID/maps.
core::Result<UniqueFd> make_sealed_memfd(const char* name, std::span<const std::byte> content);

// The size of a memfd that carries all of those seals; anything else (a file, a memfd without a seal, empty,
// or larger than `limit_bytes`) is INVALID_ARGUMENT.
core::Result<size_t> sealed_size(FdRef memfd, size_t limit_bytes);

// A private (copy-on-write) mapping; unmapped by the destructor.
class Mapping {
 public:
    Mapping() = default;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    ~Mapping() { reset(); }

    std::span<std::byte> bytes() const { return bytes_; }
    void reset();

 private:
    friend core::Result<Mapping> map_private(FdRef fd, size_t size_bytes);
    std::span<std::byte> bytes_;
};

// Maps the first `size_bytes` of `fd` for reading and writing; what is written stays in this process.
core::Result<Mapping> map_private(FdRef fd, size_t size_bytes);

}  // namespace berth::sys
