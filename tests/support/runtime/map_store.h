// A map for the keeper's descriptors: collects what is stored, for tests in one process.
#pragma once

#include <fcntl.h>

#include <map>
#include <string>
#include <string_view>

#include "agent/runtime/fd_store.h"

namespace berth::test {

class MapStore final : public runtime::FdStore {
 public:
    void store(std::string_view name, sys::FdRef fd) override {
        fds[std::string(name)] = sys::UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
    }
    void drop(std::string_view name) override {
        std::erase_if(fds, [&](const auto& each) {
            return each.first == name || (name.back() == '/' && each.first.starts_with(name));
        });
    }
    std::map<std::string, sys::UniqueFd> fds;
};

}  // namespace berth::test
