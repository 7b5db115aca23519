#include "agent/core/mount_options.h"

#include <algorithm>

#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr uint64_t kMsRdonly = 1, kMsNosuid = 2, kMsNodev = 4, kMsNoexec = 8, kMsSync = 16, kMsMand = 64,
                   kMsDirsync = 128, kMsNosymfollow = 256, kMsNoatime = 1024, kMsNodiratime = 2048,
                   kMsUnbindable = 1 << 17, kMsPrivate = 1 << 18, kMsSlave = 1 << 19, kMsShared = 1 << 20,
                   kMsRelatime = 1 << 21, kMsStrictatime = 1 << 24, kMsLazytime = 1 << 25;

struct AttrWord {
    std::string_view word;
    uint64_t set;
    uint64_t clear;
};

// Each also exists with an "r" in front, for the whole tree. relatime is the absence of the other two.
constexpr AttrWord kAttrWords[] = {
    {"ro", kAttrRdonly, 0},
    {"rw", 0, kAttrRdonly},
    {"nosuid", kAttrNosuid, 0},
    {"suid", 0, kAttrNosuid},
    {"nodev", kAttrNodev, 0},
    {"dev", 0, kAttrNodev},
    {"noexec", kAttrNoexec, 0},
    {"exec", 0, kAttrNoexec},
    {"nodiratime", kAttrNodiratime, 0},
    {"diratime", 0, kAttrNodiratime},
    {"nosymfollow", kAttrNosymfollow, 0},
    {"symfollow", 0, kAttrNosymfollow},
    {"noatime", kAttrNoatime, kAttrAtimeMask},
    {"atime", 0, kAttrAtimeMask},
    {"strictatime", kAttrStrictatime, kAttrAtimeMask},
    {"nostrictatime", 0, kAttrAtimeMask},
    {"relatime", 0, kAttrAtimeMask},
    {"norelatime", 0, kAttrAtimeMask},
};

struct SuperblockWord {
    std::string_view set;
    std::string_view clear;
    uint64_t flag;
};

constexpr SuperblockWord kSuperblockWords[] = {
    {"sync", "async", kMsSync},
    {"dirsync", "", kMsDirsync},
    {"mand", "nomand", kMsMand},
    {"lazytime", "nolazytime", kMsLazytime},
};

constexpr struct {
    std::string_view word;
    uint64_t type;
} kPropagationWords[] = {
    {"private", kMsPrivate}, {"shared", kMsShared}, {"slave", kMsSlave}, {"unbindable", kMsUnbindable}};

bool apply_attr_word(std::string_view word, AttrChange& change) {
    for (const AttrWord& known : kAttrWords) {
        if (known.word != word) continue;
        change.set = (change.set & ~known.clear) | known.set;
        // An access-time word puts the whole mask into clear, as mount_setattr demands, and it stays there.
        change.clear = (change.clear & (~known.set | kAttrAtimeMask)) | known.clear;
        return true;
    }
    return false;
}

void note_atime_word(std::string_view word, MountOptions& options) {
    if (word == "noatime" || word == "relatime" || word == "strictatime" || word == "nodiratime")
        options.atime_asked = true;
    if (word == "atime" || word == "norelatime" || word == "nostrictatime" || word == "diratime")
        options.atime_asked = (options.top.set & (kAttrNoatime | kAttrStrictatime | kAttrNodiratime)) != 0;
}

bool apply_superblock_word(std::string_view word, MountOptions& options) {
    for (const SuperblockWord& known : kSuperblockWords) {
        if (word != known.set && (known.clear.empty() || word != known.clear)) continue;
        std::erase(options.superblock_flags, known.set);
        options.superblock_mask &= ~known.flag;
        if (word == known.set) {
            options.superblock_flags.emplace_back(word);
            options.superblock_mask |= known.flag;
        }
        return true;
    }
    return false;
}

