// Where descriptors are kept that must outlive the agent (the keeper, in the product; a map, in tests).
#pragma once

#include <string_view>

#include "agent/sys/fd.h"

namespace berth::runtime {

class FdStore {
 public:
    virtual ~FdStore() = default;
    // Keeps a duplicate of `fd` under `name`, in place of an older one. Cannot fail: a full store is the
    // keeper's to report.
    virtual void store(std::string_view name, sys::FdRef fd) = 0;
    // Drops `name`; a name that ends in '/' drops everything below it.
    virtual void drop(std::string_view name) = 0;
};

}  // namespace berth::runtime
