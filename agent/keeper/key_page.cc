#include "agent/keeper/key_page.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace berth::keeper {
namespace {
constexpr size_t kPageBytes = 4096;
static_assert(sizeof(core::ClassKeys) <= kPageBytes);
}  // namespace

core::Result<KeyPage> KeyPage::create() {
    void* page = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return core::errno_error(errno, "key page: mmap");
    KeyPage owner(new (page) core::ClassKeys());
    if (::madvise(page, kPageBytes, MADV_WIPEONFORK) != 0) {
        return core::errno_error(errno, "key page: MADV_WIPEONFORK");
    }
    if (::madvise(page, kPageBytes, MADV_DONTDUMP) != 0)
        return core::errno_error(errno, "key page: MADV_DONTDUMP");
    ::mlock(page, kPageBytes);
    return owner;
}

KeyPage::~KeyPage() {
    if (keys_ == nullptr) return;
    explicit_bzero(static_cast<void*>(keys_), kPageBytes);
    ::munmap(static_cast<void*>(keys_), kPageBytes);
}

}  // namespace berth::keeper
