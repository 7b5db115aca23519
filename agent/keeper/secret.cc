#include "agent/keeper/secret.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>

#include "agent/auth/keys.h"
#include "agent/core/smbios.h"
#include "agent/sys/fd.h"
#include "agent/sys/modules.h"
#include "agent/sys/small_file.h"

namespace berth::keeper {
namespace {

using core::Result;
using core::Status;

constexpr size_t kSecretFileBytes = 256;  // a secret is 32 to 65 bytes: more is malformed
constexpr size_t kDmiTableBytes = 65'535;

// A buffer that never leaves copies of itself behind.
class WipedBuffer {
 public:
    explicit WipedBuffer(size_t bytes) : bytes_(bytes), data_(std::make_unique<char[]>(bytes)) {}
    ~WipedBuffer() { auth::wipe(data_.get(), bytes_); }
    WipedBuffer(const WipedBuffer&) = delete;
    WipedBuffer& operator=(const WipedBuffer&) = delete;

    // The whole file, as a view of this buffer. A file that is larger is cut: the parser refuses it.
    Result<std::string_view> read(sys::FdRef fd, const std::string& name) {
        size_t used = 0;
        while (used < bytes_) {
            ssize_t got = ::read(fd.get(), data_.get() + used, bytes_ - used);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return core::errno_error(errno, "read " + name);
            if (got == 0) break;
            used += static_cast<size_t>(got);
        }
        return std::string_view(data_.get(), used);
    }

 private:
    size_t bytes_;
    std::unique_ptr<char[]> data_;
};

Status use_secret(std::string_view text, const std::string& name, core::ClassKeys& keys) {
    Result<auth::Key> secret = auth::parse_secret(text);
    if (!secret.ok()) return std::move(secret).error().within(name);
    keys = auth::derive_class_keys(*secret);
    auth::wipe(secret->data(), secret->size());
    return core::ok();
}

// True when `path` was there.
Result<bool> try_file(const std::string& path, int open_flags, const std::string& name,
                      core::ClassKeys& keys) {
    sys::UniqueFd fd(::open(path.c_str(), open_flags | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY));
    if (!fd.valid()) {
        if (errno == ENOENT || errno == ENOTDIR) return false;
        return core::errno_error(errno, "read " + name);
    }
    WipedBuffer buffer(kSecretFileBytes);
    BERTH_ASSIGN(std::string_view text, buffer.read(fd, name));
    BERTH_TRY(use_secret(text, name, keys));
    return true;
}

// Zeros over the file's pages before they go back to the kernel.
void wipe_and_unlink(const std::string& path) {
    sys::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY));
    struct stat status {};
    if (fd.valid() && ::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode)) {
        static constexpr char kZeros[256] = {};
        for (off_t at = 0; at < status.st_size;) {
            auto left = static_cast<size_t>(status.st_size - at);
            ssize_t written = ::pwrite(fd.get(), kZeros, left < sizeof kZeros ? left : sizeof kZeros, at);
            if (written <= 0) break;
            at += written;
        }
    }
    ::unlink(path.c_str());
}

Result<bool> try_smbios(const std::string& path, core::ClassKeys& keys) {
    const std::string name = "SMBIOS type 11 (berth.secret)";
    sys::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    // Many guests have no SMBIOS at all.
    if (!fd.valid()) return false;
    WipedBuffer buffer(kDmiTableBytes);
    BERTH_ASSIGN(std::string_view table, buffer.read(fd, name));
    std::optional<std::string_view> value =
        core::find_oem_string(std::as_bytes(std::span(table.data(), table.size())), "berth.secret=");
    if (!value) return false;
    BERTH_TRY(use_secret(*value, name, keys));
    return true;
}

}  // namespace

const char* secret_source_name(SecretSource source) {
    switch (source) {
        case SecretSource::kNone: return "none";
        case SecretSource::kImageFile: return "/berth/secret of the image";
        case SecretSource::kFwCfg: return "fw_cfg opt/berth/secret";
        case SecretSource::kSmbios: return "SMBIOS type 11";
        case SecretSource::kFile: return "--secret-file";
    }
    return "?";
}

Result<SecretSource> read_boot_secret(const std::string& root, core::ClassKeys& keys) {
    const std::string image_file = root + "/berth/secret";
    Result<bool> found = try_file(image_file, O_RDONLY, "/berth/secret", keys);
    wipe_and_unlink(image_file);
    if (!found.ok()) return std::move(found).error();
    if (*found) return SecretSource::kImageFile;
    BERTH_ASSIGN(bool in_fw_cfg, try_file(root + "/sys/firmware/qemu_fw_cfg/by_name/opt/berth/secret/raw",
                                          O_RDONLY, "fw_cfg opt/berth/secret", keys));
    if (in_fw_cfg) return SecretSource::kFwCfg;
    BERTH_ASSIGN(bool in_smbios, try_smbios(root + "/sys/firmware/dmi/tables/DMI", keys));
    return in_smbios ? SecretSource::kSmbios : SecretSource::kNone;
}

Status hide_fw_cfg() {
    BERTH_TRY(sys::unload_module("qemu_fw_cfg"));
    const std::string driver = "/sys/bus/platform/drivers/fw_cfg";
    std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(driver.c_str()), ::closedir);
    if (entries == nullptr) return core::ok();
    while (const dirent* entry = ::readdir(entries.get())) {
        // Links are its devices, but for one.
        if (entry->d_type != DT_LNK || std::string_view(entry->d_name) == "module") continue;
        BERTH_TRY(sys::write_existing_file((driver + "/unbind").c_str(), entry->d_name));
    }
    return core::ok();
}

Status read_secret_file(const std::string& path, core::ClassKeys& keys) {
    sys::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) return core::errno_error(errno, "read " + path);
    WipedBuffer buffer(kSecretFileBytes);
    BERTH_ASSIGN(std::string_view text, buffer.read(fd, path));
    return use_secret(text, path, keys);
}

}  // namespace berth::keeper
