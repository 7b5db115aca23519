#include "agent/runtime/state_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "agent/core/limits.h"
#include "tests/support/runtime/single_step.h"

using namespace berth;

namespace {

struct Folder {
    std::string path;
    Folder() {
        char text[] = "/tmp/berth-state-XXXXXX";
        path = mkdtemp(text);
    }
    ~Folder() { (void)!system(("rm -rf " + path).c_str()); }
};

bool exists(const std::string& path) {
    return access(path.c_str(), F_OK) == 0;
}

size_t file_size(const std::string& path) {
    struct stat found {};
    REQUIRE(stat(path.c_str(), &found) == 0);
    return static_cast<size_t>(found.st_size);
}

}  // namespace

TEST_CASE("a state file is replaced whole and read back") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    REQUIRE(runtime::make_state_directories(run.path).ok());  // what is there stays
    REQUIRE(runtime::write_state_file(run.path, "web", "state", "first").ok());
    REQUIRE(runtime::write_state_file(run.path, "web", "state", std::string("a\0b", 3)).ok());
    CHECK(runtime::read_state_file(run.path, "web", "state").value() == std::string("a\0b", 3));
    CHECK(!exists(run.path + "/state/web/state.new"));
    CHECK(runtime::list_states(run.path).value() == std::vector<std::string>{"web"});
}

TEST_CASE("a half-written file of a crash is not what a restart reads") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    REQUIRE(runtime::write_state_file(run.path, "web", "state", "whole").ok());
    std::ofstream(run.path + "/state/web/state.new") << "ha";
    CHECK(runtime::read_state_file(run.path, "web", "state").value() == "whole");
    REQUIRE(runtime::write_state_file(run.path, "web", "state", "next").ok());
    CHECK(runtime::read_state_file(run.path, "web", "state").value() == "next");
}

TEST_CASE("the last whole record of a state counts") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    runtime::StateLog log;
    CHECK(runtime::StateLog::read(run.path, "web").error().code == core::Code::kNotFound);
    REQUIRE(log.append(run.path, "web", "first").ok());
    REQUIRE(log.append(run.path, "web", "").ok());
    CHECK(runtime::StateLog::read(run.path, "web").value().empty());
    const std::string second("a\0b", 3);
    REQUIRE(log.append(run.path, "web", second).ok());
    CHECK(runtime::StateLog::read(run.path, "web").value() == second);
    // However a write was cut off, the one before it is in force.
    const std::string path = run.path + "/state/web/state";
    const size_t whole = file_size(path);
    REQUIRE(log.append(run.path, "web", std::string(5000, 'x')).ok());
    for (size_t rest : {5007, 4096, 9, 8, 7, 4, 1, 0}) {
        CAPTURE(rest);
        REQUIRE(truncate(path.c_str(), static_cast<off_t>(whole + rest)) == 0);
        CHECK(runtime::StateLog::read(run.path, "web").value() == second);
    }
    // Whoever did not write it does not append to what may be half a record.
    std::ofstream(path, std::ios::app) << "BST1\xff";
    runtime::StateLog next;
    REQUIRE(next.append(run.path, "web", "next").ok());
    REQUIRE(next.append(run.path, "web", "after").ok());
    CHECK(runtime::StateLog::read(run.path, "web").value() == "after");
    CHECK(!exists(run.path + "/state/web/state.new"));
    REQUIRE(truncate(path.c_str(), 3) == 0);
    CHECK(runtime::StateLog::read(run.path, "web").error().message == "state file without a whole record");
    CHECK(runtime::StateLog::read(run.path, "web").error().code == core::Code::kNotFound);
}

TEST_CASE("a state file stays small") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    runtime::StateLog log;
    for (int i = 0; i < 1000; ++i) REQUIRE(log.append(run.path, "web", "state " + std::to_string(i)).ok());
    CHECK(runtime::StateLog::read(run.path, "web").value() == "state 999");
    CHECK(file_size(run.path + "/state/web/state") <= limits::kStateLogBytes);
    // One that is larger than all of it is written alone.
    const std::string large(3 * limits::kStateLogBytes, 'x');
    REQUIRE(log.append(run.path, "web", large).ok());
    REQUIRE(log.append(run.path, "web", large).ok());
    CHECK(runtime::StateLog::read(run.path, "web").value() == large);
    REQUIRE(log.append(run.path, "web", "small").ok());
    CHECK(runtime::StateLog::read(run.path, "web").value() == "small");
    CHECK(file_size(run.path + "/state/web/state") <= limits::kStateLogBytes);
}

TEST_CASE("a state that cannot be written is not taken for written") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    runtime::StateLog log;
    REQUIRE(log.append(run.path, "web", "first").ok());
    const std::string path = run.path + "/state/web/state";
    REQUIRE(rename(path.c_str(), (path + ".away").c_str()) == 0);
    REQUIRE(mkdir(path.c_str(), 0700) == 0);
    CHECK(log.append(run.path, "web", "second").error().message == "open " + path + ": EISDIR");
    REQUIRE(rmdir(path.c_str()) == 0);
    REQUIRE(rename((path + ".away").c_str(), path.c_str()) == 0);
    REQUIRE(log.append(run.path, "web", "third").ok());
    CHECK(runtime::StateLog::read(run.path, "web").value() == "third");
}

TEST_CASE("a missing state is NOT_FOUND") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    CHECK(runtime::read_state_file(run.path, "web", "state").error().code == core::Code::kNotFound);
}

