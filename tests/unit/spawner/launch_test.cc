// Real launches: what the kernel says about a process that came from a plan.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "agent/sys/memfd.h"
#include "agent/sys/seccomp.h"
#include "tests/support/spawner/plans.h"
#include "tests/support/spawner/stage.h"

using namespace berth;
using namespace berth::test;
using enum core::PlanOp;

namespace {

#define SKIP_IF_IMPOSSIBLE(stage)                          \
    if (!(stage).why_not().empty()) {                      \
        MESSAGE("skipped: " << (stage).why_not().c_str()); \
        return;                                            \
    }

constexpr uint64_t kCapsKept = 1u << 10;  // CAP_NET_BIND_SERVICE

struct Output {
    sys::UniqueFd read;
    sys::UniqueFd write;
    Output() {
        int fds[2];
        REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
        read.reset(fds[0]);
        write.reset(fds[1]);
    }
    // Reads until `ending` was there.
    std::string until(const char* ending) {
        std::string text;
        char buffer[512];
        ssize_t got = 0;
        while (text.find(ending) == std::string::npos &&
               (got = ::read(read.get(), buffer, sizeof(buffer))) > 0) {
            text.append(buffer, static_cast<size_t>(got));
        }
        return text;
    }
    std::string all() {
        write.reset();
        std::string text;
        char buffer[512];
        ssize_t got = 0;
        while ((got = ::read(read.get(), buffer, sizeof(buffer))) > 0)
            text.append(buffer, static_cast<size_t>(got));
        return text;
    }
};

void expect_executed(Stage& stage, const Running& running) {
    Message message = stage.next_message(running);
    if (!message.end) {
        MESSAGE("step " << message.content.step_index << " failed with " << message.content.err << ": "
                        << message.content.text);
    }
    CHECK(message.end);
}

std::string link_of(const std::string& path) {
    char target[256] = {};
    ssize_t size = ::readlink(path.c_str(), target, sizeof(target) - 1);
    return size < 0 ? "(none)" : std::string(target, static_cast<size_t>(size));
}

std::string proc(pid_t pid, const char* name) {
    return "/proc/" + std::to_string(pid) + "/" + name;
}

}  // namespace

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
