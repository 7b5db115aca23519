// A stage before a user namespace, id-mapped mounts and time namespaces: plans as the planner makes them, and
// what the kernel says of the processes.
#include "agent/core/container_plan.h"
#include "tests/support/spawner/launch_case.h"

namespace {

std::string spec_of(const Stage& stage, const std::string& namespaces, const std::string& more_linux,
                    const std::string& mounts, const std::string& script) {
    return R"({"ociVersion": "1.2.0", "root": {"path": ")" + stage.root() +
           R"("}, "process": {"cwd": "/", "env": ["PATH=/bin"], "args": ["sh", "-c", ")" + script +
           R"("]}, "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"})" +
           mounts + R"(], "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "network"})" +
           namespaces + "]" + more_linux + "}}";
}

constexpr const char* kMaps =
    R"(, "uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}],
        "gidMappings": [{"containerID": 0, "hostID": 200000, "size": 65536}])";

struct Started {
    core::LaunchPlan plan;
    Running running;
    Message first;
};

// Plans the spec, opens what the plan asks for, launches it up to its gate.
Started start(Stage& stage, const std::string& json, int out) {
    auto spec = core::parse_container_spec(json);
    if (!spec.ok()) FAIL(spec.error().message);
    core::GuestFacts facts;
    facts.agent_dir = "/run/berth-of-no-test";
    core::ContainerLaunch launch;
    launch.spec = &*spec;
    launch.facts = &facts;
    launch.id = "stage";
    launch.bundle_dir = stage.directory() + "/bundle";
    launch.stdio.streams[1].mode = core::StdioMode::kPipe;
    launch.stdio.streams[2].mode = core::StdioMode::kPipe;
    auto own = sys::compile_own_filter();
    launch.seccomp.own.filter.resize(own.size() * sizeof(own[0]));
    memcpy(launch.seccomp.own.filter.data(), own.data(), launch.seccomp.own.filter.size());
    auto plan = core::plan_container(launch);
    if (!plan.ok()) FAIL(plan.error().message);
    std::vector<sys::UniqueFd> opened;
    std::vector<int> fds;
    for (size_t i = 2; i < plan->fds.size(); ++i) {
        const core::FdRequest& request = plan->fds[i];
        bool is_output =
            request.source == core::FdSource::kStdout || request.source == core::FdSource::kStderr;
        if (is_output) {
            fds.push_back(out);
            continue;
        }
        bool by_path = request.source == core::FdSource::kNamespacePath;
        opened.emplace_back(::open(by_path ? request.path.c_str() : "/dev/null", O_RDONLY | O_CLOEXEC));
        REQUIRE(opened.back().valid());
        fds.push_back(opened.back().get());
    }
    Started started;
    started.running = stage.launch(*plan, fds);
    started.plan = std::move(*plan);
    if (started.running.reply.err == 0) started.first = stage.next_message(started.running);
    return started;
}

void expect_ready(const Started& started) {
    CAPTURE(started.running.reply.step);
    REQUIRE(started.running.reply.err == 0);
    REQUIRE_FALSE(started.first.end);
    const core::ChildMessage& message = started.first.content;
    INFO(core::describe_step_error(started.plan, message.step_index, message.err, message.text));
    REQUIRE(message.type == core::ChildMessageType::kReady);
}

// Gives the tree to the mapped root.
void own_tree(const std::string& path) {
    std::string command = "chown -R 100000:200000 " + path;
    REQUIRE(::system(command.c_str()) == 0);
}

std::string squeezed(std::string text) {
    std::string out;
    for (char c : text)
        if (c != ' ' || (!out.empty() && out.back() != ' ' && out.back() != '\n')) out.push_back(c);
    return out;
}

// The intermediate is the keeper's to reap.
void reap_intermediate() {
    int status = 0;
    CHECK(::waitpid(-1, &status, __WALL) > 0);
    CHECK(WIFSIGNALED(status));
}

}  // namespace

