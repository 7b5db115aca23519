#include "agent/keeper/keeper.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <cstdio>

#include "tests/support/keeper/fake_children.h"

using berth::testing::KeeperRun;
using berth::testing::run_keeper;

namespace {

using Lines = std::vector<std::string>;

void store_listener(berth::keeper::KeeperSetup&, berth::keeper::FdStore& store) {
    CHECK(store.put("listener/vsock", berth::sys::UniqueFd(::eventfd(0, EFD_CLOEXEC))).ok());
    CHECK(store.put("memory/events", berth::sys::UniqueFd(::eventfd(0, EFD_CLOEXEC))).ok());
}

std::string joined(const Lines& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
}

size_t count(const Lines& lines, std::string_view begin) {
    size_t found = 0;
    for (const std::string& line : lines) found += line.starts_with(begin) ? 1 : 0;
    return found;
}

}  // namespace

TEST_CASE("a process's exit reaches the agent with its status") {
    KeeperRun run =
        run_keeper({"until end\nready\nspawn 7 10 3\nuntil exited 7\nack 7\nshutdown 1\n"}, store_listener);
    CHECK(joined(run.log) == joined({"welcome 0 safe=0 crash= key=5a", "stored listener/vsock fds=1",
                                     "stored memory/events fds=1", "spawner", "end", "exited 7 0x300",
                                     "ended 1 stored=2 processes=0"}));
}

TEST_CASE("each shutdown mode is passed on, and nonsense is not") {
    CHECK(run_keeper({"until end\nshutdown 2\n"}).log.back() == "ended 2 stored=0 processes=0");
    CHECK(run_keeper({"until end\nshutdown 3\n"}).log.back() == "ended 3 stored=0 processes=0");
    CHECK(run_keeper({"until end\nshutdown 0\nshutdown 4\nnonsense\nshutdown 1\n"}).log.back() ==
          "ended 1 stored=0 processes=0");
}

TEST_CASE("a crashed agent's successor is told everything; its last words count") {
    // The second agent dies right after it stored, dropped and acknowledged: nothing of that may be lost.
    KeeperRun run =
        run_keeper({"until end\nstore c/a/gate\nstore c/a/stdio/in\nstore c/b/gate\nspawn 1 3000 0\n"
                    "spawn 2 1 5\nspawn 3 1 6\nuntil exited 2\nsleep 100\nack 2\ndrop c/a/\ncrash\n",
                    "until end\nshutdown 1\n"});
    Lines second(run.log.begin() + 3, run.log.end());
    REQUIRE(count(run.log, "welcome") == 2);
    while (!second.empty() && !second.front().starts_with("welcome")) second.erase(second.begin());
    CHECK(joined(second) ==
          joined({"welcome 1 safe=0 crash=signal 9 key=5a", "stored c/b/gate fds=1", "registered 1 fds=1",
                  "exited 3 0x600", "spawner", "end", "ended 1 stored=1 processes=2"}));
}

TEST_CASE("an exit is repeated to each new agent until it is acknowledged") {
    KeeperRun run = run_keeper({"until end\nspawn 4 1 1\nuntil exited 4\nexit 0\n", "until end\nexit 1\n",
                                "until end\nack 4\nexit 2\n", "until end\nshutdown 1\n"});
    CHECK(count(run.log, "exited 4 0x100") == 3);
    CHECK(run.log.back() == "ended 1 stored=0 processes=0");
    CHECK(count(run.log, "welcome 1 safe=0 crash=exit status 0") == 1);
    CHECK(count(run.log, "welcome 2 safe=0 crash=exit status 1") == 1);
}

TEST_CASE("three crashes in a row mean safe mode, after the delays") {
    KeeperRun run = run_keeper({"crash\n", "crash\n", "until end\ncrash\n", "until end\nshutdown 1\n"});
    CHECK(count(run.log, "welcome 2 safe=0") == 1);
    CHECK(count(run.log, "welcome 3 safe=1 crash=signal 9") == 1);
    CHECK(run.milliseconds >= 1100);  // 0 + 100 ms + 1 s
    CHECK(run.milliseconds < 6000);
}

TEST_CASE("a restart on purpose is no crash") {
    KeeperRun run =
        run_keeper({"crash\n", "crash\n", "until end\nready\nhup\nsleep 5000\n", "until end\nshutdown 1\n"});
    CHECK(count(run.log, "welcome 3 safe=0 crash= ") == 1);
    CHECK(run.milliseconds < 3000);
}

TEST_CASE("an agent that closes its socket is ended and replaced") {
    KeeperRun run = run_keeper({"until end\nclose\n", "until end\nshutdown 1\n"});
    CHECK(count(run.log, "welcome 1 safe=0 crash=signal 9") == 1);
    CHECK(run.milliseconds < 3000);
}

TEST_CASE("a killed spawner is replaced; what it registered is kept") {
    KeeperRun run =
        run_keeper({"until end\nspawn 1 300 1\nkill-spawner\nuntil spawner\nspawn 2 1 2\nuntil exited 2\n"
                    "until exited 1\nshutdown 1\n"});
    CHECK(joined(run.log) == joined({"welcome 0 safe=0 crash= key=5a", "spawner", "end", "spawner",
                                     "exited 2 0x200", "exited 1 0x100", "ended 1 stored=0 processes=2"}));
}

TEST_CASE("a process that ended before it was registered keeps its status") {
    KeeperRun run = run_keeper({"until end\nspawn 9 1 42 late\nuntil exited 9\nshutdown 1\n"});
    CHECK(count(run.log, "exited 9 0x2a00") == 1);
}

