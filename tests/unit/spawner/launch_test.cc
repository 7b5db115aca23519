// Real launches: what the kernel says about a process that came from a plan.
#include "tests/support/spawner/launch_case.h"

TEST_CASE("a container's process is what its plan says") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    // As the keeper has it.
    Output output;
    PlanWriter plan(core::PlanKind::kContainer);
    int32_t out_slot = plan.slot();
    plan.container_begin(stage.root());
    plan.devices();
    plan.add(kLoopbackUp);
    plan.add(kHostname, {.s1 = "stage"});
    plan.add(kSysctl, {.s1 = "net/ipv4/ip_forward", .s2 = "1"});
    plan.add(kSysctl, {.s1 = "kernel/msgmax", .s2 = "4444"});
    plan.pivot();
    plan.add(kMask, {.s1 = "/etc/secret"});
    plan.add(kMask, {.s1 = "/proc/kcore"});
    plan.add(kMask, {.s1 = "/proc/keys"});
    plan.add(kMask, {.s1 = "/hidden"});
    plan.add(kMask, {.s1 = "/proc/acpi"});
    plan.add(kMask, {.s1 = "/does/not/exist"});
    plan.add(kReadonlyPath, {.s1 = "/proc/sys"});
    plan.add(kReadonlyPath, {.s1 = "/missing"});
    plan.add(kRootReadonly, {.a = MOUNT_ATTR_RDONLY});
    plan.add(kStdio, {.a = 0});
    plan.add(kStdio, {.a = 1, .slot = out_slot});
    plan.add(kStdio, {.a = 2, .slot = out_slot});
    plan.add(kStdioOwner, {.a = 1000});
    plan.add(kOomScoreAdj, {.a = 321});
    plan.add(kRlimit, {.a = RLIMIT_NOFILE, .b = 77, .c = 88});
    plan.add(kRlimit, {.a = RLIMIT_CORE, .b = 0, .c = 1 << 20});
    plan.add(kCwd, {.b = 1, .s1 = "/tmp"});
    plan.add(kHome, {.a = 1000});
    plan.add(kCloseFds);
    plan.add(kBoundingCaps, {.a = kCapsKept});
    const uint32_t groups[] = {1000, 27, 44};
    core::PlanString list = plan.builder.bytes(std::as_bytes(std::span(groups)));
    plan.builder.step(kSetgroups, "groups").s1 = list;
    plan.add(kUmask, {.a = 027});
    plan.add(kUser, {.a = 1000, .b = 1001, .c = 1});
    plan.add(kCapset, {.a = kCapsKept, .b = kCapsKept, .c = kCapsKept});
    plan.add(kAmbientCaps, {.a = kCapsKept});
    plan.add(kNoNewPrivs);
    auto filter = sys::compile_own_filter();
    core::PlanString program = plan.builder.bytes(std::as_bytes(std::span(filter)));
    plan.builder.step(kSeccomp, "own filter").s1 = program;
    plan.add(kResolveExe);
    plan.add(kReady);
    plan.add(kExec);
    const char* script =
        "hostname; cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax; cat /etc/secret; ls /hidden; "
        "cat /proc/kcore 2>/dev/null; echo $HOME $PWD $$; stat -c '%a %t:%T %u' /dev/null; "
        "(echo x > /ro/file) 2>/dev/null || echo read-only; (echo 0 > /proc/sys/kernel/msgmax) 2>/dev/null "
        "|| "
        "echo sysctl-read-only; ls /proc/self/fd | wc -l; cat /sys/class/net/lo/operstate 2>/dev/null; "
        "umask; echo end; exec sleep 1000";
    core::LaunchPlan finished = plan.finish({"sh", "-c", script}, {"PATH=/nowhere:/bin", "HOME="});

    Running running = stage.launch(finished, {output.write.get()});
    REQUIRE(running.reply.err == 0);
    Message ready = stage.next_message(running);
    if (ready.content.type != core::ChildMessageType::kReady) {
        MESSAGE(finished.step_label(ready.content.step_index)
                << ": " << ready.content.err << ready.content.text);
    }
    REQUIRE(ready.content.type == core::ChildMessageType::kReady);
    // Before Start it is undumpable: nobody but the real root owns its /proc files.
    struct stat proc_dir {};
    REQUIRE(::stat(proc(running.pid, "mem").c_str(), &proc_dir) == 0);
    CHECK(proc_dir.st_uid == 0);
    stage.go(running);
    expect_executed(stage, running);
    output.write.reset();
    std::string text = output.until("end\n");
    CHECK(text == "stage\n1\n4444\n/home/web /tmp 1\n666 1:3 0\nread-only\nsysctl-read-only\n4\n0027\nend\n");

    pid_t pid = running.pid;
    // The shell ignores some signals until it becomes what it ran last.
    for (int i = 0; i < 1000 && status_field(pid, "Name") != "sleep"; ++i) ::usleep(10'000);
    CHECK(status_field(pid, "PPid") == std::to_string(::getpid()));
    CHECK(status_field(pid, "Uid") == "1000\t1000\t1000\t1000");
    CHECK(status_field(pid, "Gid") == "1001\t1001\t1001\t1001");
    CHECK(status_field(pid, "Groups") == "27 44 1000 ");
    CHECK(status_field(pid, "NSpid") == std::to_string(pid) + "\t1");
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}) {
        CAPTURE(set);
        CHECK(status_field(pid, set) == "0000000000000400");
    }
    CHECK(status_field(pid, "NoNewPrivs") == "1");
    CHECK(status_field(pid, "Seccomp") == "2");
    CHECK(status_field(pid, "SigBlk") == "0000000000000000");
    CHECK(status_field(pid, "SigIgn") == "0000000000000000");
    CHECK(slurp(proc(pid, "oom_score_adj")) == "321\n");
    std::string limits = slurp(proc(pid, "limits"));
    CHECK(limits.find("Max open files            77                   88 ") != std::string::npos);
    CHECK(limits.find("Max core file size        0                    1048576 ") != std::string::npos);
    CHECK(slurp(proc(pid, "cgroup")).find("berth-spawner-test") != std::string::npos);
    for (const char* name : {"mnt", "pid", "uts", "ipc", "net", "cgroup"}) {
        CAPTURE(name);
        std::string path = std::string("ns/") + name;
        CHECK(link_of(proc(pid, path.c_str())) != link_of("/proc/self/" + path));
    }
    CHECK(link_of(proc(pid, "ns/user")) == link_of("/proc/self/ns/user"));
    std::string mounts = slurp(proc(pid, "mountinfo"));
    // The root, proc, dev, pts, four masks and a read-only path: nothing of the guest's.
    size_t lines = 0;
    for (char c : mounts) lines += c == '\n' ? 1 : 0;
    CHECK(lines ==
          4 + 4 + (::access("/proc/acpi", F_OK) == 0 ? 1 : 0) + 1 - (::access("/proc/kcore", F_OK) ? 1 : 0));
    CHECK(mounts.find(" / ro") != std::string::npos);
    CHECK(mounts.find(" /hidden ro,nosuid,nodev,noexec") != std::string::npos);

    CHECK(stage.kill(running) == SIGKILL);
}

