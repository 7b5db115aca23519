#include "agent/runtime/state_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "agent/core/limits.h"
#include "agent/sys/fd.h"

namespace berth::runtime {
namespace {

core::Status make_directory(const std::string& path) {
    if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return core::ok();
    return core::errno_error(errno, "mkdir " + path);
}

constexpr int kNewFile = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
constexpr const char* kState = "state";

constexpr uint32_t kWhole = 0x31545342;   // "BST1": the state
constexpr uint32_t kChange = 0x32545342;  // "BST2": what is added to it

struct RecordHeader {
    uint32_t magic = kWhole;
    uint32_t length = 0;
};

std::string record_of(uint32_t magic, std::string_view content) {
    RecordHeader header;
    header.magic = magic;
    header.length = static_cast<uint32_t>(content.size());
    std::string record(reinterpret_cast<const char*>(&header), sizeof header);
    return record.append(content);
}

// The last whole record's content with the changes after it, or nothing.
std::optional<std::string> state_in(std::string_view file) {
    std::optional<std::string> state;
    RecordHeader header;
    while (file.size() >= sizeof header) {
        memcpy(&header, file.data(), sizeof header);
        file.remove_prefix(sizeof header);
        bool is_change = header.magic == kChange && state.has_value();
        if ((header.magic != kWhole && !is_change) || header.length > file.size()) break;
        if (!is_change) state.emplace();
        state->append(file.substr(0, header.length));
        file.remove_prefix(header.length);
    }
    return state;
}

std::string directory_of(const std::string& run_dir, const std::string& id) {
    return run_dir + "/state/" + id;
}

core::Status write_all(sys::FdRef fd, std::string_view content, const std::string& path) {
    while (!content.empty()) {
        ssize_t written = ::write(fd.get(), content.data(), content.size());
        if (written < 0) {
            if (errno == EINTR) continue;
            return core::errno_error(errno, "write " + path);
        }
        content.remove_prefix(static_cast<size_t>(written));
    }
    return core::ok();
}

void remove_below(int parent, const char* name, int depth) {
    if (unlinkat(parent, name, 0) == 0 || depth == 0) return;
    sys::UniqueFd directory(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!directory.valid()) return;
    int copy = fcntl(directory.get(), F_DUPFD_CLOEXEC, 3);
    std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(copy), closedir);
    if (entries == nullptr) return;
    while (const dirent* entry = readdir(entries.get())) {
        std::string_view child = entry->d_name;
        if (child != "." && child != "..") remove_below(directory.get(), entry->d_name, depth - 1);
    }
    unlinkat(parent, name, AT_REMOVEDIR);
}

}  // namespace

core::Status make_state_directories(const std::string& run_dir) {
    BERTH_TRY(make_directory(run_dir));
    BERTH_TRY(make_directory(run_dir + "/state"));
    return make_directory(run_dir + "/bundles");
}

core::Status write_state_file(const std::string& run_dir, const std::string& id, const char* name,
                              std::string_view content) {
    std::string directory = directory_of(run_dir, id);
    std::string path = directory + "/" + name;
    std::string beside = path + ".new";
    sys::UniqueFd fd(open(beside.c_str(), kNewFile | O_TRUNC, 0600));
    if (!fd.valid() && errno == ENOENT) {
        BERTH_TRY(make_directory(directory));
        fd.reset(open(beside.c_str(), kNewFile | O_TRUNC, 0600));
    }
    if (!fd.valid()) return core::errno_error(errno, "open " + beside);
    BERTH_TRY(write_all(fd, content, beside));
    if (rename(beside.c_str(), path.c_str()) != 0) return core::errno_error(errno, "rename " + path);
    return core::ok();
}

core::Status write_first_state_file(const std::string& run_dir, const std::string& id, const char* name,
                                    std::string_view content) {
    std::string path = directory_of(run_dir, id) + "/" + name;
    sys::UniqueFd fd(open(path.c_str(), kNewFile | O_TRUNC, 0600));
    if (!fd.valid()) return core::errno_error(errno, "open " + path);
    return write_all(fd, content, path);
}

core::Status StateLog::append(const std::string& run_dir, const std::string& id, std::string_view content,
                              OpenStateFile* open) {
    std::string record = record_of(kWhole, content);
    if (bytes_ == 0 || bytes_ + record.size() > limits::kStateLogBytes)
        return write_anew(run_dir, id, record);
    return write_behind(run_dir, id, record, open);
}

bool StateLog::append_change(const std::string& run_dir, const std::string& id, std::string_view content,
                             OpenStateFile* open) {
    if (bytes_ == 0 || bytes_ + sizeof(RecordHeader) + content.size() > limits::kStateLogBytes) return false;
    return write_behind(run_dir, id, record_of(kChange, content), open).ok();
}

