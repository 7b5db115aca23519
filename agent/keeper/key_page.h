// The one page that holds the class keys: locked in memory, left out of core dumps, zero in every child.
#pragma once

#include <utility>

#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"

namespace berth::keeper {

class KeyPage {
 public:
    // Maps the page. MADV_WIPEONFORK and MADV_DONTDUMP are needed, the lock is not (a helper may lack the
    // right).
    static core::Result<KeyPage> create();
    KeyPage(KeyPage&& other) noexcept : keys_(std::exchange(other.keys_, nullptr)) {}
    KeyPage& operator=(KeyPage&&) = delete;
    KeyPage(const KeyPage&) = delete;
    KeyPage& operator=(const KeyPage&) = delete;
    ~KeyPage();

    core::ClassKeys& keys() { return *keys_; }
    const core::ClassKeys& keys() const { return *keys_; }

 private:
    explicit KeyPage(core::ClassKeys* keys) : keys_(keys) {}
    core::ClassKeys* keys_;
};

}  // namespace berth::keeper
