// A folder of files and folders, written as one nested literal, that is gone with its owner: a fake cgroup
// tree.
#pragma once

#include <string>
#include <vector>

#include "agent/sys/fd.h"

namespace berth::test {

struct Node {
    std::string name;
    std::string content = {};         // of a file
    std::vector<Node> children = {};  // of a folder
    bool folder = false;
};

inline Node file(std::string name, std::string content) {
    return Node{std::move(name), std::move(content), {}, false};
}
inline Node folder(std::string name, std::vector<Node> children = {}) {
    return Node{std::move(name), {}, std::move(children), true};
}

class FakeTree {
 public:
    explicit FakeTree(const std::vector<Node>& nodes);
    FakeTree(const FakeTree&) = delete;
    FakeTree& operator=(const FakeTree&) = delete;
    ~FakeTree();

    sys::FdRef root() const { return root_; }
    std::string path(const std::string& relative) const { return path_ + "/" + relative; }
    bool exists(const std::string& relative) const;
    std::string content(const std::string& relative) const;

 private:
    std::string path_;
    sys::UniqueFd root_;
};

}  // namespace berth::test
