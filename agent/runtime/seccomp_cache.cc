#include "agent/runtime/seccomp_cache.h"

#include <algorithm>
#include <cstring>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "agent/sys/log.h"
#include "agent/sys/seccomp.h"

namespace berth::runtime {
namespace {

std::vector<std::byte> bytes_of(const std::vector<sock_filter>& filter) {
    std::vector<std::byte> bytes(filter.size() * sizeof(sock_filter));
    memcpy(bytes.data(), filter.data(), bytes.size());
    return bytes;
}

}  // namespace

core::SeccompProgram SeccompCache::own() {
    if (own_ == nullptr) {
        core::SeccompProgram program;
        program.filter = bytes_of(sys::compile_own_filter());
        own_ = std::make_shared<const core::SeccompProgram>(std::move(program));
    }
    return *own_;
}

core::Result<std::shared_ptr<const core::SeccompProgram>> SeccompCache::profile(
    const core::ContainerSpec& spec) {
    if (!spec.seccomp) return std::shared_ptr<const core::SeccompProgram>();
    // The flags are not compiled in, but kept with the program.
    std::string key = core::format("%x ", spec.seccomp->flags) + core::seccomp_cache_key(*spec.seccomp);
    auto found = profiles_.find(key);
    if (found == profiles_.end()) {
        BERTH_ASSIGN(std::vector<sock_filter> filter, sys::compile_profile(*spec.seccomp));
        core::SeccompProgram program;
        program.filter = bytes_of(filter);
        program.flags = spec.seccomp->flags;
        program.notify = spec.seccomp->notifies();
        make_room();
        found = profiles_
                    .emplace(std::move(key),
                             Entry{std::make_shared<const core::SeccompProgram>(std::move(program)), 0})
                    .first;
    }
    found->second.last_use = ++uses_;
    return found->second.program;
}

void SeccompCache::make_room() {
    while (profiles_.size() >= limits::kSeccompProfilesKept) {
        // Containers that use it keep the program; a later one compiles it again.
        profiles_.erase(std::min_element(
            profiles_.begin(), profiles_.end(),
            [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
    }
}

}  // namespace berth::runtime
