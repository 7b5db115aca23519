// What a shim does, over one connection that stays, with a clock around it. Prints one figure a line, in
// nanoseconds of CLOCK_MONOTONIC; under QEMU's -icount these are guest instructions.
//
//   bench ADDRESS SECRET-FILE|- TEMPLATE COMMAND
//     lifecycle N           create, start, wait, delete
//     exec N                exec, start, wait, delete in one container
//     info N                Guest.Info; `info N CALLS`: while CALLS calls wait and a stream floods
//     oom KILLS FILE        from a touch of memory that was one too many to the event
//     stream BYTES          stdout of a process, from the first byte to the end
//     many N                N containers that stay, many0 and on: each one's create and start
//     more FROM N           those from FROM on, up to N of them in all
//     drop PREFIX N         takes those away
//     helper BERTH DIR      `berth --helper --run-dir DIR` until its first answer
//     spawn FLOOR PATH      the same for `floor answer PATH`
//     time COMMAND...       a program, from fork to its end
// TEMPLATE is a config.json with @ARGS@ for process.args.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "agent/client/stream_client.h"
#include "tests/bench/bench_client.h"

using namespace bench;

namespace {

void lifecycle(Bench& bench, long runs) {
    for (long i = 0; i < runs; ++i) {
        int64_t begun = client::now_ns();
        bench.create("bench", kTrue, false);
        bench.start("bench");
        uint32_t status = bench.wait("bench");
        bench.remove("bench");
        print(client::now_ns() - begun);
        expect_ok(status);
    }
}

void exec(Bench& bench, long runs) {
    bench.create("bench", kSleep, false);
    bench.start("bench");
    pb::task::ExecProcessRequest request;
    request.set_id("bench");
    request.set_exec_id("x");
    request.mutable_spec()->set_type_url(std::string(client::kProcessType));
    request.mutable_spec()->set_value(
        R"({"cwd":"/","user":{"uid":0,"gid":0},"noNewPrivileges":true,"args":["/bin/floor","true"],)"
        R"("env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","TERM=xterm"],)"
        R"("capabilities":{"bounding":["CAP_AUDIT_WRITE","CAP_KILL","CAP_NET_BIND_SERVICE"],)"
        R"("effective":["CAP_AUDIT_WRITE","CAP_KILL","CAP_NET_BIND_SERVICE"],)"
        R"("permitted":["CAP_AUDIT_WRITE","CAP_KILL","CAP_NET_BIND_SERVICE"]}})");
    for (long i = 0; i < runs; ++i) {
        int64_t begun = client::now_ns();
        get(bench.session().call<pb::Empty>(client::kTaskService, "Exec", request));
        bench.start("bench", "x");
        uint32_t status = bench.wait("bench", "x");
        bench.remove("bench", "x");
        print(client::now_ns() - begun);
        expect_ok(status);
    }
    bench.end("bench");
}

// A process that writes for ever into a stream that a child of ours reads: returns the child.
pid_t flood(Bench& bench) {
    bench.create("flood", R"(["/bin/floor","write","1000000000000"])", true);
    bench.start("flood");
    pid_t reader = fork();
    if (reader != 0) return reader;
    client::OutputStream stream;
    client::Session own = bench.session().clone();
    stream.attach(get(own.open_stream("flood", "", v1::STREAM_STDOUT, std::nullopt)));
    while (true) {
        client::OutputEvent event = get(stream.next());
        stream.acknowledge();
        if (event.kind == client::OutputEvent::Kind::kNone) {
            (void)client::wait_ready(sys::FdRef(stream.fd()), POLLIN, client::kNoDeadline);
        }
    }
}

void info(Bench& bench, long runs, long parked) {
    pid_t reader = 0;
    client::Session other = bench.session().clone();
    if (parked > 0) {
        bench.create("bench", kSleep, false);
        bench.start("bench");
        reader = flood(bench);
        if (auto connected = other.connect(); !connected.ok()) die(connected.error());
        std::string request = Bench::process("bench", "").SerializeAsString();
        for (long i = 0; i < parked; ++i)
            get(other.rpc()->begin_unary(client::kTaskService, "Wait", request, other.call_options()));
    }
    for (long i = 0; i < runs; ++i) {
        int64_t begun = client::now_ns();
        bench.info();
        print(client::now_ns() - begun);
    }
    if (parked == 0) return;
    kill(reader, SIGKILL);
    waitpid(reader, nullptr, 0);
    other.disconnect();
    bench.end("flood");
    bench.end("bench");
}

void oom(Bench& bench, long kills, const char* path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    auto size = static_cast<size_t>(kills) * sizeof(int64_t);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) die(core::errno_error(errno, path));
    auto* slots = static_cast<volatile int64_t*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0));
    client::EventSubscription subscription(bench.session(),
                                           {.memory_only = true, .containers = {}, .position = {}});
    if (auto started = subscription.start(); !started.ok()) die(started.error());
    bench.create("bench", core::format(R"(["/bin/floor","oom","/shared/oom","%ld"])", kills).c_str(), false);
    bench.start("bench");
    std::vector<int64_t> figures;
    uint64_t seen = 0;
    uint64_t merged = 0;
    while (seen < static_cast<uint64_t>(kills)) {
        v1::EventMessage message = get(subscription.next(client::deadline_after_ms(120'000)));
        int64_t arrived = client::now_ns();
        if (message.has_lost()) die(core::make_error(core::Code::kInternal, "events were lost"));
        uint64_t total = message.event().memory().total().oom_kill();
        if (total < seen) die(core::make_error(core::Code::kInternal, "events are out of order"));
        if (total > seen + 1) merged += total - seen - 1;
        for (; seen < total; ++seen) figures.push_back(arrived - slots[seen]);
    }
    for (int64_t figure : figures) print(figure);
    std::fprintf(stderr, "%llu kills shared an event\n", static_cast<unsigned long long>(merged));
    bench.wait("bench");
    bench.remove("bench");
}

void stream(Bench& bench, long long bytes) {
    bench.create("bench", core::format(R"(["/bin/floor","write","%lld"])", bytes).c_str(), true);
    client::OutputStream output;
    output.attach(get(bench.session().open_stream("bench", "", v1::STREAM_STDOUT, std::nullopt)));
    bench.start("bench");
    int64_t begun = 0;
    while (!output.closed()) {
        client::OutputEvent event = get(output.next());
        if (event.kind == client::OutputEvent::Kind::kNone) {
            (void)client::wait_ready(sys::FdRef(output.fd()), POLLIN, client::kNoDeadline);
            continue;
        }
        if (begun == 0 && event.kind == client::OutputEvent::Kind::kData) begun = client::now_ns();
        if (event.kind == client::OutputEvent::Kind::kEof) print(client::now_ns() - begun);
        output.acknowledge();
    }
    if (output.received() != static_cast<uint64_t>(bytes))
        die(core::make_error(core::Code::kInternal, "bytes are missing"));
    expect_ok(bench.wait("bench"));
    bench.remove("bench");
}

void many(Bench& bench, long from, long count) {
    for (long i = from; i < count; ++i) {
        std::string id = core::format("many%ld", i);
        int64_t begun = client::now_ns();
        bench.create(id, kSleep, false);
        bench.start(id);
        print(client::now_ns() - begun);
    }
}

pid_t spawn(std::vector<const char*> arguments) {
    arguments.push_back(nullptr);
    pid_t pid = fork();
    if (pid != 0) return pid;
    execvp(arguments[0], const_cast<char**>(arguments.data()));
    _exit(127);
}

void spawn_helper(const char* program, const char* directory) {
    std::string path = std::string(directory) + "/berth.sock";
    int64_t begun = client::now_ns();
    pid_t pid =
        spawn({program, "--helper", "--run-dir", directory, "--cgroup-parent", "/bench", "--log", "error"});
    // The dial's own pauses are of milliseconds: none of it before the socket is there.
    while (access(path.c_str(), F_OK) != 0) usleep(100);
    client::Session session(get(client::parse_address("local://" + path)), {}, -1);
    get(session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest()));
    print(client::now_ns() - begun);
    kill(pid, SIGTERM);
    waitpid(pid, nullptr, 0);
}

void spawn_floor(const char* program, const char* path) {
    int64_t begun = client::now_ns();
    pid_t pid = spawn({program, "answer", path});
    while (access(path, F_OK) != 0) usleep(100);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char byte = 'x';
    while (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) usleep(100);
    if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1) die(core::errno_error(errno, "answer"));
    print(client::now_ns() - begun);
    waitpid(pid, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) return 2;
    client::Credentials credentials;
    if (std::strcmp(argv[2], "-") != 0) credentials = get(client::read_credentials(argv[2]));
    const std::string_view command = argv[4];
    const long count = std::atol(argv[5]);
    const char* last = argc > 6 ? argv[6] : "";
    if (command == "time") {
        int64_t begun = client::now_ns();
        std::vector<const char*> words(argv + 5, argv + argc);
        pid_t pid = spawn(std::move(words));
        int status = 0;
        waitpid(pid, &status, 0);
        print(client::now_ns() - begun);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    if (command == "helper") spawn_helper(argv[5], last);
    if (command == "spawn") spawn_floor(argv[5], last);
    if (command == "helper" || command == "spawn") return 0;
    Bench bench(client::Session(get(client::parse_address(argv[1])), credentials, -1), read_text(argv[3]));
    if (command == "lifecycle") lifecycle(bench, count);
    if (command == "exec") exec(bench, count);
    if (command == "info") info(bench, count, std::atol(last));
    if (command == "oom") oom(bench, count, last);
    if (command == "stream") stream(bench, std::atoll(argv[5]));
    if (command == "many") many(bench, 0, count);
    if (command == "more") many(bench, count, std::atol(last));
    if (command == "drop") {
        for (long i = 0; i < std::atol(last); ++i) bench.end(argv[5] + std::to_string(i));
    }
    return 0;
}