TEST_CASE(
    "a new user namespace: mapped, with nodes, binds of what only root reaches, and nothing of the guest's") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    own_tree(stage.root());
    std::string secret = stage.directory() + "/secret";
    REQUIRE(::mkdir(secret.c_str(), 0700) == 0);
    REQUIRE(::mkdir((secret + "/data").c_str(), 0755) == 0);
    REQUIRE(::system(("echo content >" + secret + "/data/file").c_str()) == 0);
    std::string mounts = R"(, {"destination": "/tmp", "type": "bind", "source": ")" + secret +
                         R"(/data", "options": ["bind", "ro"]})";
    Output output;
    Started started =
        start(stage,
              spec_of(stage, R"(, {"type": "user"}, {"type": "uts"}, {"type": "ipc"})", kMaps, mounts,
                      "cat /tmp/file; (echo x >/tmp/file) 2>/dev/null || echo read-only; echo x >/dev/null "
                      "&& echo null; "
                      "stat -c %u:%g:%a /dev/null /bin; ls /proc/self/fd | wc -l; echo again "
                      ">/proc/self/fd/1; echo end; "
                      "exec sleep 1000"),
              output.write.get());
    expect_ready(started);
    CHECK(squeezed(slurp(proc(started.running.pid, "uid_map"))) == "0 100000 65536\n");
    CHECK(squeezed(slurp(proc(started.running.pid, "gid_map"))) == "0 200000 65536\n");
    stage.go(started.running);
    expect_executed(stage, started.running);
    CHECK(status_field(started.running.pid, "Uid") == "100000\t100000\t100000\t100000");
    struct stat pipe {};
    REQUIRE(::fstat(output.write.get(), &pipe) == 0);
    CHECK(pipe.st_uid == 100000);
    output.write.reset();
    CHECK(output.until("end\n") == "content\nread-only\nnull\n0:0:666\n0:0:755\n4\nagain\nend\n");
    std::string mountinfo = slurp(proc(started.running.pid, "mountinfo"));
    CHECK(mountinfo.find("secret/data /tmp ro") != std::string::npos);
    CHECK(mountinfo.find(" /sys") == std::string::npos);
    CHECK(stage.kill(started.running) == SIGKILL);
    reap_intermediate();
}

TEST_CASE("a step of the stage that fails is reported with its place, and nothing is left") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    own_tree(stage.root());
    Output output;
    Started started =
        start(stage,
              spec_of(stage, R"(, {"type": "user"})", kMaps,
                      R"(, {"destination": "/x", "type": "bind", "source": "/no/such", "options": ["bind"]})",
                      "true"),
              output.write.get());
    CHECK(started.running.reply.err == ENOENT);
    CHECK(std::string(started.running.reply.step) == "set-up");
    Message message = stage.next_message(started.running);
    REQUIRE_FALSE(message.end);
    CHECK(message.content.type == core::ChildMessageType::kFailed);
    CHECK(core::describe_step_error(started.plan, message.content.step_index, message.content.err, "") ==
          "mount 2 (bind on /x): open_tree \"/no/such\": ENOENT");
    CHECK(output.all().empty());
    reap_intermediate();
}

TEST_CASE("a user namespace that is joined, and a network namespace with it") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    own_tree(stage.root());
    Output first;
    Started holder = start(stage, spec_of(stage, R"(, {"type": "user"})", kMaps, "", "exec sleep 1000"),
                           first.write.get());
    expect_ready(holder);
    stage.go(holder.running);
    expect_executed(stage, holder.running);
    std::string path = R"("path": ")" + proc(holder.running.pid, "ns/");
    std::string json = spec_of(stage, R"(, {"type": "user", )" + path + R"(user"}, {"type": "ipc"})", "", "",
                               "id -u; echo end; exec sleep 1000");
    size_t network = json.find(R"({"type": "network"})");
    json.replace(network, 19, R"({"type": "network", )" + path + R"(net"})");
    Output second;
    Started joined = start(stage, json, second.write.get());
    expect_ready(joined);
    stage.go(joined.running);
    expect_executed(stage, joined.running);
    second.write.reset();
    CHECK(second.until("end\n") == "0\nend\n");
    for (const char* kind : {"user", "net"}) {
        std::string name = std::string("ns/") + kind;
        CHECK(link_of(proc(holder.running.pid, name.c_str())) ==
              link_of(proc(joined.running.pid, name.c_str())));
    }
    CHECK(status_field(joined.running.pid, "Uid") == "100000\t100000\t100000\t100000");
    CHECK(stage.kill(joined.running) == SIGKILL);
    CHECK(stage.kill(holder.running) == SIGKILL);
    reap_intermediate();
    reap_intermediate();
}

TEST_CASE("offsets of a time namespace, with and without a user namespace") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    for (bool with_user : {false, true}) {
        CAPTURE(with_user);
        if (with_user) own_tree(stage.root());
        Output output;
        std::string more =
            R"(, "timeOffsets": {"boottime": {"secs": 7000000}, "monotonic": {"secs": 3, "nanosecs": 4}})";
        Started started = start(
            stage,
            spec_of(stage, std::string(R"(, {"type": "time"})") + (with_user ? R"(, {"type": "user"})" : ""),
                    with_user ? more + kMaps : more, "", "cat /proc/uptime; exec sleep 1000"),
            output.write.get());
        expect_ready(started);
        stage.go(started.running);
        expect_executed(stage, started.running);
        CHECK(squeezed(slurp(proc(started.running.pid, "timens_offsets"))) ==
              "monotonic 3 4\nboottime 7000000 0\n");
        output.write.reset();
        CHECK(::atof(output.until("\n").c_str()) > 7000000);
        CHECK(stage.kill(started.running) == SIGKILL);
        if (with_user) reap_intermediate();
    }
}
