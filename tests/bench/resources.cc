// What a shim asks of the resources of running containers, with a clock around it. Prints one figure a line,
// in nanoseconds of CLOCK_MONOTONIC; under QEMU's -icount these are guest instructions.
//
//   resources ADDRESS SECRET-FILE TEMPLATE COMMAND
//     update N           Task.Update of memory.max, up and down in turn, in one container
//     stats N            Task.Stats of `many0`
//     all N COUNT        Guest.StatsAll, which must tell of COUNT containers
//     press COUNT BYTES  COUNT containers that walk through BYTES for ever
//     bare update|all N COUNT
//                        the same by a bare loop over the files: the floor (no agent; ADDRESS and the rest
//                        unused)
// TEMPLATE is a config.json with @ARGS@ for process.args.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "proto/berth/guest.pb.h"
#include "tests/bench/bench_client.h"

using namespace bench;

namespace {

constexpr long kSmall = 64L << 20, kLarge = 128L << 20;

void update(Bench& bench, long runs) {
    bench.create("bench", kSleep, false);
    bench.start("bench");
    for (long i = 0; i < runs; ++i) {
        pb::task::UpdateTaskRequest request;
        request.set_id("bench");
        request.mutable_resources()->set_type_url(std::string(client::kResourcesType));
        request.mutable_resources()->set_value(
            core::format(R"({"memory":{"limit":%ld}})", i % 2 == 0 ? kSmall : kLarge));
        int64_t begun = client::now_ns();
        get(bench.session().call<pb::Empty>(client::kTaskService, "Update", request));
        print(client::now_ns() - begun);
    }
    bench.end("bench");
}

void stats(Bench& bench, long runs) {
    pb::task::ContainerRequest request;
    request.set_id("many0");
    for (long i = 0; i < runs; ++i) {
        int64_t begun = client::now_ns();
        get(bench.session().call<pb::task::StatsResponse>(client::kTaskService, "Stats", request));
        print(client::now_ns() - begun);
    }
}

void stats_all(Bench& bench, long runs, long count) {
    for (long i = 0; i < runs; ++i) {
        int64_t begun = client::now_ns();
        auto answer = get(bench.session().call<v1::StatsAllResponse>(client::kGuestService, "StatsAll",
                                                                     v1::StatsAllRequest()));
        print(client::now_ns() - begun);
        if (answer.containers_size() != count)
            die(core::make_error(core::Code::kInternal,
                                 core::format("%d containers", answer.containers_size())));
    }
}

void press(Bench& bench, long count, const char* bytes) {
    for (long i = 0; i < count; ++i) {
        std::string id = "press" + std::to_string(i);
        bench.create(id, core::format(R"(["/bin/floor","walk","%s"])", bytes).c_str(), false);
        bench.start(id);
    }
}

int open_or_die(int directory, const char* name, int flags) {
    int fd = openat(directory, name, flags | O_CLOEXEC);
    if (fd < 0) die(core::errno_error(errno, name));
    return fd;
}

// Everything that Stats has fields for, read as the agent does: opened, read to its end, closed.
void read_files(const char* container, const char* net_dev) {
    static constexpr const char* kFiles[] = {
        "pids.current",        "pids.max",          "cpu.stat",
        "cpu.pressure",        "memory.stat",       "memory.current",
        "memory.max",          "memory.peak",       "memory.swap.peak",
        "memory.swap.current", "memory.swap.max",   "memory.events",
        "memory.pressure",     "io.stat",           "io.pressure",
        "rdma.current",        "rdma.max",          "hugetlb.2MB.current",
        "hugetlb.2MB.max",     "hugetlb.2MB.events"};
    static char buffer[32768];
    auto read_one = [](int directory, const char* file) {
        int fd = openat(directory, file, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return;
        while (read(fd, buffer, sizeof buffer) > 0) {
        }
        close(fd);
    };
    int directory = open_or_die(AT_FDCWD, container, O_RDONLY | O_DIRECTORY);
    for (const char* file : kFiles) read_one(directory, file);
    read_one(AT_FDCWD, net_dev);
    close(directory);
}

// Of the init's own network, as its Stats tell it.
std::string net_dev_of(const std::string& container) {
    std::string pids = read_text((container + "/cgroup.procs").c_str());
    return "/proc/" + pids.substr(0, pids.find('\n')) + "/net/dev";
}

void bare(const char* what, long runs, long count) {
    const std::string root = "/sys/fs/cgroup/berth/many";
    std::vector<std::string> net_devs;
    for (long at = 0; at < count; ++at) net_devs.push_back(net_dev_of(root + std::to_string(at)));
    for (long i = 0; i < runs; ++i) {
        int64_t begun = client::now_ns();
        if (std::strcmp(what, "update") == 0) {
            int fd = open_or_die(AT_FDCWD, (root + "0/memory.max").c_str(), O_WRONLY);
            std::string value = std::to_string(i % 2 == 0 ? kSmall : kLarge);
            if (write(fd, value.data(), value.size()) < 0) die(core::errno_error(errno, "memory.max"));
            close(fd);
        } else {
            for (long at = 0; at < count; ++at)
                read_files((root + std::to_string(at)).c_str(), net_devs[static_cast<size_t>(at)].c_str());
        }
        print(client::now_ns() - begun);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) return 2;
    const std::string_view command = argv[4];
    const long count = std::atol(argv[5]);
    const char* last = argc > 6 ? argv[6] : "";
    if (command == "bare") {
        bare(argv[5], std::atol(last), argc > 7 ? std::atol(argv[7]) : 1);
        return 0;
    }
    client::Credentials credentials = get(client::read_credentials(argv[2]));
    Bench bench(client::Session(get(client::parse_address(argv[1])), credentials, -1), read_text(argv[3]));
    if (command == "update") update(bench, count);
    if (command == "stats") stats(bench, count);
    if (command == "all") stats_all(bench, count, std::atol(last));
    if (command == "press") press(bench, count, last);
    return 0;
}
