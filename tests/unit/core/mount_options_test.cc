#include "agent/core/mount_options.h"

#include <doctest/doctest.h>

#include "agent/core/text.h"

using namespace berth::core;

namespace {

MountOptions parse(std::string_view words) {
    std::vector<std::string> list;
    for (std::string_view word : split(words, ' ')) list.emplace_back(word);
    auto options = parse_mount_options(list);
    REQUIRE(options.ok());
    return *options;
}

}  // namespace

TEST_CASE("every attribute word sets or clears its bit, alone and recursive") {
    const struct {
        std::string_view word;
        uint64_t set;
        uint64_t clear;
    } rows[] = {
        {"ro", 0x1, 0},
        {"rw", 0, 0x1},
        {"nosuid", 0x2, 0},
        {"suid", 0, 0x2},
        {"nodev", 0x4, 0},
        {"dev", 0, 0x4},
        {"noexec", 0x8, 0},
        {"exec", 0, 0x8},
        {"noatime", 0x10, 0x70},
        {"atime", 0, 0x70},
        {"strictatime", 0x20, 0x70},
        {"nostrictatime", 0, 0x70},
        {"relatime", 0, 0x70},
        {"norelatime", 0, 0x70},
        {"nodiratime", 0x80, 0},
        {"diratime", 0, 0x80},
        {"nosymfollow", 0x200000, 0},
        {"symfollow", 0, 0x200000},
    };
    for (const auto& row : rows) {
        CAPTURE(row.word);
        MountOptions plain = parse(row.word);
        CHECK(plain.top == AttrChange{row.set, row.clear});
        CHECK(plain.recursive.empty());
        CHECK(plain.data.empty());
        MountOptions recursive = parse("r" + std::string(row.word));
        CHECK(recursive.recursive == AttrChange{row.set, row.clear});
        CHECK(recursive.top.empty());
        CHECK(recursive.data.empty());
    }
}

TEST_CASE("later words win") {
    CHECK(parse("ro rw").top == AttrChange{0, 0x1});
    CHECK(parse("rw ro").top == AttrChange{0x1, 0});
    CHECK(parse("noatime strictatime").top == AttrChange{0x20, 0x70});
    CHECK(parse("strictatime relatime ro").top == AttrChange{0x1, 0x70});
    CHECK(parse("ro rw").rw_asked);
    CHECK_FALSE(parse("rw ro").rw_asked);
    CHECK_FALSE(parse("nosuid").rw_asked);
    CHECK(parse("sync dirsync async").superblock_flags == std::vector<std::string>{"dirsync"});
    CHECK(parse("sync mand lazytime").superblock_mask == (16u | 64u | 1u << 25));
}

TEST_CASE("propagation words stay in order") {
    MountOptions options = parse("rslave shared runbindable private");
    CHECK(options.propagation ==
          std::vector<Propagation>{{1 << 19, true}, {1 << 20, false}, {1 << 17, true}, {1 << 18, false}});
    CHECK(options.data.empty());
}

TEST_CASE("what is not a word is the filesystem's") {
    MountOptions options = parse("defaults silent loud mode=755,size=64k newinstance acl lowerdir=a\\,b:c");
    CHECK(options.data ==
          std::vector<std::string>{"mode=755", "size=64k", "newinstance", "acl", "lowerdir=a\\,b:c"});
    CHECK(options.top.empty());
    CHECK(parse("bind").bind);
    CHECK_FALSE(parse("bind").bind_recursive);
    CHECK(parse("rbind bind").bind_recursive);
    CHECK(parse("tmpcopyup").tmpcopyup);
    CHECK(parse("copy-symlink").copy_symlink);
    CHECK(parse("idmap").idmap);
    CHECK_FALSE(parse("idmap").idmap_recursive);
    CHECK(parse("ridmap").idmap_recursive);
    CHECK_FALSE(parse("bind").idmap);
}

TEST_CASE("words that cannot be done are refused") {
    std::string word = "remount";
    auto options = parse_mount_options(std::span(&word, 1));
    REQUIRE_FALSE(options.ok());
    CHECK(options.error().code == Code::kUnimplemented);
    CHECK(options.error().message == "\"remount\" is not supported");
}

TEST_CASE("attributes as flags of mount(2)") {
    CHECK(mount_flags_of_attributes(0) == 1u << 21);
    CHECK(mount_flags_of_attributes(kAttrRdonly | kAttrNosuid | kAttrNodev | kAttrNoexec) ==
          (15u | 1u << 21));
    CHECK(mount_flags_of_attributes(kAttrNoatime | kAttrNodiratime) == (1024u | 2048u));
    CHECK(mount_flags_of_attributes(kAttrStrictatime | kAttrNosymfollow) == (1u << 24 | 256u));
}

TEST_CASE("a bind with a word about attributes has what was written, and no other attribute of its source") {
    constexpr uint64_t kAll = 0x20000f;
    const struct {
        std::string_view words;
        bool keeps_locked;
        uint64_t set, clear, unnamed;
    } rows[] = {
        {"rbind rprivate defaults", false, 0, 0, 0},
        {"bind dev", false, 0, kAll, kAll & ~0x4u},
        {"bind dev", true, 0, 0x200004, 0x200000},
        {"bind ro", false, 0x1, kAll & ~0x1u, kAll & ~0x1u},
        {"bind nosuid nodev", true, 0x6, 0x200000, 0x200000},
        {"bind rw", true, 0, 0x200001, 0x200000},
        // Access times: kept, unless a word chooses some.
        {"bind atime", false, 0, kAll, kAll},
        {"bind norelatime", false, 0, kAll, kAll},
        {"bind relatime", false, 0, kAll | 0xf0, kAll},
        {"bind noatime", false, 0x10, kAll | 0xf0, kAll},
        {"bind noatime atime", false, 0, kAll, kAll},
        {"bind nodiratime", false, 0x80, kAll | 0x70, kAll},
        {"bind nodiratime strictatime", false, 0xa0, kAll | 0x70, kAll},
        {"bind nodiratime norelatime", false, 0x80, kAll | 0x70, kAll},
        // The recursive words are for what they name.
        {"bind rro", false, 0, 0, 0},
    };
    for (const auto& row : rows) {
        CAPTURE(row.words);
        BindAttributes bind = attributes_of_bind(parse(row.words), row.keeps_locked);
        CHECK(bind.change.set == row.set);
        CHECK(bind.change.clear == row.clear);
        CHECK(bind.unnamed == row.unnamed);
    }
}
