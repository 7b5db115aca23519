#include "agent/berthctl/names.h"

#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <cstdlib>

#include "agent/core/limits.h"
#include "agent/core/text.h"
#include "proto/berth/guest.pb.h"

namespace berth::ctl {

namespace {

// FNV-1a: names folders apart, nothing more.
uint64_t hash_of(std::string_view text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    return hash;
}

core::Status make_folders(const std::string& path) {
    for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
        std::string part = path.substr(0, at);
        if (::mkdir(part.c_str(), 0711) != 0 && errno != EEXIST)
            return core::errno_error(errno, "--root " + part);
        if (at == std::string::npos) return core::ok();
    }
}

}  // namespace

core::Status Names::open(std::string_view root) {
    if (root.empty()) return core::ok();
    std::string path(root);
    BERTH_TRY(make_folders(path));
    char resolved[PATH_MAX];
    if (::realpath(path.c_str(), resolved) == nullptr) return core::errno_error(errno, "--root " + path);
    path_ = resolved;
    uint64_t hash = hash_of(resolved);
    suffix_ = core::format(".root-%016llx", static_cast<unsigned long long>(hash));
    namespace_ = std::string("root:") + resolved;
    // The name of a longer one is only its hash.
    if (namespace_.size() > limits::kNamespaceBytes) namespace_ = "root" + suffix_;
    return core::ok();
}

core::Result<std::string> Names::find(client::Session& session, std::string_view id) {
    if (!has_root()) return std::string(id);
    v1::ListRequest request;
    request.add_ids(std::string(id));
    request.add_ids(other_id(id));
    BERTH_ASSIGN(v1::ListResponse response,
                 session.call<v1::ListResponse>(client::kGuestService, "List", request));
    for (const v1::ContainerSummary& container : response.containers()) {
        if (owns(container.namespace_()) && container.status() != "creating") return container.id();
    }
    return core::make_error(core::Code::kNotFound, "container " + core::quoted(id) + ": not found");
}

std::string Names::other_id(std::string_view id) const {
    return std::string(id) + suffix_;
}

std::string Names::folder(std::string_view user_id) const {
    if (user_id.empty() || user_id == "." || user_id == ".." || user_id.find('/') != user_id.npos) return {};
    return path_ + "/" + std::string(user_id);
}

std::string Names::user_id(std::string_view agent_id) const {
    if (has_root() && agent_id.ends_with(suffix_)) agent_id.remove_suffix(suffix_.size());
    return std::string(agent_id);
}

}  // namespace berth::ctl
