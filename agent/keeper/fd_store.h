// Descriptors that outlive the agent, by name.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::keeper {

class FdStore {
 public:
    using Entry = std::pair<const std::string, sys::UniqueFd>;

    // Keeps `fd` under `name`, in place of an older one. On error (no name, a name that ends in '/', over
    // limits::kStoredFdNameBytes - 1 bytes or limits::kStoredFds entries) `fd` is closed and nothing changes.
    core::Status put(std::string_view name, sys::UniqueFd fd);

    // Closes `name`, or with a name that ends in '/' everything below it; how many were closed.
    size_t drop(std::string_view name);

    // Borrowed; -1 when there is none.
    int find(std::string_view name) const;

    // The first entry behind `name` in byte order ("" for the first of all); nullptr at the end. What changes
    // between two calls is seen or not seen, never seen twice.
    const Entry* next_after(std::string_view name) const;

    size_t size() const { return entries_.size(); }

 private:
    std::map<std::string, sys::UniqueFd, std::less<>> entries_;
};

}  // namespace berth::keeper