core::Status StateLog::write_behind(const std::string& run_dir, const std::string& id,
                                    std::string_view record, OpenStateFile* open) {
    std::string path = directory_of(run_dir, id) + "/" + kState;
    OpenStateFile own;
    OpenStateFile& file = open == nullptr ? own : *open;
    if (!file.fd_.valid() || serial_ != file.serial_) {
        file.fd_.reset(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
        if (!file.fd_.valid()) return core::errno_error(errno, "open " + path);
        serial_ = ++file.serial_;
    }
    core::Status written = write_all(file.fd_, record, path);
    if (written.ok()) {
        bytes_ += record.size();
    } else if (ftruncate(file.fd_.get(), static_cast<off_t>(bytes_)) != 0) {
        bytes_ = 0;  // what follows half a record would not be found
    }
    return written;
}

core::Status StateLog::write_anew(const std::string& run_dir, const std::string& id,
                                  std::string_view record) {
    serial_ = 0;  // another file from here on
    std::string directory = directory_of(run_dir, id);
    std::string path = directory + "/" + kState;
    if (mkdir(directory.c_str(), 0700) == 0) {
        // The first of a container: whole or not, nothing else of it is there yet.
        sys::UniqueFd fd(open(path.c_str(), kNewFile | O_EXCL, 0600));
        if (!fd.valid()) return core::errno_error(errno, "open " + path);
        BERTH_TRY(write_all(fd, record, path));
    } else if (errno != EEXIST) {
        return core::errno_error(errno, "mkdir " + directory);
    } else {
        BERTH_TRY(write_state_file(run_dir, id, kState, record));
    }
    bytes_ = record.size();
    return core::ok();
}

core::Result<std::string> StateLog::read(const std::string& run_dir, const std::string& id) {
    BERTH_ASSIGN(std::string file, read_state_file(run_dir, id, kState));
    std::optional<std::string> state = state_in(file);
    if (!state) return core::make_error(core::Code::kNotFound, "state file without a whole record");
    return std::move(*state);
}

core::Result<std::string> read_state_file(const std::string& run_dir, const std::string& id,
                                          const char* name) {
    std::string path = run_dir + "/state/" + id + "/" + name;
    sys::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat found {};
    if (!fd.valid() || fstat(fd.get(), &found) != 0) return core::errno_error(errno, "open " + path);
    std::string content(static_cast<size_t>(found.st_size), '\0');
    size_t at = 0;
    while (at < content.size()) {
        ssize_t count = ::read(fd.get(), content.data() + at, content.size() - at);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return core::errno_error(count < 0 ? errno : EIO, "read " + path);
        at += static_cast<size_t>(count);
    }
    return content;
}

namespace {

// The container's own mounts were in its own mount namespace: what is left here are empty directories.
void remove_bundle(const std::string& bundle) {
    // Most have a root alone, and it is empty: no folder needs to be read for that.
    if (rmdir((bundle + "/rootfs").c_str()) == 0 && rmdir(bundle.c_str()) == 0) return;
    for (const char* below : {"/mounts", "/rootfs"}) {
        std::string path = bundle + below;
        sys::UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!directory.valid()) continue;
        std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(directory.release()), closedir);
        if (entries == nullptr) continue;
        // Only empty directories: whatever a caller put there is not ours to remove.
        while (const dirent* entry = readdir(entries.get()))
            unlinkat(dirfd(entries.get()), entry->d_name, AT_REMOVEDIR);
        rmdir(path.c_str());
    }
    rmdir(bundle.c_str());
}

}  // namespace

// The state goes last: killed in here, the next agent finds it and knows whose the rest is.
void remove_state(const std::string& run_dir, const std::string& id) {
    constexpr int kDepth = 6;
    remove_bundle(run_dir + "/bundles/" + id);
    std::string own = directory_of(run_dir, id);
    for (const char* name : {"/state", "/config.json"}) unlink((own + name).c_str());
    if (rmdir(own.c_str()) != 0 && errno != ENOENT) remove_below(AT_FDCWD, own.c_str(), kDepth);
}

core::Result<std::vector<std::string>> list_states(const std::string& run_dir) {
    std::string path = run_dir + "/state";
    std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(path.c_str()), closedir);
    if (entries == nullptr) return core::errno_error(errno, "opendir " + path);
    std::vector<std::string> ids;
    while (const dirent* entry = readdir(entries.get())) {
        if (entry->d_name[0] != '.') ids.emplace_back(entry->d_name);
    }
    return ids;
}

}  // namespace berth::runtime