TEST_CASE("removal takes our own empty folders and nothing that a caller put beside them") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    REQUIRE(runtime::write_state_file(run.path, "web", "state", "x").ok());
    REQUIRE(runtime::write_state_file(run.path, "web", "config.json", "{}").ok());
    std::string bundle = run.path + "/bundles/web";
    REQUIRE(mkdir(bundle.c_str(), 0700) == 0);
    REQUIRE(mkdir((bundle + "/rootfs").c_str(), 0700) == 0);
    REQUIRE(mkdir((bundle + "/mounts").c_str(), 0700) == 0);
    REQUIRE(mkdir((bundle + "/mounts/0").c_str(), 0700) == 0);
    runtime::remove_state(run.path, "web");
    CHECK(!exists(run.path + "/state/web"));
    CHECK(!exists(bundle));

    REQUIRE(mkdir(bundle.c_str(), 0700) == 0);
    REQUIRE(mkdir((bundle + "/rootfs").c_str(), 0700) == 0);
    std::ofstream(bundle + "/rootfs/file") << "theirs";
    runtime::remove_state(run.path, "web");
    CHECK(exists(bundle + "/rootfs/file"));
}

TEST_CASE(
    "killed between any two instructions of its removal, a container is still known by what is left of it") {
    for (bool has_mounts : {false, true}) {
        Folder run;
        REQUIRE(runtime::make_state_directories(run.path).ok());
        runtime::StateLog log;
        runtime::OpenStateFile open;
        REQUIRE(log.append(run.path, "web", "whole", &open).ok());
        REQUIRE(runtime::write_state_file(run.path, "web", "config.json", "{}").ok());
        const std::string bundle = run.path + "/bundles/web";
        REQUIRE(mkdir(bundle.c_str(), 0700) == 0);
        REQUIRE(mkdir((bundle + "/rootfs").c_str(), 0700) == 0);
        if (has_mounts) {
            REQUIRE(mkdir((bundle + "/mounts").c_str(), 0700) == 0);
            REQUIRE(mkdir((bundle + "/mounts/0").c_str(), 0700) == 0);
        }
        bool is_known = true;
        test::single_step([&] { runtime::remove_state(run.path, "web"); },
                          [&] { is_known &= !exists(bundle) || exists(run.path + "/state/web"); });
        CHECK(is_known);
        CHECK(!exists(bundle));
        CHECK(!exists(run.path + "/state/web"));
    }
}

TEST_CASE("changes are added to the state that they follow") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    runtime::StateLog log;
    runtime::OpenStateFile open;
    CHECK(!log.append_change(run.path, "web", "x", &open));  // there is nothing that it could change
    REQUIRE(log.append(run.path, "web", "whole", &open).ok());
    REQUIRE(log.append_change(run.path, "web", "+1", &open));
    REQUIRE(log.append_change(run.path, "web", "", &open));
    REQUIRE(log.append_change(run.path, "web", "+2", &open));
    CHECK(runtime::StateLog::read(run.path, "web").value() == "whole+1+2");
    // Cut off anywhere, what was whole stays in force.
    const std::string path = run.path + "/state/web/state";
    const size_t before = file_size(path);
    REQUIRE(log.append_change(run.path, "web", "+three", &open));
    for (size_t rest : {13, 9, 8, 7, 1, 0}) {
        CAPTURE(rest);
        REQUIRE(truncate(path.c_str(), static_cast<off_t>(before + rest)) == 0);
        CHECK(runtime::StateLog::read(run.path, "web").value() == "whole+1+2");
    }
    // A whole record puts an end to the changes before it; one that has grown too much is written anew.
    runtime::StateLog other;
    REQUIRE(other.append(run.path, "other", "a", &open).ok());
    REQUIRE(other.append_change(run.path, "other", "b", &open));
    REQUIRE(other.append(run.path, "other", "c", &open).ok());
    CHECK(runtime::StateLog::read(run.path, "other").value() == "c");
    CHECK(!other.append_change(run.path, "other", std::string(limits::kStateLogBytes, 'x'), &open));
    REQUIRE(other.append(run.path, "other", std::string(limits::kStateLogBytes, 'x'), &open).ok());
    REQUIRE(other.append(run.path, "other", "d", &open).ok());  // into the new file, not the one kept open
    REQUIRE(other.append_change(run.path, "other", "e", &open));
    CHECK(runtime::StateLog::read(run.path, "other").value() == "de");
}

TEST_CASE("the file that is kept open is never another container's") {
    Folder run;
    REQUIRE(runtime::make_state_directories(run.path).ok());
    runtime::OpenStateFile open;
    runtime::StateLog one;
    runtime::StateLog two;
    REQUIRE(one.append(run.path, "one", "1", &open).ok());
    REQUIRE(two.append(run.path, "two", "2", &open).ok());
    for (int i = 0; i < 3; ++i) {
        REQUIRE(one.append_change(run.path, "one", "a", &open));
        REQUIRE(two.append_change(run.path, "two", "b", &open));
        REQUIRE(two.append_change(run.path, "two", "c", &open));
    }
    CHECK(runtime::StateLog::read(run.path, "one").value() == "1aaa");
    CHECK(runtime::StateLog::read(run.path, "two").value() == "2bcbcbc");
    // Deleted and made again under the same name.
    open.close();
    runtime::remove_state(run.path, "one");
    runtime::StateLog again;
    REQUIRE(again.append(run.path, "one", "new", &open).ok());
    REQUIRE(again.append_change(run.path, "one", "!", &open));
    CHECK(runtime::StateLog::read(run.path, "one").value() == "new!");
}
