// Create's first part: what the request names is read and looked at, by the ring, since it may lie on a file
// system that does not answer. Nothing is changed here.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "agent/core/device_nodes.h"
#include "agent/core/text.h"
#include "agent/runtime/container.h"
#include "agent/runtime/create_plans.h"
#include "agent/runtime/runtime.h"

namespace berth::runtime {

using core::Code;
using core::format;
using core::make_error;
using core::quoted;

namespace {

// What the kernel knows of the file without asking its file system once more.
core::Result<struct statx> look_at(const sys::UniqueFd& fd, const std::string& path) {
    struct statx found {};
    if (statx(fd.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &found) != 0)
        return core::errno_error(errno, "statx " + path);
    return found;
}

// The step that needs it will not find it either, and says so better. After any other error it might: then it
// would be used unseen.
bool is_not_there(int err) {
    return err == ENOENT || err == ENOTDIR || err == ELOOP || err == ENAMETOOLONG;
}

// The root of a mount namespace that is joined becomes the container's: never that of the machine.
core::Status check_joined_mounts(const std::string& path, const sys::UniqueFd& fd) {
    BERTH_ASSIGN(struct statx asked, look_at(fd, path));
    for (const char* own : {"/proc/self/ns/mnt", "/proc/1/ns/mnt"}) {
        sys::UniqueFd other(open(own, O_PATH | O_CLOEXEC));
        if (!other.valid()) return core::make_error(Code::kInternal, format("%s cannot be looked at", own));
        BERTH_ASSIGN(struct statx found, look_at(other, own));
        if (found.stx_ino == asked.stx_ino && found.stx_dev_major == asked.stx_dev_major &&
            found.stx_dev_minor == asked.stx_dev_minor) {
            return core::invalid(
                format("linux.namespaces: %s is this machine's own mount namespace", quoted(path).c_str()));
        }
    }
    return core::ok();
}

}  // namespace

void CreateJob::begin() {
    if (!request_->spec_json.empty()) {
        config_ = std::move(request_->spec_json);
        return proceed();
    }
    if (request_->bundle.empty() || request_->bundle.front() != '/') {
        return fail(
            core::invalid("bundle: without a spec in options it must be an absolute directory of the guest"));
    }
    // O_NONBLOCK: a FIFO in its place must not hold a thread of the kernel's.
    open_by_ring(request_->bundle + "/config.json", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

void CreateJob::open_by_ring(const std::string& path, uint64_t flags) {
    open_path_ = path;
    open_how_ = {};
    open_how_.flags = flags;
    runtime_.loop().openat2(open_op_, open_path_.c_str(), open_how_);
}

void CreateJob::on_opened(loop::Op&, int32_t result) {
    sys::UniqueFd fd(result >= 0 ? result : -1);
    if (failing_) return roll_back();
    if (plans_ == nullptr) {
        if (auto taken = take_config(std::move(fd), result); !taken.ok()) fail(std::move(taken).error());
        return;
    }
    Look look = std::move(looks_.back());
    looks_.pop_back();
    core::Status found = core::ok();
    if (fd.valid()) {
        found = look.is_joined_mounts ? check_joined_mounts(look.path, fd) : check_bind_source(look.path, fd);
    } else if (!is_not_there(-result)) {
        found = core::errno_error(-result,
                                  format("%s: open %s", look.is_joined_mounts ? "linux.namespaces" : "mounts",
                                         quoted(look.path).c_str()));
    }
    if (!found.ok()) return fail(std::move(found).error());
    look_at_next();
}

core::Status CreateJob::take_config(sys::UniqueFd fd, int32_t result) {
    if (result < 0) return core::errno_error(-result, "open " + open_path_);
    BERTH_ASSIGN(struct statx found, look_at(fd, open_path_));
    if (!S_ISREG(found.stx_mode)) return core::invalid(open_path_ + ": not a regular file");
    if (found.stx_size == 0 || found.stx_size > limits::kSpecJsonBytes) {
        return core::invalid(format("%s: %llu bytes, from 1 to %zu are allowed", open_path_.c_str(),
                                    static_cast<unsigned long long>(found.stx_size), limits::kSpecJsonBytes));
    }
    config_.resize(static_cast<size_t>(found.stx_size));
    config_fd_ = std::move(fd);
    runtime_.loop().read(read_op_, config_fd_.get(), std::as_writable_bytes(std::span(config_)), 0);
    return core::ok();
}

void CreateJob::on_config_read(loop::Op&, int32_t result) {
    if (failing_) return roll_back();
    if (result < 0) return fail(core::errno_error(-result, "read " + open_path_));
    config_read_ += static_cast<size_t>(result);
    if (result > 0 && config_read_ < config_.size()) {
        auto rest = std::as_writable_bytes(std::span(config_)).subspan(config_read_);
        return runtime_.loop().read(read_op_, config_fd_.get(), rest, static_cast<int64_t>(config_read_));
    }
    config_.resize(config_read_);
    config_fd_.reset();
    proceed();
}

void CreateJob::proceed() {
    plans_ = std::make_unique<Plans>();
    if (auto read = read_spec(); !read.ok()) return fail(std::move(read).error());
    look_at_next();
}

core::Status CreateJob::read_spec() {
    CreateRequest& request = *request_;
    BERTH_ASSIGN(plans_->spec, core::parse_container_spec(config_));
    const core::ContainerSpec& spec = plans_->spec;
    if (!container_.is_owners) BERTH_TRY(core::refuse_owners_requests(spec));
    // With the spec in the request `bundle` is only a name of the host's; else it is where config.json lay.
    plans_->source_bundle = config_read_ != 0 ? request.bundle : request.source_bundle;
    plans_->bundle_dir = runtime_.config().run_dir + ("/bundles/" + container_.id.text());
    for (std::string& source : core::bind_sources_to_check(
             spec, plans_->source_bundle.empty() ? plans_->bundle_dir : plans_->source_bundle)) {
        looks_.push_back({std::move(source), false});
    }
    const core::NamespaceSpec* mounts = spec.find_namespace(core::kNewMount);
    if (container_.is_owners && mounts != nullptr && !mounts->path.empty())
        looks_.push_back({mounts->path, true});
    std::reverse(looks_.begin(), looks_.end());
    return core::ok();
}

// One after the other, and everything is planned once they are known: nothing else that the plan stands on is
// older than the change that it leads to.
void CreateJob::look_at_next() {
    // O_PATH: what is a FIFO or a device is not opened by it.
    if (!looks_.empty()) return open_by_ring(looks_.back().path, O_PATH | O_CLOEXEC);
    if (auto planned = plan(*plans_); !planned.ok()) return fail(std::move(planned).error());
    if (auto applied = apply(config_, *plans_); !applied.ok()) return fail(std::move(applied).error());
    plans_.reset();
    config_ = std::string();
}

core::Status CreateJob::check_bind_source(const std::string& source, const sys::UniqueFd& fd) {
    const core::GuestFacts& facts = runtime_.guest().facts;
    BERTH_ASSIGN(struct statx found, look_at(fd, source));
    if (S_ISBLK(found.stx_mode)) {
        core::GuestFacts now = facts;
        now.block_devices = list_block_devices();
        BERTH_TRY(core::check_bind_source(source, found.stx_mode, now));
    }
    if (S_ISCHR(found.stx_mode))
        BERTH_TRY(check_bound_device(source, found.stx_rdev_major, found.stx_rdev_minor));
    // Where symlinks lead, too: the planner knows the text only.
    char real[limits::kPathBytes + 1];
    ssize_t length = readlink(format("/proc/self/fd/%d", fd.get()).c_str(), real, sizeof real);
    std::string_view path(real, length > 0 ? static_cast<size_t>(length) : 0);
    const std::string& own = plans_->bundle_dir;
    bool is_agents = path == facts.agent_dir || path.starts_with(facts.agent_dir + "/");
    if (is_agents && path != own && !path.starts_with(own + "/")) {
        return make_error(Code::kPermissionDenied, format("mounts: %s leads into the agent's %s",
                                                          quoted(source).c_str(), facts.agent_dir.c_str()));
    }
    return core::ok();
}

core::Status CreateJob::check_bound_device(const std::string& source, uint32_t major, uint32_t minor) {
    if (container_.is_owners) return core::ok();
    core::DeviceNodeRequest node;
    node.path = source;
    node.major = major;
    node.minor = minor;
    bool exists = core::needs_existence(node) && char_device_exists(major, minor);
    return core::check_device_node(node, "bind source", exists);
}

}  // namespace berth::runtime