TEST_CASE("a failed step is named, with the kernel's own words, and nothing is left") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    struct Row {
        const char* what;
        void (*add)(PlanWriter&);
        const char* label;
        int err;
        const char* text;
    };
    const Row rows[] = {
        {"unknown mount option",
         [](PlanWriter& plan) {
             plan.add(kFsOpen, {.s1 = "tmpfs"});
             plan.add(kFsString, {.s1 = "sise", .s2 = "1", .label = "mount 3 (tmpfs on /run)"});
         },
         "mount 3 (tmpfs on /run)", EINVAL, "tmpfs: Unknown parameter 'sise'"},
        {"unknown file system",
         [](PlanWriter& plan) { plan.add(kFsOpen, {.s1 = "nofs", .label = "mount 3 (nofs on /x)"}); },
         "mount 3 (nofs on /x)", ENODEV, ""},
        {"missing executable", [](PlanWriter& plan) { plan.add(kResolveExe, {.label = "process.args"}); },
         "process.args", ENOENT, ""},
        {"a device where another is",
         [](PlanWriter& plan) {
             plan.add(kNode,
                      {.a = S_IFCHR | 0666, .b = 0x109, .s1 = "/dev/null", .label = "linux.devices[0]"});
         },
         "linux.devices[0]", EEXIST, ""},
        {"a device where a file is",
         [](PlanWriter& plan) { plan.add(kNode, {.a = S_IFCHR | 0666, .b = 0x103, .s1 = "/etc/passwd"}); },
         "mknod", EEXIST, ""},
        {"a mount target through a link to procfs",
         [](PlanWriter& plan) {
             plan.add(kTargetDir, {.a = 0755, .s1 = "/etc/to-proc/sys", .label = "target"});
         },
         "target", EPERM, ""},
        {"a node through a link to procfs",
         [](PlanWriter& plan) {
             plan.add(kNode, {.a = S_IFIFO | 0600, .s1 = "/etc/to-proc/fifo", .label = "fifo"});
         },
         "fifo", EPERM, ""},
        {"proc on a symlink",
         [](PlanWriter& plan) {
             plan.add(kTargetDir, {.a = 0755, .b = 1, .s1 = "/etc/to-proc", .label = "proc"});
         },
         "proc", ELOOP, ""},
        {"a source behind a magic link",
         [](PlanWriter& plan) { plan.add(kTreeGuest, {.s1 = "/proc/self/root/tmp", .label = "mount 4"}); },
         "mount 4", ELOOP, ""},
        {"unknown sysctl",
         [](PlanWriter& plan) { plan.add(kSysctl, {.s1 = "net/nope", .s2 = "1", .label = "linux.sysctl"}); },
         "linux.sysctl", ENOENT, ""},
        {"a sysctl outside of sys",
         [](PlanWriter& plan) {
             plan.add(kSysctl, {.s1 = "../sysrq-trigger", .s2 = "h", .label = "linux.sysctl"});
         },
         "linux.sysctl", EXDEV, ""},
        {"a working directory that is a file",
         [](PlanWriter& plan) { plan.add(kCwd, {.s1 = "/proc/version"}); }, "chdir", ENOTDIR, ""},
    };
    REQUIRE(::symlink("/proc", (stage.root() + "/etc/to-proc").c_str()) == 0);
    for (const Row& row : rows) {
        CAPTURE(row.what);
        PlanWriter plan(core::PlanKind::kContainer);
        plan.container_begin(stage.root());
        plan.devices();
        row.add(plan);
        plan.pivot();
        plan.add(kExec);
        core::LaunchPlan finished = plan.finish({"nothing-of-this-name"});
        Running running = stage.launch(finished);
        REQUIRE(running.reply.err == 0);
        Message message = stage.next_message(running);
        REQUIRE_FALSE(message.end);
        CHECK(message.content.type == core::ChildMessageType::kFailed);
        CHECK(finished.step_label(message.content.step_index) == row.label);
        CHECK(message.content.err == row.err);
        CHECK(std::string(message.content.text) == row.text);
        CHECK(stage.next_message(running).end);
        int status = stage.wait_status(running);
        CHECK(WEXITSTATUS(status) == core::kExitSetupFailed);
    }
}

