#include "agent/keeper/fd_store.h"

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::keeper {

core::Status FdStore::put(std::string_view name, sys::UniqueFd fd) {
    if (name.empty() || name.back() == '/' || name.size() >= limits::kStoredFdNameBytes) {
        return core::invalid("fd store: name " + core::quoted(name) + ": empty, a prefix or too long");
    }
    if (!fd.valid()) return core::invalid("fd store: " + core::quoted(name) + ": came without a descriptor");
    auto found = entries_.find(name);
    if (found != entries_.end()) {
        found->second = std::move(fd);
        return core::ok();
    }
    if (entries_.size() >= limits::kStoredFds) {
        return core::make_error(core::Code::kResourceExhausted,
                                core::format("fd store: %s: full (%zu descriptors)",
                                             core::quoted(name).c_str(), limits::kStoredFds));
    }
    entries_.emplace(std::string(name), std::move(fd));
    return core::ok();
}

size_t FdStore::drop(std::string_view name) {
    if (name.empty()) return 0;
    auto first = entries_.lower_bound(name);
    auto last = first;
    size_t count = 0;
    if (name.back() != '/') {
        if (first == entries_.end() || first->first != name) return 0;
        entries_.erase(first);
        return 1;
    }
    while (last != entries_.end() && std::string_view(last->first).starts_with(name)) {
        ++last;
        ++count;
    }
    entries_.erase(first, last);
    return count;
}

int FdStore::find(std::string_view name) const {
    auto found = entries_.find(name);
    return found == entries_.end() ? -1 : found->second.get();
}

const FdStore::Entry* FdStore::next_after(std::string_view name) const {
    auto found = entries_.upper_bound(name);
    return found == entries_.end() ? nullptr : &*found;
}

}  // namespace berth::keeper
