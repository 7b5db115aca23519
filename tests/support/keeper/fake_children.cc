#include "tests/support/keeper/fake_children.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "agent/core/spawner_protocol.h"
#include "agent/core/text.h"
#include "agent/sys/log.h"
#include "agent/sys/small_file.h"
#include "agent/sys/socket.h"

namespace berth::testing {
namespace {

using core::KeeperMessage;
using core::KeeperMessageType;

struct SpawnOrder {
    uint64_t key = 0;
    int milliseconds = 0;
    int code = 0;
    char mode = ' ';  // l late, o orphan, q the spawner dies
};

int64_t now_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

class FakeAgent {
 public:
    [[noreturn]] void run() {
        receive();  // the welcome says where the script is
        auto script = sys::read_small_file(
            core::format("%s/agent.%u", config_.run_dir, config_.agent_starts).c_str(), 65536);
        if (!script.ok()) ::raise(SIGKILL);
        for (std::string_view line : core::split_lines(*script)) command(core::split(line, ' '));
        while (true) receive();
    }

 private:
    void note(const std::string& line) {
        int fd = ::open(core::format("%s/log", config_.run_dir).c_str(),
                        O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        std::string text = line + "\n";
        if (::write(fd, text.data(), text.size()) < 0) ::_exit(9);
        ::close(fd);
    }

    // Returns the line that names the message.
    std::string receive() {
        core::WelcomeMessage message;
        auto received =
            sys::receive_with_fds(sys::FdRef(core::kKeeperSocketFd), sys::writable_bytes_of(message));
        if (!received.ok() || received->end) ::_exit(0);
        std::string line = describe(message, *received);
        note(line);
        return line;
    }

    std::string describe(core::WelcomeMessage& message, sys::Received& received) {
        const KeeperMessage& head = message.header;
        auto key = static_cast<unsigned long long>(head.process.key);
        switch (head.type) {
            case KeeperMessageType::kWelcome:
                config_ = message.config;
                return core::format("welcome %u safe=%d crash=%s key=%02x", config_.agent_starts,
                                    config_.safe_mode, config_.last_crash, message.keys.key[2][31]);
            case KeeperMessageType::kStoredFd:
                return core::format("stored %s fds=%zu", head.name, received.fds.size());
            case KeeperMessageType::kRegistered:
                return core::format("registered %llu fds=%zu", key, received.fds.size());
            case KeeperMessageType::kExited:
                if (head.process.exited_realtime_ns == 0 || head.process.pid == 0)
                    return "exited without its times";
                return core::format("exited %llu 0x%x", key, static_cast<unsigned>(head.process.wait_status));
            case KeeperMessageType::kSpawner: spawner_ = std::move(received.fds.front()); return "spawner";
            case KeeperMessageType::kWelcomeEnd: return "end";
            default: return "unexpected";
        }
    }

    void send(KeeperMessageType type, uint32_t value, uint64_t key, std::string_view name, int fd = -1) {
        KeeperMessage message;
        message.type = type;
        message.value = value;
        message.process.key = key;
        name.copy(message.name, name.size());
        std::span<const int> fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
        if (!sys::send_with_fds(sys::FdRef(core::kKeeperSocketFd), sys::bytes_of(message), fds).ok())
            ::_exit(8);
    }

    void order(const SpawnOrder& spawn) {
        if (!sys::send_with_fds(spawner_, sys::bytes_of(spawn), {}).ok()) ::_exit(8);
    }

    void command(const std::vector<std::string_view>& words) {
        std::string_view verb = words[0];
        auto number = [&words](size_t index) {
            return words.size() > index ? core::parse_number<uint32_t>(words[index]).value_or(0) : 0;
        };
        if (verb == "until") {
            std::string wanted(words[1]);
            if (words.size() > 2) wanted += " " + std::string(words[2]);
            while (!receive().starts_with(wanted)) {
            }
        } else if (verb == "spawn") {
            order({number(1), static_cast<int>(number(2)), static_cast<int>(number(3)),
                   words.size() > 4 ? words[4][0] : ' '});
        } else if (verb == "kill-spawner") {
            order({0, 0, 0, 'q'});
        } else if (verb == "store") {
            int fd = ::eventfd(0, EFD_CLOEXEC);
            send(KeeperMessageType::kStoreFd, 0, 0, words[1], fd);
            ::close(fd);
        } else if (verb == "store-two") {
            KeeperMessage message;
            message.type = KeeperMessageType::kStoreFd;
            std::memcpy(message.name, words[1].data(), words[1].size());
            const int fds[] = {::eventfd(0, EFD_CLOEXEC), ::eventfd(0, EFD_CLOEXEC)};
            if (!sys::send_with_fds(sys::FdRef(core::kKeeperSocketFd), sys::bytes_of(message), fds).ok())
                ::_exit(8);
            for (int fd : fds) ::close(fd);
        } else if (verb == "store-nothing") {
            send(KeeperMessageType::kStoreFd, 0, 0, words[1]);
        } else if (verb == "drop") {
            send(KeeperMessageType::kDropFd, 0, 0, words[1]);
        } else if (verb == "ack") {
            // One message for all of the line's.
            std::string more;
            for (size_t i = 2; i < words.size(); ++i) {
                uint64_t key = number(i);
                more.append(reinterpret_cast<const char*>(&key), sizeof key);
            }
            send(KeeperMessageType::kAcknowledgeExit, static_cast<uint32_t>(words.size() - 2), number(1),
                 more);
        } else if (verb == "forget") {
            send(KeeperMessageType::kForget, 0, number(1), {});
        } else if (verb == "ready") {
            send(KeeperMessageType::kAgentReady, 0, 0, {});
        } else if (verb == "shutdown") {
            send(KeeperMessageType::kShutdown, number(1), 0, {});
        } else if (verb == "nonsense") {
            char junk[3] = {1, 2, 3};
            if (!sys::send_with_fds(sys::FdRef(core::kKeeperSocketFd), std::as_bytes(std::span(junk)), {})
                     .ok()) {
                ::_exit(8);
            }
            send(static_cast<KeeperMessageType>(99), 0, 0, {});
            send(KeeperMessageType::kWelcome, 0, 0, {});
        } else if (verb == "sleep") {
            ::usleep(number(1) * 1000);
        } else if (verb == "crash") {
            ::raise(SIGKILL);
        } else if (verb == "exit") {
            ::_exit(static_cast<int>(number(1)));
        } else if (verb == "hup") {
            ::kill(::getppid(), SIGHUP);
        } else if (verb == "close") {
            ::close(core::kKeeperSocketFd);
            ::sleep(20);
        } else {
            ::_exit(7);
        }
    }

    core::AgentConfig config_;
    sys::UniqueFd spawner_;
};

void spawn(const SpawnOrder& spawn) {
    int pidfd = -1;
    int go[2];
    if (::pipe2(go, O_CLOEXEC) != 0) ::_exit(6);
    clone_args arguments{};
    arguments.flags = CLONE_PARENT | CLONE_PIDFD;
    arguments.pidfd = reinterpret_cast<uintptr_t>(&pidfd);
    long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid == 0) {
        char byte = 0;
        ::close(go[1]);
        if (spawn.mode == ' ' && ::read(go[0], &byte, 1) != 1) ::_exit(99);
        ::usleep(static_cast<useconds_t>(spawn.milliseconds) * 1000);
        ::syscall(SYS_exit_group, spawn.code);
    }
    if (spawn.mode == 'l') ::usleep(200'000);
    core::RegisterProcess registration;
    registration.process_key = spawn.key;
    registration.pid = static_cast<int32_t>(pid);
    bool is_sent =
        spawn.mode == 'o' ||
        sys::send_with_fds(sys::FdRef(core::kKeeperSocketFd), sys::bytes_of(registration), {&pidfd, 1}).ok();
    if (!is_sent || ::write(go[1], "g", 1) != 1) ::_exit(6);
    ::close(pidfd);
    ::close(go[0]);
    ::close(go[1]);
}

[[noreturn]] void run_spawner() {
    while (true) {
        SpawnOrder next;
        auto received =
            sys::receive_with_fds(sys::FdRef(core::kSpawnerAgentSocketFd), sys::writable_bytes_of(next));
        if (!received.ok() || received->end) ::_exit(0);
        if (next.mode == 'q') ::raise(SIGKILL);
        spawn(next);
    }
}

// glibc gives constructors main's arguments.
[[gnu::constructor]] void become_child(int argc, char** argv, char**) {
    if (argc > 0 && std::string_view(argv[0]) == "berth-agent") FakeAgent().run();
    if (argc > 0 && std::string_view(argv[0]) == "berth-spawner") run_spawner();
}

[[noreturn]] void run_in_child(const std::string& directory,
                               void (*prepare)(keeper::KeeperSetup& setup, keeper::FdStore& store)) {
    ::alarm(20);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    keeper::block_signals();
    static core::ClassKeys keys;
    keys.key[2][31] = 0x5a;
    keeper::KeeperSetup setup;
    setup.program = "/proc/self/exe";
    setup.config.has_secret = 1;
    std::strncpy(setup.config.run_dir, directory.c_str(), sizeof setup.config.run_dir - 1);
    setup.input = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    setup.output = ::open((directory + "/output").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    sys::set_log(setup.output, sys::LogLevel::kDebug, "keeper");
    keeper::FdStore store;
    if (prepare != nullptr) prepare(setup, store);
    std::string ending;
    {
        keeper::Keeper keeper(std::move(setup), std::move(store), keys);
        auto mode = keeper.run();
        ending = mode.ok() ? core::format("ended %u stored=%zu processes=%zu", static_cast<unsigned>(*mode),
                                          keeper.store().size(), keeper.exits().size())
                           : mode.error().message;
    }
    FILE* log = ::fopen((directory + "/log").c_str(), "a");
    std::fprintf(log, "%s\n", ending.c_str());
    std::fclose(log);
    ::_exit(0);
}

}  // namespace

KeeperRun run_keeper(const std::vector<std::string>& scripts,
                     void (*prepare)(keeper::KeeperSetup& setup, keeper::FdStore& store)) {
    char directory[] = "/tmp/berth-keeper-XXXXXX";
    KeeperRun run;
    if (::mkdtemp(directory) == nullptr) return run;
    for (size_t i = 0; i < scripts.size(); ++i) {
        FILE* file = ::fopen(core::format("%s/agent.%zu", directory, i).c_str(), "w");
        std::fputs(scripts[i].c_str(), file);
        std::fclose(file);
    }
    int64_t begin_ms = now_ms();
    pid_t pid = ::fork();
    if (pid == 0) run_in_child(directory, prepare);
    ::waitpid(pid, nullptr, 0);
    run.milliseconds = now_ms() - begin_ms;
    auto log = sys::read_small_file((std::string(directory) + "/log").c_str(), 1u << 20);
    if (log.ok()) {
        for (std::string_view line : core::split_lines(*log)) run.log.emplace_back(line);
    }
    if (::getenv("BERTH_TEST_OUTPUT") != nullptr) {
        auto output = sys::read_small_file((std::string(directory) + "/output").c_str(), 1u << 20);
        if (output.ok()) std::fputs(output->c_str(), stderr);
    }
    std::string remove = "rm -rf " + std::string(directory);
    if (::system(remove.c_str()) != 0) std::fputs("cannot remove the test's directory\n", stderr);
    return run;
}

}  // namespace berth::testing
