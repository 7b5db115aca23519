// Real launches, continued: execs, helpers, hooks, copied-up directories, refusals.
#include "tests/support/spawner/launch_case.h"

TEST_CASE("exec joins a running container, directly and through an intermediate") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    PlanWriter init(core::PlanKind::kContainer);
    init.container_begin(stage.root());
    init.devices();
    init.pivot();
    init.add(kExec);
    Running container = stage.launch(init.finish({"/bin/sleep", "1000"}));
    REQUIRE(container.reply.err == 0);
    expect_executed(stage, container);
    sys::UniqueFd pid_namespace(::open(proc(container.pid, "ns/pid").c_str(), O_RDONLY | O_CLOEXEC));
    for (uint16_t use_intermediate : {uint16_t{0}, uint16_t{1}}) {
        CAPTURE(use_intermediate);
        Output output;
        PlanWriter plan(core::PlanKind::kExec);
        int32_t init_slot = plan.slot();
        plan.builder.header().pid_namespace_slot = plan.slot();
        plan.builder.header().use_intermediate = use_intermediate;
        int32_t out_slot = plan.slot();
        int32_t extra_slot = plan.slot();
        plan.add(kSetns, {.a = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP,
                          .slot = init_slot});
        plan.add(kSetsid);
        plan.add(kStdio, {.a = 0});
        plan.add(kStdio, {.a = 1, .slot = out_slot});
        plan.add(kCwd, {.s1 = "/"});
        plan.add(kCloseFds);
        // 3 and 4 may be where slots are.
        plan.add(kExtraFd, {.a = 4, .slot = extra_slot});
        plan.add(kExtraFd, {.a = 3, .slot = extra_slot});
        plan.add(kResolveExe);
        plan.add(kExec);
        Running running = stage.launch(
            plan.finish({"sh", "-c", "ls /proc; for i in /proc/$$/fd/*; do echo fd ${i##*/}; done"},
                        {"PATH=/bin"}),
            {container.pidfd.get(), pid_namespace.get(), output.write.get(), output.write.get()});
        REQUIRE_MESSAGE(running.reply.err == 0, running.reply.step);
        CHECK(status_field(running.pid, "PPid") == std::to_string(::getpid()));
        expect_executed(stage, running);
        CHECK(stage.wait_status(running) == 0);
        std::string text = output.all();
        CHECK(text.find("fd 0\nfd 1\nfd 2\nfd 3\nfd 4\n") != std::string::npos);
        // 5 is what the shell itself opens to list them.
        CHECK(text.find("fd 6") == std::string::npos);
        CHECK(text.substr(0, 2) == "1\n");
        CHECK(link_of("/proc/" + std::to_string(stage.spawner_pid()) + "/ns/pid_for_children") ==
              link_of("/proc/self/ns/pid"));
        if (use_intermediate == 1) {
            // The intermediate is the keeper's to reap, and was killed.
            int status = 0;
            CHECK(::waitpid(-1, &status, __WALL) > 0);
            CHECK(WTERMSIG(status) == SIGKILL);
        }
    }
    // A container that is gone.
    CHECK(stage.kill(container) == SIGKILL);
    PlanWriter late(core::PlanKind::kExec);
    late.builder.header().pid_namespace_slot = late.slot();
    late.add(kExec);
    Running refused = stage.launch(late.finish({"/bin/true"}), {pid_namespace.get()});
    CHECK(refused.reply.err != 0);
    CHECK(std::string(refused.reply.step) == "clone3");
}

TEST_CASE("a helper exits 0 after its last step; hook points wait for the agent") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    PlanWriter plan(core::PlanKind::kHelper);
    plan.builder.header().clone_flags = CLONE_NEWNS;
    plan.add(kGuestPropagation, {.a = MS_REC | MS_PRIVATE});
    plan.add(kMkdirGuest, {.a = 0710, .b = 3, .c = 4, .s1 = stage.directory() + "/x/y"});
    std::string_view source("tmpfs\0none\0size=64k,mode=0711", 29);
    core::PlanString packed = plan.builder.bytes(std::as_bytes(std::span(source.data(), source.size())));
    plan.add(kMountGuest, {.a = MS_NOSUID, .s1 = stage.directory() + "/x/y"});
    // s2 is bytes: put in after the fact.
    plan.builder.step(kMountGuest, "again").s2 = packed;
    core::PlanString where = plan.builder.string(stage.directory() + "/x/y");
    (void)where;
    auto refused = std::move(plan.builder).finish();
    CHECK_FALSE(refused.ok());  // one of the two lacks s2, the other s1

    PlanWriter good(core::PlanKind::kHelper);
    good.builder.header().clone_flags = CLONE_NEWNS;
    good.add(kGuestPropagation, {.a = MS_REC | MS_PRIVATE});
    good.add(kMkdirGuest, {.a = 0710, .b = 3, .c = 4, .s1 = stage.directory() + "/x/y"});
    packed = good.builder.bytes(std::as_bytes(std::span(source.data(), source.size())));
    where = good.builder.string(stage.directory() + "/x/y");
    core::PlanStep& mount = good.builder.step(kMountGuest, "mount");
    mount.a = MS_NOSUID;
    mount.s1 = where;
    mount.s2 = packed;
    good.add(kTargetGuest, {.s1 = stage.directory() + "/x/y"});
    good.add(kHookPoint, {.a = 3});
    Running running = stage.launch(good.finish({}));
    REQUIRE(running.reply.err == 0);
    Message hook = stage.next_message(running);
    CHECK(hook.content.type == core::ChildMessageType::kHook);
    CHECK(hook.content.value == 3);
    CHECK(slurp(proc(running.pid, "mountinfo")).find("/x/y rw,nosuid") != std::string::npos);
    struct stat status {};
    REQUIRE(::stat((stage.directory() + "/x/y").c_str(), &status) == 0);
    CHECK(status.st_uid == 3);
    CHECK(status.st_gid == 4);
    CHECK((status.st_mode & 07777) == 0710);
    stage.go(running);
    CHECK(stage.next_message(running).end);
    CHECK(stage.wait_status(running) == 0);

    // The agent's end of the sync socket closes instead of a go.
    PlanWriter waiting(core::PlanKind::kHelper);
    waiting.add(kReady);
    Running abandoned = stage.launch(waiting.finish({}));
    REQUIRE(abandoned.reply.err == 0);
    CHECK(stage.next_message(abandoned).content.type == core::ChildMessageType::kReady);
    abandoned.sync.reset();
    CHECK(WEXITSTATUS(stage.wait_status(abandoned)) == core::kExitSetupFailed);
}