TEST_CASE("paths of the image never lead out of the root") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    const std::string root = stage.root();
    const std::string outside = stage.directory() + "/outside";
    REQUIRE(::mkdir(outside.c_str(), 0755) == 0);
    REQUIRE(::symlink(outside.c_str(), (root + "/absolute").c_str()) == 0);
    REQUIRE(::symlink("../../../../../../../../made/here", (root + "/etc/upwards").c_str()) == 0);
    REQUIRE(::symlink("loop", (root + "/loop").c_str()) == 0);
    REQUIRE(::rmdir((root + "/dev").c_str()) == 0);
    REQUIRE(::symlink(outside.c_str(), (root + "/dev").c_str()) == 0);
    PlanWriter plan(core::PlanKind::kContainer);
    plan.container_begin(root);
    plan.devices();
    // Through dangling links: made inside.
    plan.add(kTreeGuest, {.s1 = root + "/etc/passwd"});
    plan.add(kTargetLike, {.s1 = "/etc/upwards/deep/file"});
    plan.add(kAttach);
    plan.add(kTreeGuest, {.s1 = root + "/ro"});
    plan.add(kTargetLike, {.s1 = "/absolute/dir/../dir2"});
    plan.add(kAttach);
    plan.add(kTargetDir, {.a = 0700, .s1 = "/new//a/./b/"});
    plan.add(kNode, {.a = S_IFIFO | 0642, .c = uint64_t{7} << 32 | 8, .s1 = "/new/a/fifo"});
    plan.add(kTargetExisting, {.b = 1, .c = plan.builder.next_step() + 2, .s1 = "/not/there"});
    plan.add(kHostname, {.s1 = "the jump was not taken"});
    uint32_t jump = plan.builder.next_step();
    plan.add(kTreeRoot, {.b = 1, .s1 = "/loop/x", .flags = core::kIgnoreErrors});
    plan.builder.land_here(jump);
    plan.pivot();
    plan.add(kExec);
    core::LaunchPlan finished = plan.finish({"/bin/sleep", "1000"});
    Running running = stage.launch(finished);
    REQUIRE(running.reply.err == 0);
    expect_executed(stage, running);
    std::string inside = proc(running.pid, "root");
    CHECK(slurp(inside + "/made/here/deep/file") == slurp(root + "/etc/passwd"));
    CHECK(slurp(inside + outside + "/dir2/file") == "ro\n");
    struct stat status {};
    REQUIRE(::stat((inside + "/new/a/b").c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0700);
    REQUIRE(::lstat((inside + "/new/a/fifo").c_str(), &status) == 0);
    CHECK(S_ISFIFO(status.st_mode));
    CHECK((status.st_mode & 07777) == 0642);
    CHECK(status.st_uid == 7);
    CHECK(status.st_gid == 8);
    CHECK(::access((inside + outside + "/null").c_str(), F_OK) == 0);
    // Nothing in the real place.
    CHECK(::rmdir(outside.c_str()) == 0);
    CHECK(::access("/made", F_OK) == -1);
    // umask without a step, limits without a step.
    CHECK(status_field(running.pid, "Umask") == "0022");
    CHECK(slurp(proc(running.pid, "limits")).find("Max open files            1024                 4096 ") !=
          std::string::npos);
    CHECK(stage.kill(running) == SIGKILL);
}

