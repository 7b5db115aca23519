#include "tests/support/spawner/stage.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "agent/core/limits.h"
#include "agent/spawner/spawner.h"
#include "agent/sys/memfd.h"

namespace berth::test {

namespace {

constexpr int kPatienceMs = 20'000;

bool namespaces_work() {
    pid_t pid = ::fork();
    if (pid == 0) ::_exit(::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) == 0 ? 0 : 1);
    int status = 0;
    ::waitpid(pid, &status, 0);
    return status == 0;
}

void write_file(const std::string& path, const std::string& content) {
    sys::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    REQUIRE(fd.valid());
    REQUIRE(::write(fd.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size()));
}

sys::Received receive(const sys::UniqueFd& socket, std::span<std::byte> buffer) {
    pollfd polled{socket.get(), POLLIN, 0};
    REQUIRE(::poll(&polled, 1, kPatienceMs) == 1);
    auto received = sys::receive_with_fds(socket, buffer);
    REQUIRE(received.ok());
    return std::move(received).value();
}

}  // namespace

std::string slurp(const std::string& path) {
    sys::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string content;
    char buffer[4096];
    ssize_t got = 0;
    while (fd.valid() && (got = ::read(fd.get(), buffer, sizeof(buffer))) > 0) {
        content.append(buffer, static_cast<size_t>(got));
    }
    return content;
}

std::string status_field(pid_t pid, std::string_view name) {
    std::string all = "\n" + slurp("/proc/" + std::to_string(pid) + "/status");
    size_t at = all.find("\n" + std::string(name) + ":\t");
    if (at == std::string::npos) return "(none)";
    at += name.size() + 3;
    return all.substr(at, all.find('\n', at) - at);
}

Stage::Stage() {
    if (::geteuid() != 0) {
        why_not_ = "not root";
    } else if (!namespaces_work()) {
        why_not_ = "namespaces are not permitted";
    } else if (::access("/bin/busybox", X_OK) != 0) {
        why_not_ = "/bin/busybox is missing";
    } else if (!find_cgroup()) {
        why_not_ = "no writable cgroup2 mount";
    }
    if (!why_not_.empty()) return;
    build_root();
    start_spawner();
}

