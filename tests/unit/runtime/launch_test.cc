// A launch against a spawner that the test plays: the agent's side of cloning, set-up, gate and exec.
#include "agent/runtime/launch.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "agent/core/limits.h"
#include "agent/core/spawner_protocol.h"
#include "agent/sys/memfd.h"
#include "agent/sys/socket.h"

using namespace berth;

namespace {

struct Observer final : runtime::LaunchObserver {
    std::string log;
    void on_spawned(int pid, sys::UniqueFd pidfd) override {
        log += "spawned " + std::to_string(pid) + (pidfd.valid() ? "" : " without pidfd") + "\n";
    }
    void on_ready() override { log += "ready\n"; }
    void on_executed() override { log += "executed\n"; }
    void on_launch_failed(core::Error error) override { log += "failed " + error.message + "\n"; }
    void on_mounts(sys::UniqueFd mounts) override { log += mounts.valid() ? "mounts\n" : "no mounts\n"; }
    void on_pty(sys::UniqueFd master) override { log += master.valid() ? "pty\n" : "no pty\n"; }
    void on_seccomp_listener(sys::UniqueFd) override { log += "listener\n"; }
    void on_hook(uint32_t point) override { log += "hook " + std::to_string(point) + "\n"; }
};

core::LaunchPlan small_plan() {
    core::LaunchPlanBuilder builder(core::PlanKind::kContainer);
    core::PlanStep& step = builder.step(core::PlanOp::kHostname, "hostname");
    step.s1 = builder.string("web");
    builder.step(core::PlanOp::kReady, "ready");
    builder.step(core::PlanOp::kExec, "exec");
    std::vector<std::string> argv = {"/bin/true"};
    builder.argv(argv);
    builder.envp({});
    auto plan = std::move(builder).finish();
    REQUIRE(plan.ok());
    return std::move(*plan);
}

// The loop, the spawner's end of the agent's socket, and one launch.
struct Stage {
    std::unique_ptr<loop::Loop> loop = std::move(*loop::Loop::create(16));
    runtime::SpawnerLink link{*loop};
    Observer observer;
    sys::UniqueFd spawner;
    sys::UniqueFd null{open("/dev/null", O_RDONLY | O_CLOEXEC)};
    std::shared_ptr<runtime::Launch> launch = runtime::Launch::create(*loop, link, observer);
    sys::UniqueFd child_sync;
    core::SpawnRequest request;

    Stage() {
        auto pair = sys::make_seqpacket_pair();
        REQUIRE(pair.ok());
        spawner = std::move(pair->second);
        link.replace(std::move(pair->first));
    }
    ~Stage() {
        launch->retire();
        launch.reset();
        spawner.reset();
        turns();
        // The link's own poll of the spawner's socket ends with it.
        sys::SocketPair pair = std::move(*sys::make_seqpacket_pair());
        link.replace(std::move(pair.first));
        pair.second.reset();
        turns();
    }
    void turns() {
        for (int i = 0; i < 8; ++i) loop->turn(false);
    }
    void begin() {
        runtime::LaunchSources sources;
        sources.cgroup = null.get();
        REQUIRE(launch->begin(42, small_plan(), sources).ok());
        auto received = sys::receive_with_fds(spawner, sys::writable_bytes_of(request), MSG_DONTWAIT);
        REQUIRE(received.ok());
        REQUIRE(received->bytes == sizeof request);
        REQUIRE(received->fds.size() == 3);  // plan, sync, cgroup
        CHECK(sys::sealed_size(received->fds[0], limits::kLaunchPlanBytes).ok());
        child_sync = std::move(received->fds[1]);
    }
    void reply(int err, const char* step = "") {
        core::SpawnReply reply;
        reply.request = request.request;
        reply.pid = 77;
        reply.err = err;
        strncpy(reply.step, step, sizeof reply.step - 1);
        sys::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
        int fd = pidfd.get();
        std::span<const int> fds = err == 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
        REQUIRE(sys::send_with_fds(spawner, sys::bytes_of(reply), fds).ok());
        turns();
    }
    void say(core::ChildMessage message) {
        REQUIRE(sys::send_with_fds(child_sync, sys::bytes_of(message), {}).ok());
        turns();
    }
    bool has_go() {
        char byte = 0;
        auto received =
            sys::receive_with_fds(child_sync, std::as_writable_bytes(std::span(&byte, 1)), MSG_DONTWAIT);
        return received.ok() && received->bytes == 1 && byte == core::kGoByte;
    }
    core::ChildMessage message(core::ChildMessageType type) {
        core::ChildMessage out;
        out.type = type;
        return out;
    }
};

}  // namespace

TEST_CASE("a launch goes from clone to exec") {
    Stage stage;
    stage.begin();
    CHECK(stage.request.process_key == 42);
    stage.reply(0);
    stage.say(stage.message(core::ChildMessageType::kReady));
    CHECK(stage.observer.log == "spawned 77\nready\n");
    CHECK(!stage.has_go());
    REQUIRE(stage.launch->go().ok());
    CHECK(stage.has_go());
    stage.child_sync.reset();
    stage.turns();
    CHECK(stage.observer.log == "spawned 77\nready\nexecuted\n");
}

TEST_CASE("a failed step is told by its label and the kernel's reason") {
    Stage stage;
    stage.begin();
    stage.reply(0);
    core::ChildMessage failed = stage.message(core::ChildMessageType::kFailed);
    failed.step_index = 0;
    failed.err = EPERM;
    stage.say(failed);
    CHECK(stage.observer.log.find("failed hostname") != std::string::npos);
    CHECK(stage.observer.log.find("EPERM") != std::string::npos);
}

