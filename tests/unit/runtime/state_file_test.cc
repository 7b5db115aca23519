#include "agent/runtime/state_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

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