TEST_CASE("tmpcopyup takes over the covered directory") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    std::string upper = stage.root() + "/upper";
    std::string fill =
        "cd '" + upper +
        "' && mkdir -m 2751 -p a/b/c && echo one > a/b/c/one && chmod 6755 a/b/c/one && chown 5:6 a/b/c "
        "&& ln -s ../nowhere link && mkfifo -m 0604 fifo && touch -d @1234567 old && chmod 1770 . && "
        "i=0; while [ $i -lt 300 ]; do echo $i > many$i; mkdir dir$i; i=$((i+1)); done";
    REQUIRE(::system(fill.c_str()) == 0);
    PlanWriter plan(core::PlanKind::kContainer);
    plan.container_begin(stage.root());
    plan.add(kFsOpen, {.s1 = "tmpfs"});
    plan.add(kFsModeOf, {.s1 = "/upper"});
    plan.add(kFsMount);
    plan.add(kTmpCopyUp, {.s1 = "/upper"});
    plan.add(kTargetDir, {.a = 0755, .s1 = "/upper"});
    plan.add(kAttach);
    plan.pivot();
    plan.add(kExec);
    Running running = stage.launch(plan.finish({"/bin/sleep", "1000"}));
    REQUIRE(running.reply.err == 0);
    expect_executed(stage, running);
    std::string list =
        "cd '%s' && find . | sort | xargs stat -c '%%n %%a %%u:%%g %%F %%Y %%N' && cat many* a/b/c/one";
    auto listing = [&list](const std::string& where) {
        char command[512];
        snprintf(command, sizeof(command), list.c_str(), where.c_str());
        std::string text;
        FILE* pipe = ::popen(command, "re");
        char buffer[512];
        size_t got = 0;
        while ((got = fread(buffer, 1, sizeof(buffer), pipe)) > 0) text.append(buffer, got);
        CHECK(::pclose(pipe) == 0);
        return text;
    };
    std::string original = listing(upper);
    CHECK(original.size() > 10'000);
    std::string copied = listing(proc(running.pid, "root/upper"));
    size_t differs = 0;
    while (differs < original.size() && differs < copied.size() && original[differs] == copied[differs])
        ++differs;
    CHECK(copied.substr(differs, 80) == original.substr(differs, 80));
    CHECK(slurp(proc(running.pid, "mountinfo")).find(" /upper ") != std::string::npos);
    CHECK(stage.kill(running) == SIGKILL);
}

TEST_CASE("what the spawner refuses, and its own end") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    PlanWriter writer(core::PlanKind::kHelper);
    core::LaunchPlan plan = writer.finish({});
    sys::UniqueFd loose(::memfd_create("loose", MFD_CLOEXEC));
    REQUIRE(::write(loose.get(), plan.blob.data(), plan.blob.size()) > 0);
    core::SpawnReply reply = stage.send(loose.get(), {0, 0});
    CHECK(reply.err == EINVAL);
    CHECK(std::string(reply.step) == "plan is not a sealed memfd");
    auto sealed = sys::make_sealed_memfd("plan", plan.blob);
    REQUIRE(sealed.ok());
    reply = stage.send(sealed->get(), {0});
    CHECK(std::string(reply.step) == "plan is malformed");
    reply = stage.send(sealed->get(), {0, 0});  // slot 1 is no cgroup
    CHECK(reply.err == EBADF);
    CHECK(std::string(reply.step) == "clone3");
    std::string child = stage.cgroup() + "/child";
    // The spawner is as small as it was: no descriptor stays, and it shows nothing.
    std::string fds =
        "ls /proc/" + std::to_string(stage.spawner_pid()) + "/fd | wc -l > '" + stage.directory() + "/n'";
    // It closes what came with the last request just after its reply.
    for (int i = 0; i < 100 && slurp(stage.directory() + "/n") != "9\n"; ++i) {
        REQUIRE(::system(fds.c_str()) == 0);
    }
    CHECK(slurp(stage.directory() + "/n") == "9\n");  // 0-2, two sockets, log, /proc, two namespaces

    // A spawner that dies between clone and go takes the child with it.
    CHECK(stage.end_spawner() == 0);
    stage.start_spawner();
    Running running = stage.launch(plan);
    CHECK(running.reply.err == 0);
    CHECK(stage.wait_status(running) == 0);
}
