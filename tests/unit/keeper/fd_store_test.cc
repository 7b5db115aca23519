#include "agent/keeper/fd_store.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>

#include "agent/core/limits.h"

using berth::keeper::FdStore;
using berth::sys::UniqueFd;

namespace {

UniqueFd make() {
    return UniqueFd(::eventfd(0, EFD_CLOEXEC));
}
bool is_open(int fd) {
    return ::fcntl(fd, F_GETFD) >= 0;
}
std::string walk(const FdStore& store) {
    std::string names;
    std::string last;
    while (const FdStore::Entry* entry = store.next_after(last)) {
        last = entry->first;
        names += last + " ";
    }
    return names;
}

}  // namespace

TEST_CASE("a name holds one descriptor; a new one closes the old") {
    FdStore store;
    REQUIRE(store.put("c/a/gate", make()).ok());
    int first = store.find("c/a/gate");
    CHECK(is_open(first));
    UniqueFd next = make();
    int second = next.get();
    REQUIRE(store.put("c/a/gate", std::move(next)).ok());
    CHECK(store.find("c/a/gate") == second);
    CHECK(!is_open(first));
    CHECK(store.size() == 1);
    CHECK(store.find("c/a") == -1);
}

TEST_CASE("drop takes a name, or with a slash all below it and nothing beside it") {
    FdStore store;
    for (const char* name : {"c/a", "c/a/gate", "c/a/stdio/in", "c/a-b/gate", "c/ab/gate", "c/b/gate"}) {
        REQUIRE(store.put(name, make()).ok());
    }
    int gate = store.find("c/a/gate");
    CHECK(store.drop("c/a/") == 2);
    CHECK(!is_open(gate));
    CHECK(walk(store) == "c/a c/a-b/gate c/ab/gate c/b/gate ");
    CHECK(store.drop("c/a") == 1);
    CHECK(store.drop("c/a") == 0);
    CHECK(store.drop("c/b") == 0);
    CHECK(store.drop("") == 0);
    CHECK(store.drop("/") == 0);
    CHECK(store.drop("c/") == 3);
    CHECK(store.size() == 0);
}

TEST_CASE("bad names are refused, and what came with them is closed") {
    FdStore store;
    UniqueFd fd = make();
    int number = fd.get();
    CHECK(store.put("", std::move(fd)).error().message == "fd store: name \"\": empty, a prefix or too long");
    CHECK(!is_open(number));
    CHECK(!store.put("c/", make()).ok());
    CHECK(!store.put(std::string(berth::limits::kStoredFdNameBytes, 'x'), make()).ok());
    CHECK(store.put(std::string(berth::limits::kStoredFdNameBytes - 1, 'x'), make()).ok());
    CHECK(store.put("c/x", UniqueFd()).error().message == "fd store: \"c/x\": came without a descriptor");
    CHECK(store.size() == 1);
}

TEST_CASE("a walk goes on where it was while names come and go") {
    FdStore store;
    for (const char* name : {"a", "c", "e"}) REQUIRE(store.put(name, make()).ok());
    CHECK(store.next_after("")->first == "a");
    store.drop("a");
    REQUIRE(store.put("b", make()).ok());
    CHECK(store.next_after("a")->first == "b");
    store.drop("c");
    CHECK(store.next_after("b")->first == "e");
    CHECK(store.next_after("e") == nullptr);
}