TEST_CASE("a clone that the kernel refuses names the spawner's step") {
    Stage stage;
    stage.begin();
    stage.reply(EBUSY, "clone3");
    CHECK(stage.observer.log == "failed clone3: EBUSY\n");
}

TEST_CASE("a process that dies before Start fails the launch, not the agent") {
    Stage stage;
    stage.begin();
    stage.reply(0);
    stage.say(stage.message(core::ChildMessageType::kReady));
    stage.child_sync.reset();
    stage.turns();
    CHECK(stage.observer.log == "spawned 77\nready\nfailed killed before it was started\n");
}

TEST_CASE("a spawner that ends fails what it owed") {
    Stage stage;
    stage.begin();
    stage.spawner.reset();
    stage.turns();
    CHECK(stage.observer.log == "failed spawner ended\n");
}

TEST_CASE("a retired launch is silent and closes its gate") {
    Stage stage;
    stage.begin();
    stage.reply(0);
    stage.observer.log.clear();
    stage.launch->retire();
    stage.turns();
    CHECK(stage.observer.log.empty());
    char byte = 0;
    auto received =
        sys::receive_with_fds(stage.child_sync, std::as_writable_bytes(std::span(&byte, 1)), MSG_DONTWAIT);
    REQUIRE(received.ok());
    CHECK(received->end);
}

TEST_CASE("a reply that comes after the launch was retired closes the gate, too") {
    Stage stage;
    stage.begin();
    stage.launch->retire();
    stage.reply(0);
    CHECK(stage.observer.log.empty());
    char byte = 0;
    auto received =
        sys::receive_with_fds(stage.child_sync, std::as_writable_bytes(std::span(&byte, 1)), MSG_DONTWAIT);
    REQUIRE(received.ok());
    CHECK(received->end);
}

TEST_CASE("an adopted gate that ends before its process was let go means that it was killed") {
    Stage stage;
    sys::SocketPair pair = std::move(*sys::make_seqpacket_pair());
    auto adopted = runtime::Launch::create(*stage.loop, stage.link, stage.observer);
    adopted->adopt_ready(std::move(pair.first), sys::UniqueFd());
    pair.second.reset();
    stage.turns();
    CHECK(stage.observer.log.find("executed") == std::string::npos);
    CHECK(stage.observer.log.find("killed before it was started") != std::string::npos);
    adopted->retire();
}

TEST_CASE("an adopted gate whose process had been let go counts as executed when it ends") {
    Stage stage;
    sys::SocketPair pair = std::move(*sys::make_seqpacket_pair());
    auto adopted = runtime::Launch::create(*stage.loop, stage.link, stage.observer);
    adopted->adopt_let_go(std::move(pair.first));
    pair.second.reset();
    stage.turns();
    CHECK(stage.observer.log == "executed\n");
    adopted->retire();
}

TEST_CASE("a plan that waits for nothing goes in the request, and ends its gate by executing") {
    core::LaunchPlanBuilder builder(core::PlanKind::kExec);
    builder.step(core::PlanOp::kSetsid, "setsid");
    builder.step(core::PlanOp::kExec, "exec");
    std::vector<std::string> argv = {"/bin/true"};
    builder.argv(argv);
    builder.envp({});
    auto plan = std::move(builder).finish();
    REQUIRE(plan.ok());
    const std::vector<std::byte> blob = plan->blob;
    Stage stage;
    runtime::LaunchSources sources;
    sources.cgroup = stage.null.get();
    REQUIRE(stage.launch->begin(42, std::move(*plan), sources).ok());
    struct {
        core::SpawnRequest request;
        std::byte plan[limits::kInlinePlanBytes];
    } inbox;
    auto received = sys::receive_with_fds(stage.spawner, sys::writable_bytes_of(inbox), MSG_DONTWAIT);
    REQUIRE(received.ok());
    REQUIRE(received->fds.size() == 2);  // sync, cgroup
    REQUIRE(received->bytes == sizeof inbox.request + blob.size());
    CHECK(inbox.request.plan_bytes == blob.size());
    CHECK(memcmp(inbox.plan, blob.data(), blob.size()) == 0);
    stage.request = inbox.request;
    stage.child_sync = std::move(received->fds[0]);

    SUBCASE("it executes") {
        stage.reply(0);
        CHECK(stage.observer.log == "spawned 77\n");
        stage.child_sync.reset();
        stage.turns();
        CHECK(stage.observer.log == "spawned 77\nexecuted\n");
    }
    SUBCASE("a step fails: the plan that was sent names it") {
        stage.reply(0);
        core::ChildMessage failed = stage.message(core::ChildMessageType::kFailed);
        failed.err = EPERM;
        stage.say(failed);
        CHECK(stage.observer.log == "spawned 77\nfailed setsid: EPERM\n");
    }
    SUBCASE("nobody wants it any more: no gate would hold it, so it is killed") {
        stage.launch->retire();
        pid_t child = fork();
        if (child == 0) {
            while (true) pause();
        }
        core::SpawnReply reply;
        reply.request = stage.request.request;
        reply.pid = child;
        sys::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
        const int fd = pidfd.get();
        REQUIRE(sys::send_with_fds(stage.spawner, sys::bytes_of(reply), std::span<const int>(&fd, 1)).ok());
        stage.turns();
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        CHECK(WTERMSIG(status) == SIGKILL);
        CHECK(stage.observer.log.empty());
    }
}
