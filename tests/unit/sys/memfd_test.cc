#include "agent/sys/memfd.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

using namespace berth::sys;

TEST_CASE("a sealed memfd keeps its content and takes no change") {
    std::vector<std::byte> content(10'000, std::byte{7});
    auto fd = make_sealed_memfd("test", content);
    REQUIRE(fd.ok());
    CHECK(::pwrite(fd->get(), "x", 1, 0) == -1);
    CHECK(::ftruncate(fd->get(), 1) == -1);
    CHECK(::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_GROW) == -1);
    auto size = sealed_size(*fd, 10'000);
    REQUIRE(size.ok());
    CHECK(*size == 10'000);

    auto mapping = map_private(*fd, *size);
    REQUIRE(mapping.ok());
    CHECK(std::memcmp(mapping->bytes().data(), content.data(), content.size()) == 0);
    mapping->bytes()[0] = std::byte{1};
    char first = 0;
    REQUIRE(::pread(fd->get(), &first, 1, 0) == 1);
    CHECK(first == 7);
}

TEST_CASE("what is not sealed in full, empty or too large is refused") {
    UniqueFd open_memfd(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(open_memfd.get(), 5) == 0);
    REQUIRE(::fcntl(open_memfd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    auto half_sealed = sealed_size(open_memfd, 100);
    REQUIRE_FALSE(half_sealed.ok());
    CHECK(half_sealed.error().message == "memfd is not sealed");

    UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    CHECK_FALSE(sealed_size(file, 100).ok());

    std::vector<std::byte> content(101);
    auto large = make_sealed_memfd("large", content);
    REQUIRE(large.ok());
    auto too_large = sealed_size(*large, 100);
    REQUIRE_FALSE(too_large.ok());
    CHECK(too_large.error().message == "memfd has 101 bytes; 1 to 100 are allowed");
    auto empty = make_sealed_memfd("empty", {});
    REQUIRE(empty.ok());
    CHECK_FALSE(sealed_size(*empty, 100).ok());
}