TEST_CASE("a terminal: the master goes to the agent, the slave is the controlling terminal") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    PlanWriter plan(core::PlanKind::kContainer);
    plan.container_begin(stage.root());
    plan.devices();
    plan.add(kPtyOpen, {.a = 33, .b = 99, .c = 1000});
    plan.add(kTreeTtySlave);
    plan.add(kTargetLike, {.s1 = "/dev/console"});
    plan.add(kAttach, {.label = "/dev/console"});
    plan.pivot();
    plan.add(kPtyAttach);
    plan.add(kCloseFds);
    plan.add(kExec);
    core::LaunchPlan finished = plan.finish(
        {"/bin/sh", "-c",
         "tty; stat -c %u:%a /dev/pts/0; stat -c %t:%T /dev/console; stty size; : > /dev/tty && echo ok"},
        {"PATH=/bin"});
    REQUIRE(::symlink("busybox", (stage.root() + "/bin/stty").c_str()) == 0);
    Running running = stage.launch(finished);
    REQUIRE(running.reply.err == 0);
    Message pty = stage.next_message(running);
    if (pty.content.type != core::ChildMessageType::kPty) {
        MESSAGE(finished.step_label(pty.content.step_index) << ": " << pty.content.err);
    }
    REQUIRE(pty.content.type == core::ChildMessageType::kPty);
    REQUIRE(pty.fd.valid());
    expect_executed(stage, running);
    std::string text;
    char buffer[256];
    ssize_t got = 0;
    while ((got = ::read(pty.fd.get(), buffer, sizeof(buffer))) > 0)
        text.append(buffer, static_cast<size_t>(got));
    CHECK(got == -1);
    CHECK(errno == EIO);  // hung up: no other copy of the slave exists
    CHECK(text == "/dev/pts/0\r\n1000:620\r\n88:0\r\n33 99\r\nok\r\n");
    CHECK(stage.wait_status(running) == 0);
}