TEST_CASE("processes that nobody registers are reaped and reported to nobody") {
    KeeperRun run = run_keeper(
        {"until end\nspawn 1 1 1 orphan\nspawn 2 1 2 orphan\nspawn 3 50 3\nuntil exited 3\nshutdown 1\n"});
    CHECK(count(run.log, "exited") == 1);
    CHECK(run.log.back() == "ended 1 stored=0 processes=1");
}

TEST_CASE("a forgotten process is reported to nobody") {
    KeeperRun run = run_keeper(
        {"until end\nspawn 1 200 1\nsleep 100\nforget 1\nspawn 2 300 2\nuntil exited 2\nshutdown 1\n"});
    CHECK(count(run.log, "exited 1") == 0);
    CHECK(run.log.back() == "ended 1 stored=0 processes=1");
}

TEST_CASE("two descriptors of one message are stored below its name, and dropped with it") {
    KeeperRun run =
        run_keeper({"until end\nstore-two c/a/launch/\nstore-two c/b/launch/\ndrop c/b/launch/\nexit 1\n",
                    "until end\ndrop c/a/launch/0\nstore-two c/c\nshutdown 1\n"});
    CHECK(joined(run.log).find("stored c/a/launch/0 fds=1") != std::string::npos);
    CHECK(joined(run.log).find("stored c/a/launch/1 fds=1") != std::string::npos);
    CHECK(joined(run.log).find("c/b") == std::string::npos);
    // Of two for one name the first counts.
    CHECK(run.log.back() == "ended 1 stored=2 processes=0");
}

TEST_CASE("the keeper's own descriptors cannot be dropped, and what is no descriptor is not stored") {
    KeeperRun run =
        run_keeper({"until end\ndrop listener/vsock\ndrop listener/\ndrop memory/\nstore-nothing c/x\n"
                    "store c/y/\nshutdown 1\n"},
                   store_listener);
    CHECK(run.log.back() == "ended 1 stored=2 processes=0");
}

TEST_CASE("an agent that reads nothing stalls nothing") {
    // 600 exits at 352 bytes are more than its socket holds. Meanwhile all of them are reaped, and the next
    // agent is told of each.
    std::string script = "until end\n";
    for (int i = 1; i <= 600; ++i) script += "spawn " + std::to_string(i) + " 1 1\n";
    script += "sleep 3000\nstore c/last\nexit 1\n";
    std::string next = "until end\n";
    constexpr int kAtOnce = 17;  // one, and limits::kHeldAcknowledgements more
    for (int i = 1; i <= 600; ++i) {
        next += (i % kAtOnce == 1 ? "ack " : " ") + std::to_string(i);
        if (i % kAtOnce == 0 || i == 600) next += "\n";
    }
    KeeperRun run = run_keeper({script, next + "shutdown 1\n"});
    CHECK(count(run.log, "exited ") == 600);
    CHECK(count(run.log, "stored c/last") == 1);
    CHECK(run.log.back() == "ended 1 stored=1 processes=0");
}

TEST_CASE("a welcome larger than the socket arrives whole") {
    auto fill = [](berth::keeper::KeeperSetup&, berth::keeper::FdStore& store) {
        for (int i = 0; i < 1500; ++i) {
            std::string name = "c/" + std::to_string(10000 + i) + "/gate";
            CHECK(store.put(name, berth::sys::UniqueFd(::fcntl(0, F_DUPFD_CLOEXEC, 3))).ok());
        }
    };
    KeeperRun run = run_keeper({"sleep 300\nuntil end\nshutdown 1\n"}, fill);
    CHECK(count(run.log, "stored c/") == 1500);
    CHECK(run.log[1] == "stored c/10000/gate fds=1");
    CHECK(run.log[1500] == "stored c/11499/gate fds=1");
}

TEST_CASE("a helper ends at SIGTERM, and PID 1 does not") {
    auto stop_at_once = [](berth::keeper::KeeperSetup&, berth::keeper::FdStore&) { ::raise(SIGTERM); };
    // The agent may have been welcomed by then, or not.
    KeeperRun run = run_keeper({}, stop_at_once);
    CHECK(count(run.log, "ended 3 stored=0 processes=0") == 1);
    CHECK(count(run.log, "ended ") == 1);
    auto as_init = [](berth::keeper::KeeperSetup& setup, berth::keeper::FdStore&) {
        setup.is_init = true;
        ::raise(SIGTERM);
        ::raise(SIGINT);
    };
    CHECK(run_keeper({"until end\nshutdown 1\n"}, as_init).log.back() == "ended 1 stored=0 processes=0");
}

TEST_CASE("rc runs once, after the first agent serves") {
    auto with_rc = [](berth::keeper::KeeperSetup& setup, berth::keeper::FdStore&) {
        static std::string path = std::string(setup.config.run_dir) + "/rc";
        FILE* file = ::fopen(path.c_str(), "w");
        std::fprintf(file, "#!/bin/sh\necho rc $PATH >> %s/log\n", setup.config.run_dir);
        std::fclose(file);
        ::chmod(path.c_str(), 0755);
        setup.rc_program = path;
    };
    KeeperRun run = run_keeper(
        {"crash\n", "until end\nready\nsleep 500\nexit 1\n", "until end\nready\nsleep 500\nshutdown 1\n"},
        with_rc);
    CHECK(count(run.log, "rc /usr/sbin:/usr/bin:/sbin:/bin") == 1);
    CHECK(count(run.log, "welcome") == 3);
}
