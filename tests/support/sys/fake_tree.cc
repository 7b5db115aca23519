#include "tests/support/sys/fake_tree.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>

namespace berth::test {
namespace {

void make(const std::string& directory, const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
        std::string path = directory + "/" + node.name;
        if (node.folder) {
            REQUIRE(mkdir(path.c_str(), 0755) == 0);
            make(path, node.children);
            continue;
        }
        FILE* out = fopen(path.c_str(), "w");
        REQUIRE(out != nullptr);
        REQUIRE(fwrite(node.content.data(), 1, node.content.size(), out) == node.content.size());
        REQUIRE(fclose(out) == 0);
    }
}

int remove_one(const char* path, const struct stat*, int, FTW*) {
    return remove(path);
}

}  // namespace

FakeTree::FakeTree(const std::vector<Node>& nodes) {
    char pattern[] = "/tmp/berth-tree-XXXXXX";
    REQUIRE(mkdtemp(pattern) != nullptr);
    path_ = pattern;
    make(path_, nodes);
    root_ = sys::UniqueFd(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(root_.valid());
}

FakeTree::~FakeTree() {
    nftw(path_.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

bool FakeTree::exists(const std::string& relative) const {
    struct stat info {};
    return lstat(path(relative).c_str(), &info) == 0;
}

std::string FakeTree::content(const std::string& relative) const {
    std::string text;
    FILE* in = fopen(path(relative).c_str(), "r");
    REQUIRE(in != nullptr);
    char block[4096];
    for (size_t got = 0; (got = fread(block, 1, sizeof(block), in)) > 0;) text.append(block, got);
    fclose(in);
    return text;
}

}  // namespace berth::test