bool apply_propagation_word(std::string_view word, MountOptions& options) {
    for (const auto& known : kPropagationWords) {
        bool recursive = word.starts_with('r') && word.substr(1) == known.word;
        if (!recursive && word != known.word) continue;
        options.propagation.push_back({.type = known.type, .recursive = recursive});
        return true;
    }
    return false;
}

bool apply_other_word(std::string_view word, MountOptions& options) {
    if (word == "defaults" || word == "silent" || word == "loud" || word == "iversion" ||
        word == "noiversion" || word.empty())
        return true;
    if (word == "bind" || word == "rbind") {
        options.bind = true;
        options.bind_recursive = options.bind_recursive || word == "rbind";
        return true;
    }
    if (word == "idmap" || word == "ridmap") {
        options.idmap = true;
        options.idmap_recursive = word == "ridmap";
        return true;
    }
    if (word == "copy-symlink") {
        options.copy_symlink = true;
        return true;
    }
    if (word == "tmpcopyup") {
        options.tmpcopyup = true;
        return true;
    }
    return false;
}

// An option with commas is several, as it would be for mount(2); "\," stays (overlay's paths).
void add_data(std::string_view option, MountOptions& options) {
    size_t start = 0;
    for (size_t i = 0; i <= option.size(); ++i) {
        if (i < option.size() && (option[i] != ',' || (i > 0 && option[i - 1] == '\\'))) continue;
        if (i > start) options.data.emplace_back(option.substr(start, i - start));
        start = i + 1;
    }
}

}  // namespace

Result<MountOptions> parse_mount_options(std::span<const std::string> words) {
    MountOptions options;
    for (const std::string& word : words) {
        if (word == "remount") return make_error(Code::kUnimplemented, quoted(word) + " is not supported");
        if (word == "rw" || word == "rrw") options.rw_asked = true;
        if (word == "ro" || word == "rro") options.rw_asked = false;
        if (apply_attr_word(word, options.top)) {
            note_atime_word(word, options);
            continue;
        }
        if (word.starts_with('r') && apply_attr_word(std::string_view(word).substr(1), options.recursive))
            continue;
        if (apply_superblock_word(word, options) || apply_propagation_word(word, options) ||
            apply_other_word(word, options))
            continue;
        add_data(word, options);
    }
    return options;
}

BindAttributes attributes_of_bind(const MountOptions& options, bool keeps_locked) {
    if (options.top.empty()) return {};
    constexpr uint64_t kLocked = kAttrRdonly | kAttrNosuid | kAttrNodev | kAttrNoexec;
    BindAttributes bind{.change = options.top};
    AttrChange& change = bind.change;
    constexpr uint64_t kTimes = kAttrAtimeMask | kAttrNodiratime;
    change.clear &= ~kTimes;
    if (options.atime_asked) change.clear |= kAttrAtimeMask | (kAttrNodiratime & ~change.set);
    bind.unnamed = (kAttrNosymfollow | (keeps_locked ? 0 : kLocked)) & ~change.set & ~change.clear;
    change.clear |= bind.unnamed;
    return bind;
}

uint64_t mount_flags_of_attributes(uint64_t attributes) {
    constexpr std::pair<uint64_t, uint64_t> kPairs[] = {
        {kAttrRdonly, kMsRdonly},         {kAttrNosuid, kMsNosuid},
        {kAttrNodev, kMsNodev},           {kAttrNoexec, kMsNoexec},
        {kAttrNoatime, kMsNoatime},       {kAttrStrictatime, kMsStrictatime},
        {kAttrNodiratime, kMsNodiratime}, {kAttrNosymfollow, kMsNosymfollow},
    };
    uint64_t flags = 0;
    for (const auto& [attribute, flag] : kPairs)
        if (attributes & attribute) flags |= flag;
    if ((attributes & kAttrAtimeMask) == 0) flags |= kMsRelatime;
    return flags;
}

}  // namespace berth::core
