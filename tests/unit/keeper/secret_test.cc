#include "agent/keeper/secret.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "agent/auth/keys.h"
#include "agent/keeper/key_page.h"

using berth::core::ClassKeys;
using berth::core::Result;
using berth::keeper::read_boot_secret;
using berth::keeper::read_secret_file;
using berth::keeper::SecretSource;

namespace {

constexpr char kHexA[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
constexpr char kHexB[] = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
constexpr char kHexC[] = "ee0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

// A fake root directory.
class Tree {
 public:
    Tree() { CHECK(::mkdtemp(path_) != nullptr); }
    ~Tree() { CHECK(::system(("rm -rf " + root()).c_str()) == 0); }
    std::string root() const { return path_; }
    std::string path(const std::string& name) const { return root() + name; }
    void write(const std::string& name, const std::string& content) {
        std::string file = path(name);
        CHECK(::system(("mkdir -p " + file.substr(0, file.rfind('/'))).c_str()) == 0);
        FILE* stream = ::fopen(file.c_str(), "w");
        REQUIRE(stream != nullptr);
        std::fwrite(content.data(), 1, content.size(), stream);
        std::fclose(stream);
    }
    bool has(const std::string& name) const { return ::access(path(name).c_str(), F_OK) == 0; }

 private:
    char path_[32] = "/tmp/berth-secret-XXXXXX";
};

constexpr char kImage[] = "/berth/secret";
constexpr char kFwCfg[] = "/sys/firmware/qemu_fw_cfg/by_name/opt/berth/secret/raw";
constexpr char kDmi[] = "/sys/firmware/dmi/tables/DMI";

std::string dmi_table(const std::string& text) {
    std::string table("\x0b\x05\x00\x00\x01", 5);
    table += text;
    table.append(2, '\0');
    return table;
}
bool holds(const ClassKeys& keys, const char* hex) {
    ClassKeys expected = berth::auth::derive_class_keys(*berth::auth::parse_secret(hex));
    return std::memcmp(&keys, &expected, sizeof keys) == 0;
}

}  // namespace

TEST_CASE("the image's file comes first and is gone afterwards") {
    Tree tree;
    tree.write(kImage, std::string(kHexA) + "\n");
    tree.write(kFwCfg, kHexB);
    tree.write(kDmi, dmi_table(std::string("berth.secret=") + kHexC));
    ClassKeys keys;
    CHECK(*read_boot_secret(tree.root(), keys) == SecretSource::kImageFile);
    CHECK(holds(keys, kHexA));
    CHECK(!tree.has(kImage));
    CHECK(*read_boot_secret(tree.root(), keys) == SecretSource::kFwCfg);
    CHECK(holds(keys, kHexB));
    ::unlink(tree.path(kFwCfg).c_str());
    CHECK(*read_boot_secret(tree.root(), keys) == SecretSource::kSmbios);
    CHECK(holds(keys, kHexC));
    ::unlink(tree.path(kDmi).c_str());
    ClassKeys untouched;
    CHECK(*read_boot_secret(tree.root(), untouched) == SecretSource::kNone);
    CHECK(untouched.key[0][0] == 0);
}

TEST_CASE("32 raw bytes are a secret too") {
    Tree tree;
    std::string raw;
    for (int i = 0; i < 32; ++i) raw.push_back(static_cast<char>(i));
    tree.write(kImage, raw);
    ClassKeys keys;
    CHECK(*read_boot_secret(tree.root(), keys) == SecretSource::kImageFile);
    CHECK(holds(keys, kHexA));
}

TEST_CASE(
    "a malformed secret is an error that names its source, not its content, and does not fall through") {
    for (const char* source : {kImage, kFwCfg, kDmi}) {
        for (const std::string& text : {std::string("hunter2"), std::string(), std::string(64, '0'),
                                        std::string(kHexA) + "0", std::string(4000, 'a')}) {
            CAPTURE(source);
            CAPTURE(text);
            Tree tree;
            tree.write(source, source == kDmi ? dmi_table("berth.secret=" + text) : text);
            if (source != kDmi) tree.write(kDmi, dmi_table(std::string("berth.secret=") + kHexC));
            ClassKeys keys;
            Result<SecretSource> read = read_boot_secret(tree.root(), keys);
            REQUIRE(!read.ok());
            const char* name = source == kImage   ? "/berth/secret: "
                               : source == kFwCfg ? "fw_cfg opt/berth/secret: "
                                                  : "SMBIOS type 11 (berth.secret): ";
            CHECK(read.error().message.starts_with(name));
            CHECK(read.error().message.find("hunter2") == std::string::npos);
            CHECK(keys.key[0][0] == 0);
            CHECK(!tree.has(kImage));
        }
    }
}

TEST_CASE("the image's secret is overwritten before its pages go back") {
    Tree tree;
    tree.write(kImage, kHexA);
    // A second link keeps the file to look at.
    CHECK(::link(tree.path(kImage).c_str(), tree.path("/kept").c_str()) == 0);
    ClassKeys keys;
    CHECK(read_boot_secret(tree.root(), keys).ok());
    FILE* stream = ::fopen(tree.path("/kept").c_str(), "r");
    char content[65] = "x";
    CHECK(std::fread(content, 1, sizeof content, stream) == 64);
    std::fclose(stream);
    for (int i = 0; i < 64; ++i) CHECK(content[i] == '\0');
}

TEST_CASE("a symbolic link is not followed") {
    Tree tree;
    tree.write("/elsewhere", kHexA);
    CHECK(::mkdir(tree.path("/berth").c_str(), 0700) == 0);
    CHECK(::symlink("/elsewhere", tree.path(kImage).c_str()) == 0);
    ClassKeys keys;
    CHECK(read_boot_secret(tree.root(), keys).error().message == "read /berth/secret: ELOOP");
}

TEST_CASE("a helper's file is read and left alone") {
    Tree tree;
    tree.write("/key", std::string(kHexB) + "\n");
    ClassKeys keys;
    CHECK(read_secret_file(tree.path("/key"), keys).ok());
    CHECK(holds(keys, kHexB));
    CHECK(tree.has("/key"));
    CHECK(read_secret_file(tree.path("/none"), keys).error().message ==
          "read " + tree.path("/none") + ": ENOENT");
}

TEST_CASE("the key page is zero in a child") {
    auto page = berth::keeper::KeyPage::create();
    REQUIRE(page.ok());
    page->keys().key[1][3] = 42;
    pid_t pid = ::fork();
    if (pid == 0) ::_exit(page->keys().key[1][3]);
    int status = 0;
    CHECK(::waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
    CHECK(page->keys().key[1][3] == 42);
}