Stage::~Stage() {
    if (!why_not_.empty()) return;
    if (spawner_ > 0) end_spawner();
    // A mount that leaked must not be emptied.
    bool mounted = slurp("/proc/self/mountinfo").find(directory_) != std::string::npos;
    CHECK_FALSE(mounted);
    std::string remove = "rm -rf '" + directory_ + "'";
    if (!mounted) CHECK(::system(remove.c_str()) == 0);
    // Fails when a process was left in it.
    int removed = -1;
    for (int i = 0; i < 100 && removed != 0; ++i) {
        removed = ::rmdir(cgroup_.c_str());
        if (removed != 0) ::usleep(20'000);
    }
    CHECK(removed == 0);
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

bool Stage::find_cgroup() {
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        if (::access((std::string(mount) + "/cgroup.procs").c_str(), W_OK) != 0) continue;
        cgroup_ = std::string(mount) + "/berth-spawner-test-" + std::to_string(::getpid());
        if (::mkdir(cgroup_.c_str(), 0755) == 0 && ::access((cgroup_ + "/cgroup.type").c_str(), F_OK) == 0)
            return true;
        ::rmdir(cgroup_.c_str());
    }
    return false;
}

void Stage::build_root() {
    char name[] = "/tmp/berth-spawner-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    directory_ = name;
    ::chmod(name, 0755);
    root_ = directory_ + "/root";
    for (const char* folder : {"", "/bin", "/proc", "/dev", "/etc", "/tmp", "/hidden", "/ro", "/upper"}) {
        REQUIRE(::mkdir((root_ + folder).c_str(), 0755) == 0);
    }
    std::string copy = "cp /bin/busybox '" + root_ + "/bin/busybox'";
    REQUIRE(::system(copy.c_str()) == 0);
    for (const char* applet : {"sh", "sleep", "cat", "true", "id", "ls", "stat", "tty"}) {
        REQUIRE(::symlink("busybox", (root_ + "/bin/" + applet).c_str()) == 0);
    }
    write_file(root_ + "/etc/passwd", "root:x:0:0::/root:/bin/sh\nweb:x:1000:1000:Web:/home/web:/bin/sh\n");
    write_file(root_ + "/etc/secret", "secret\n");
    write_file(root_ + "/hidden/file", "hidden\n");
    write_file(root_ + "/ro/file", "ro\n");
}

void Stage::start_spawner() {
    auto keeper = sys::make_seqpacket_pair();
    auto agent = sys::make_seqpacket_pair();
    REQUIRE(keeper.ok());
    REQUIRE(agent.ok());
    spawner_ = ::fork();
    if (spawner_ == 0) {
        // Above 3 and 4 first, so that neither is closed by the other's place.
        int keeper_fd = ::fcntl(keeper->second.get(), F_DUPFD, 10);
        int agent_fd = ::fcntl(agent->second.get(), F_DUPFD, 10);
        ::dup2(keeper_fd, 3);
        ::dup2(agent_fd, 4);
        spawner::run_spawner();
    }
    REQUIRE(spawner_ > 0);
    keeper_ = std::move(keeper->first);
    agent_ = std::move(agent->first);
}

int Stage::end_spawner() {
    agent_.reset();
    int status = -1;
    ::waitpid(spawner_, &status, 0);
    spawner_ = 0;
    return status;
}

core::SpawnReply Stage::send(int plan_fd, const std::vector<int>& fds) {
    core::SpawnRequest request;
    request.request = next_request_++;
    std::vector<int> all{plan_fd};
    all.insert(all.end(), fds.begin(), fds.end());
    REQUIRE(sys::send_with_fds(agent_, sys::bytes_of(request), all).ok());
    core::SpawnReply reply;
    sys::Received received = receive(agent_, sys::writable_bytes_of(reply));
    REQUIRE(received.bytes == sizeof(reply));
    CHECK(reply.request == request.request);
    return reply;
}

Running Stage::launch(const core::LaunchPlan& plan, const std::vector<int>& fds) {
    Running running;
    auto sync = sys::make_seqpacket_pair();
    REQUIRE(sync.ok());
    auto memfd = sys::make_sealed_memfd("plan", plan.blob);
    REQUIRE(memfd.ok());
    sys::UniqueFd cgroup(::open(cgroup_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    std::vector<int> all{memfd->get(), sync->second.get(), cgroup.get()};
    all.insert(all.end(), fds.begin(), fds.end());
    core::SpawnRequest request;
    request.request = next_request_++;
    request.process_key = request.request + 1000;
    std::span<const std::byte> in_request;
    // Both ways in turn.
    if (request.request % 2 == 0 && plan.blob.size() <= limits::kInlinePlanBytes) {
        in_request = plan.blob;
        request.plan_bytes = static_cast<uint32_t>(plan.blob.size());
        all.erase(all.begin());
    }
    REQUIRE(sys::send_with_fds(agent_, sys::bytes_of(request), all, 0, in_request).ok());
    sys::Received received = receive(agent_, sys::writable_bytes_of(running.reply));
    REQUIRE(received.bytes == sizeof(running.reply));
    CHECK(running.reply.request == request.request);
    running.sync = std::move(sync->first);
    if (running.reply.err != 0) {
        CHECK(received.fds.empty());
        return running;
    }
    REQUIRE(received.fds.size() == 1);
    running.pid = running.reply.pid;
    running.pidfd = std::move(received.fds[0]);
    // The keeper was told before.
    core::RegisterProcess record;
    auto told = sys::receive_with_fds(keeper_, sys::writable_bytes_of(record), MSG_DONTWAIT);
    REQUIRE(told.ok());
    REQUIRE(told->bytes == sizeof(record));
    REQUIRE(told->fds.size() == 1);
    CHECK(record.process_key == request.process_key);
    CHECK(record.pid == running.pid);
    running.registered = std::move(told->fds[0]);
    return running;
}

Message Stage::next_message(const Running& running) {
    Message message;
    sys::Received received = receive(running.sync, sys::writable_bytes_of(message.content));
    message.end = received.end;
    if (!received.end) REQUIRE(received.bytes == sizeof(message.content));
    if (!received.fds.empty()) message.fd = std::move(received.fds[0]);
    return message;
}

void Stage::go(const Running& running) {
    REQUIRE(::send(running.sync.get(), &core::kGoByte, 1, MSG_NOSIGNAL) == 1);
}

int Stage::kill(const Running& running) {
    // By pidfd: a launch that failed has pid 0, and kill(0) is for the whole process group.
    CHECK(::syscall(SYS_pidfd_send_signal, running.pidfd.get(), SIGKILL, nullptr, 0) == 0);
    return WTERMSIG(wait_status(running));
}

int Stage::wait_status(const Running& running) {
    if (!running.pidfd.valid()) return -1;
    pollfd polled{running.pidfd.get(), POLLIN, 0};
    CHECK(::poll(&polled, 1, kPatienceMs) == 1);
    int status = -1;
    // __WALL: the exit signal of a CLONE_PARENT child is inherited, whatever it is.
    CHECK(::waitpid(running.pid, &status, __WALL) == running.pid);
    return status;
}

}  // namespace berth::test