TEST_CASE("a user namespace with mappings") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    Output output;
    PlanWriter plan(core::PlanKind::kContainer);
    int32_t out_slot = plan.slot();
    plan.builder.header().uid_map = plan.builder.string("0 100000 65536\n");
    plan.builder.header().gid_map = plan.builder.string("0 200000 65536\n");
    plan.container_begin(stage.root(), CLONE_NEWUSER);
    // What takes CAP_SYS_RESOURCE outside of the new namespace is the spawner's to do, where it has that.
    bool privileged = (std::strtoull(status_field(::getpid(), "CapEff").c_str(), nullptr, 16) >> 24 & 1) != 0;
    if (!privileged) MESSAGE("skipped: raised limits, no CAP_SYS_RESOURCE here");
    plan.add(kOomScoreAdj, {.a = static_cast<uint64_t>(privileged ? -5 : 5)});
    if (privileged) plan.add(kRlimit, {.a = RLIMIT_MEMLOCK, .b = 1 << 20, .c = RLIM_INFINITY});
    plan.add(kMask, {.s1 = "/etc/secret"});
    plan.pivot();
    plan.add(kStdio, {.a = 1, .slot = out_slot});
    plan.add(kUser, {.a = 5, .b = 6, .c = 0});
    plan.add(kExec);
    Running running = stage.launch(
        plan.finish({"/bin/sh", "-c", "id -u; cat /proc/self/uid_map /etc/secret; exec sleep 1000"}),
        {output.write.get()});
    REQUIRE_MESSAGE(running.reply.err == 0, running.reply.step);
    expect_executed(stage, running);
    output.write.reset();
    CHECK(output.until("65536\n") == "5\n         0     100000      65536\n");
    CHECK(status_field(running.pid, "Uid") == "100005\t100005\t100005\t100005");
    CHECK(status_field(running.pid, "Gid") == "200006\t200006\t200006\t200006");
    CHECK(status_field(running.pid, "CapEff") == "0000000000000000");
    CHECK(slurp(proc(running.pid, "oom_score_adj")) == (privileged ? "-5\n" : "5\n"));
    std::string limits = slurp(proc(running.pid, "limits"));
    bool raised =
        limits.find("Max locked memory         1048576              unlimited") != std::string::npos;
    CHECK(raised == privileged);
    CHECK(stage.kill(running) == SIGKILL);
    CHECK(output.all().empty());
}

TEST_CASE("a time namespace gets its offsets before anyone is inside") {
    Stage stage;
    SKIP_IF_IMPOSSIBLE(stage);
    Output output;
    PlanWriter plan(core::PlanKind::kContainer);
    int32_t out_slot = plan.slot();
    plan.builder.header().clone_flags = CLONE_NEWTIME;
    plan.builder.header().timens_offsets = plan.builder.string("boottime 86400000 0\n");
    plan.add(kStdio, {.a = 1, .slot = out_slot});
    plan.add(kExec);
    Running running =
        stage.launch(plan.finish({"/bin/busybox", "cat", "/proc/uptime"}), {output.write.get()});
    REQUIRE_MESSAGE(running.reply.err == 0, running.reply.step);
    expect_executed(stage, running);
    CHECK(stage.wait_status(running) == 0);
    CHECK(std::stod(output.all()) >= 86400000.0);
    // The spawner is back in its own.
    std::string spawner = "/proc/" + std::to_string(stage.spawner_pid()) + "/ns/";
    CHECK(link_of(spawner + "time") == link_of("/proc/self/ns/time"));
    CHECK(link_of(spawner + "time_for_children") == link_of("/proc/self/ns/time"));
}
