// The option words of a mount, as mount(8), runc and crun know them, sorted by what they act on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"

namespace berth::core {

// MOUNT_ATTR_* of linux/mount.h.
inline constexpr uint64_t kAttrRdonly = 0x1;
inline constexpr uint64_t kAttrNosuid = 0x2;
inline constexpr uint64_t kAttrNodev = 0x4;
inline constexpr uint64_t kAttrNoexec = 0x8;
inline constexpr uint64_t kAttrAtimeMask = 0x70;
inline constexpr uint64_t kAttrNoatime = 0x10;
inline constexpr uint64_t kAttrStrictatime = 0x20;
inline constexpr uint64_t kAttrNodiratime = 0x80;
inline constexpr uint64_t kAttrNosymfollow = 0x200000;

struct AttrChange {
    uint64_t set = 0;
    uint64_t clear = 0;  // has kAttrAtimeMask whenever an access-time word was given (kernel rule)

    bool empty() const { return set == 0 && clear == 0; }
    bool operator==(const AttrChange&) const = default;
};

struct Propagation {
    uint64_t type = 0;  // MS_SHARED, MS_PRIVATE, MS_SLAVE or MS_UNBINDABLE
    bool recursive = false;
    bool operator==(const Propagation&) const = default;
};

struct MountOptions {
    AttrChange top;                        // ro, nosuid, ...: the mount itself
    AttrChange recursive;                  // rro, rnosuid, ...: the mount and everything below it
    std::vector<Propagation> propagation;  // in the order given; each is applied on its own
    bool bind = false;
    bool bind_recursive = false;
    bool tmpcopyup = false;
    bool copy_symlink = false;     // crun's: a source that is a symlink is made anew, not followed
    bool idmap = false;            // "idmap" or "ridmap"
    bool idmap_recursive = false;  // "ridmap"
    bool rw_asked = false;         // "rw" or "rrw" was written out
    bool atime_asked = false;      // "noatime", "relatime", "strictatime" or "nodiratime" is among them
    std::vector<std::string> superblock_flags;  // "sync", "dirsync", "mand", "lazytime": flags of fsconfig
    uint64_t superblock_mask = 0;               // the same as MS_* for mount(2)
    std::vector<std::string> data;              // what only the filesystem knows: "mode=755", "newinstance"
};

// Sorts `options`; later words win over earlier ones. UNIMPLEMENTED for words that mount(8) knows and we
// cannot do (remount); the message begins with the word, so that callers put
// `mounts[3].options: ` before it. "defaults", "silent" and "loud" change nothing. The words are those of the
// OCI runtime spec 1.2 (config.md, "Linux mount options").
Result<MountOptions> parse_mount_options(std::span<const std::string> options);

// What a bind mount changes of the attributes that its source has, as runc and crun do it with mount(2)'s
// MS_REMOUNT: no word about attributes, and all stay; with one the mount has those that were written and no
// other, whatever the source had. Access times stay as they are unless a word chooses some ("atime" and
// "norelatime" choose none). `unnamed`: what goes only because nobody wrote it. A mount with `keeps_locked`
// (in a user namespace, where the kernel would not let go of them) keeps ro, nosuid, nodev and noexec.
struct BindAttributes {
    AttrChange change;
    uint64_t unnamed = 0;
};
BindAttributes attributes_of_bind(const MountOptions& options, bool keeps_locked);

// MOUNT_ATTR_* as MS_* for mount(2).
uint64_t mount_flags_of_attributes(uint64_t attributes);

}  // namespace berth::core
