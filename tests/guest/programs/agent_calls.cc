// Cases that need more of the agent than berthctl offers at once: calls in parallel, subscriptions that break
// off, exact counts. Each word is one case; the exit status is 0 when it holds, and the reason is on standard
// error.
#include <csignal>
#include <ctime>
#include <map>
#include <set>

#include "agent/client/events.h"
#include "agent_driver.h"
#include "proto/containerd/events.pb.h"
#include "proto/containerd/metrics.pb.h"

namespace {

using namespace driver;
namespace metrics = berth::pb::metrics;

double seconds_now() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

std::string cgroup_of(const std::string& id) {
    return std::string(kTree) + "/" + id;
}

void expect(bool holds, const std::string& otherwise) {
    if (!holds) give_up(otherwise);
}

void expect_eq(const std::string& what, uint64_t seen, uint64_t wanted) {
    if (seen != wanted) give_up(what + ": " + std::to_string(seen) + " instead of " + std::to_string(wanted));
}

template <typename Condition>
void wait_until(const std::string& what, Condition&& holds) {
    for (double end = seconds_now() + 120; !holds(); usleep(20'000)) expect(seconds_now() < end, what);
}

// ---- updates ----

// A container that holds `bytes` of memory under a limit of three times as much, and swap without end.
void start_holder(Session& session, const std::string& id, uint64_t bytes) {
    Spec spec;
    spec.args = R"(["/bin/hold_memory",")" + std::to_string(bytes) + R"("])";
    spec.resources = R"({"memory":{"limit":)" + std::to_string(3 * bytes) + R"(,"swap":-1}})";
    must(create(session, id, spec));
    start(session, id);
    wait_until(id + " does not take its memory",
               [&] { return number_in(cgroup_of(id) + "/memory.current") >= bytes; });
}

// Begins an update whose write(2) has to reclaim, and counts the calls that are answered meanwhile.
void busy() {
    constexpr uint64_t kHeld = 40u << 20;
    Session session = connect();
    start_holder(session, "busy", kHeld);
    must(session.connect());
    std::string limit = std::to_string(4u << 20);
    auto request = update_request("busy", R"({"memory":{"limit":)" + limit + R"(,"swap":-1}})");
    double begun = seconds_now();
    auto update_id =
        session.rpc()->begin_unary(client::kTaskService, "Update", request.SerializeAsString(), {});
    expect(update_id.ok(), "Update cannot be sent");
    int answered = 0;
    double slowest = 0;
    Session other = connect();
    bool refused = false;
    while (!session.rpc()->has_answer(*update_id)) {
        double asked = seconds_now();
        auto info = session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest());
        expect(info.ok(), "Info: " + (info.ok() ? "" : info.error().message));
        slowest = std::max(slowest, seconds_now() - asked);
        if (session.rpc()->has_answer(*update_id)) break;
        ++answered;
        if (answered != 2) continue;
        // One at a time for each container.
        core::Status second = update(other, "busy", R"({"pids":{"limit":5}})");
        if (session.rpc()->has_answer(*update_id)) break;
        expect(!second.ok() && second.error().message == "update \"busy\": another update is under way",
               "a second update: " + (second.ok() ? "was taken" : second.error().message));
        refused = true;
    }
    double took = seconds_now() - begun;
    auto answer = session.rpc()->take_answer(*update_id);
    expect(answer.ok(), "Update: " + (answer.ok() ? "" : answer.error().message));
    expect_eq("memory.max", number_in(cgroup_of("busy") + "/memory.max"), 4u << 20);
    printf("the update took %.3f s; %d calls were answered meanwhile, the slowest in %.4f s\n", took,
           answered, slowest);
    expect(answered >= 5 && refused,
           "only " + std::to_string(answered) + " calls were answered during the update");
    remove(session, "busy");
}

// The deadline passes while the kernel reclaims: everything is as before.
void deadline() {
    constexpr uint64_t kHeld = 40u << 20;
    Session session = connect();
    start_holder(session, "late", kHeld);
    uint64_t before = number_in(cgroup_of("late") + "/memory.max");
    auto request =
        update_request("late", R"({"cpu":{"shares":512},"memory":{"limit":4194304},"pids":{"limit":7}})");
    client::CallOptions options;
    options.timeout_ms = 60;
    auto late = client::call<pb::Empty>(*session.rpc(), client::kTaskService, "Update", request, options);
    expect(!late.ok(), "the update was over before its deadline: nothing was tested");
    expect(late.error().code == core::Code::kDeadlineExceeded, "Update: " + late.error().message);
    wait_until("memory.max was not restored",
               [&] { return number_in(cgroup_of("late") + "/memory.max") == before; });
    wait_until("cpu.weight was not restored",
               [&] { return number_in(cgroup_of("late") + "/cpu.weight") == 100; });
    expect(trimmed_file(cgroup_of("late") + "/pids.max") == "max", "pids.max was written");
    // Nothing of it is remembered: the next one computes from what was asked before.
    core::Status next = core::ok();
    wait_until("no update after one that was taken back", [&] {
        next = update(session, "late", R"({"memory":{"swap":200000000}})");
        return next.ok() || next.error().code != core::Code::kFailedPrecondition;
    });
    must(next);
    expect_eq("memory.swap.max", number_in(cgroup_of("late") + "/memory.swap.max"),
              (200000000 - before) / 4096 * 4096);
    remove(session, "late");
}

// A container that is killed and deleted while its update reclaims.
void delete_meanwhile() {
    Session session = connect();
    start_holder(session, "gone", 40u << 20);
    must(session.connect());
    auto request = update_request("gone", R"({"memory":{"limit":4194304}})");
    auto id = session.rpc()->begin_unary(client::kTaskService, "Update", request.SerializeAsString(), {});
    expect(id.ok(), "Update cannot be sent");
    remove(session, "gone");
    while (!session.rpc()->has_answer(*id)) must(session.rpc()->pump(client::deadline_after_ms(60'000)));
    auto answer = session.rpc()->take_answer(*id);
    printf("the update: %s\n", answer.ok() ? "had been done" : answer.error().message.c_str());
    expect(access(cgroup_of("gone").c_str(), F_OK) != 0, "the cgroup is still there");
}

// ---- statistics ----

struct FileField {
    const char* file;
    const char* key;  // of a "key number" line; empty: the whole file
    const char* second;
    uint64_t seen;
};

uint64_t field_of(const std::string& cgroup, const FileField& field) {
    std::string path = cgroup + "/" + field.file;
    std::string text = trimmed_file(path);
    if (text == "(unreadable)") return 0;
    if (field.key[0] == '\0' && text == "max") return UINT64_MAX;
    uint64_t value = number_in(path, field.key);
    if (field.second[0] != '\0') value += number_in(path, field.second);
    return value;
}

std::vector<FileField> fields_of(const metrics::Metrics& m) {
    const auto& c = m.cpu();
    const auto& y = m.memory();
    const auto& e = m.memory_events();
    return {
        {"pids.current", "", "", m.pids().current()},
        {"pids.max", "", "", m.pids().limit()},
        {"cpu.stat", "usage_usec", "", c.usage_usec()},
        {"cpu.stat", "user_usec", "", c.user_usec()},
        {"cpu.stat", "system_usec", "", c.system_usec()},
        {"cpu.stat", "nr_periods", "", c.nr_periods()},
        {"cpu.stat", "nr_throttled", "", c.nr_throttled()},
        {"cpu.stat", "throttled_usec", "", c.throttled_usec()},
        {"cpu.stat", "nr_bursts", "", c.nr_bursts()},
        {"cpu.stat", "burst_usec", "", c.burst_usec()},
        {"memory.current", "", "", y.usage()},
        {"memory.max", "", "", y.usage_limit()},
        {"memory.peak", "", "", y.max_usage()},
        {"memory.swap.current", "", "", y.swap_usage()},
        {"memory.swap.max", "", "", y.swap_limit()},
        {"memory.swap.peak", "", "", y.swap_max_usage()},
        {"memory.stat", "anon", "", y.anon()},
        {"memory.stat", "file", "", y.file()},
        {"memory.stat", "kernel_stack", "", y.kernel_stack()},
        {"memory.stat", "slab", "", y.slab()},
        {"memory.stat", "sock", "", y.sock()},
        {"memory.stat", "shmem", "", y.shmem()},
        {"memory.stat", "file_mapped", "", y.file_mapped()},
        {"memory.stat", "file_dirty", "", y.file_dirty()},
        {"memory.stat", "file_writeback", "", y.file_writeback()},
        {"memory.stat", "anon_thp", "", y.anon_thp()},
        {"memory.stat", "inactive_anon", "", y.inactive_anon()},
        {"memory.stat", "active_anon", "", y.active_anon()},
        {"memory.stat", "inactive_file", "", y.inactive_file()},
        {"memory.stat", "active_file", "", y.active_file()},
        {"memory.stat", "unevictable", "", y.unevictable()},
        {"memory.stat", "slab_reclaimable", "", y.slab_reclaimable()},
        {"memory.stat", "slab_unreclaimable", "", y.slab_unreclaimable()},
        {"memory.stat", "pgfault", "", y.pgfault()},
        {"memory.stat", "pgmajfault", "", y.pgmajfault()},
        {"memory.stat", "workingset_refault_anon", "workingset_refault_file", y.workingset_refault()},
        {"memory.stat", "workingset_activate_anon", "workingset_activate_file", y.workingset_activate()},
        {"memory.stat", "workingset_nodereclaim", "", y.workingset_nodereclaim()},
        {"memory.stat", "pgrefill", "", y.pgrefill()},
        {"memory.stat", "pgscan", "", y.pgscan()},
        {"memory.stat", "pgsteal", "", y.pgsteal()},
        {"memory.stat", "pgactivate", "", y.pgactivate()},
        {"memory.stat", "pgdeactivate", "", y.pgdeactivate()},
        {"memory.stat", "pglazyfree", "", y.pglazyfree()},
        {"memory.stat", "pglazyfreed", "", y.pglazyfreed()},
        {"memory.stat", "thp_fault_alloc", "", y.thp_fault_alloc()},
        {"memory.stat", "thp_collapse_alloc", "", y.thp_collapse_alloc()},
        {"memory.events", "low", "", e.low()},
        {"memory.events", "high", "", e.high()},
        {"memory.events", "max", "", e.max()},
        {"memory.events", "oom", "", e.oom()},
        {"memory.events", "oom_kill", "", e.oom_kill()},
        {"memory.events", "oom_group_kill", "", e.oom_group_kill()},
    };
}

metrics::Metrics metrics_of(const pb::Any& any) {
    metrics::Metrics parsed;
    expect(any.type_url() == "io.containerd.cgroups.v2.Metrics", "type URL " + any.type_url());
    expect(parsed.ParseFromString(any.value()), "undecodable Metrics");
    return parsed;
}

// Each value of the answer lies between what the file said before and after it; counters that stand still are
// exact.
template <typename Ask>
void compare_with_files(const std::string& cgroup, Ask&& ask, bool all_must_be_seen) {
    std::vector<uint64_t> before;
    for (const FileField& field : fields_of(metrics::Metrics())) before.push_back(field_of(cgroup, field));
    metrics::Metrics m = ask();
    std::vector<FileField> fields = fields_of(m);
    size_t above_zero = 0;
    for (size_t i = 0; i < fields.size(); ++i) {
        uint64_t after = field_of(cgroup, fields[i]);
        uint64_t low = std::min(before[i], after);
        uint64_t high = std::max(before[i], after);
        above_zero += fields[i].seen != 0;
        if (fields[i].seen >= low && fields[i].seen <= high) continue;
        give_up(std::string(fields[i].file) + " " + fields[i].key + ": " + std::to_string(fields[i].seen) +
                " instead of " + std::to_string(low) + " to " + std::to_string(high));
    }
    expect(!all_must_be_seen || above_zero >= 20,
           "only " + std::to_string(above_zero) + " values are above zero");
    for (const char* file : {"cpu.pressure", "memory.pressure", "io.pressure"}) {
        if (access((cgroup + "/" + file).c_str(), F_OK) != 0) continue;
        std::string_view name = file;
        const metrics::PSIStats& psi = name == "cpu.pressure"      ? m.cpu().psi()
                                       : name == "memory.pressure" ? m.memory().psi()
                                                                   : m.io().psi();
        std::string text = read_file(cgroup + "/" + file);
        size_t total = text.find("total=");
        expect(psi.some().total() <= strtoull(text.c_str() + total + 6, nullptr, 10),
               std::string(file) + ": total");
        expect(name != "memory.pressure" || !all_must_be_seen || psi.some().total() > 0,
               "no memory pressure");
    }
    for (const metrics::HugeTlbStat& huge : m.hugetlb()) {
        std::string prefix = cgroup + "/hugetlb." + huge.pagesize();
        expect(access((prefix + ".max").c_str(), F_OK) == 0, prefix + ".max is not there");
        std::string max = trimmed_file(prefix + ".max");
        uint64_t limit = huge.max();
        expect(limit == strtoull(max.c_str(), nullptr, 10) || (max == "max" && limit == UINT64_MAX) ||
                   limit > (uint64_t{1} << 62),
               prefix + ".max");
    }
}

void stats() {
    Session session = connect();
    // Everything that can be above zero, is: it ran, was throttled, hit its limits and swapped.
    Spec spec;
    spec.args =
        R"(["/bin/sh","-c","cat /bin/busybox >/dev/null; mkdir /dev/shm 2>/dev/null; i=0; while [ $i -lt 3 ]; do dd if=/dev/zero of=/dev/null bs=40M count=1; i=$((i+1)); done 2>/dev/null; exec hold_memory 20000000"])";
    spec.resources =
        R"({"memory":{"limit":33554432,"swap":134217728},"cpu":{"quota":20000,"period":100000},"pids":{"limit":20},"hugepageLimits":[{"pageSize":"2MB","limit":4194304}]})";
    spec.namespaces = R"(,{"type":"network"})";
    must(create(session, "measured", spec));
    start(session, "measured");
    wait_until("it does not take its memory", [] {
        return number_in(cgroup_of("measured") + "/memory.stat", "anon") > 15'000'000 &&
               number_in(cgroup_of("measured") + "/cpu.stat", "nr_throttled") > 3 &&
               number_in(cgroup_of("measured") + "/memory.events", "max") > 0;
    });
    task::ContainerRequest container;
    container.set_id("measured");
    must_call<pb::Empty>(session, "Pause", container);
    compare_with_files(
        cgroup_of("measured"),
        [&] { return metrics_of(must_call<task::StatsResponse>(session, "Stats", container).stats()); },
        true);
    v1::StatsAllRequest all;
    all.set_sandbox(true);
    auto ask_all = [&] {
        auto answer = session.call<v1::StatsAllResponse>(client::kGuestService, "StatsAll", all);
        if (!answer.ok()) give_up("StatsAll: " + answer.error().message);
        return std::move(*answer);
    };
    compare_with_files(
        cgroup_of("measured"),
        [&] {
            v1::StatsAllResponse answer = ask_all();
            for (const v1::ContainerStats& one : answer.containers()) {
                if (one.id() == "measured") return metrics_of(one.stats());
            }
            give_up("StatsAll: the container is not in it");
        },
        true);
    compare_with_files(
        kTree, [&] { return metrics_of(ask_all().sandbox()); }, false);
    must_call<pb::Empty>(session, "Resume", container);
    remove(session, "measured");
    auto unknown = session.call<task::StatsResponse>(client::kTaskService, "Stats", container);
    expect(!unknown.ok() && unknown.error().code == core::Code::kNotFound,
           "Stats of a container that is gone");
}

// What one answer costs the agent: user and system time of its process, by CONTAINERS.
void stats_cost(int count) {
    Session session = connect();
    for (int i = 0; i < count; ++i) must(create(session, "cost" + std::to_string(i), Spec()));
    std::string agent;
    for (const std::string& pid : list("/proc")) {
        if (read_file("/proc/" + pid + "/cmdline").rfind("berth-agent", 0) == 0) agent = pid;
    }
    auto cpu_ns = [&] { return strtoull(read_file("/proc/" + agent + "/schedstat").c_str(), nullptr, 10); };
    constexpr int kRounds = 10;
    auto measure = [&](const char* what, auto&& ask) {
        ask();
        uint64_t before = cpu_ns();
        double begun = seconds_now();
        for (int i = 0; i < kRounds; ++i) ask();
        printf("%s: %.1f us of the agent's CPU a container, %.1f us wall\n", what,
               static_cast<double>(cpu_ns() - before) / 1000 / kRounds / count,
               (seconds_now() - begun) * 1e6 / kRounds / count);
    };
    measure("StatsAll", [&] {
        auto answer =
            session.call<v1::StatsAllResponse>(client::kGuestService, "StatsAll", v1::StatsAllRequest());
        expect(answer.ok() && answer->containers_size() == count, "StatsAll");
    });
    measure("Stats, one by one", [&] {
        for (int i = 0; i < count; ++i) {
            task::ContainerRequest request;
            request.set_id("cost" + std::to_string(i));
            must_call<task::StatsResponse>(session, "Stats", request);
        }
    });
    // The kernel's own part: the same files, opened, read and closed by a bare loop.
    timespec from{}, to{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    char buffer[32768];
    static constexpr const char* kFiles[] = {"pids.current",    "pids.max",          "cpu.stat",
                                             "cpu.pressure",    "memory.stat",       "memory.current",
                                             "memory.max",      "memory.peak",       "memory.swap.current",
                                             "memory.swap.max", "memory.swap.peak",  "memory.events",
                                             "memory.pressure", "io.stat",           "io.pressure",
                                             "rdma.current",    "rdma.max",          "hugetlb.2MB.current",
                                             "hugetlb.2MB.max", "hugetlb.2MB.events"};
    for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < count; ++i) {
            int directory =
                open(cgroup_of("cost" + std::to_string(i)).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            for (const char* file : kFiles) {
                int fd = openat(directory, file, O_RDONLY | O_CLOEXEC);
                if (fd < 0) continue;
                while (read(fd, buffer, sizeof buffer) > 0) {
                }
                close(fd);
            }
            close(directory);
        }
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double cpu_us = static_cast<double>(to.tv_sec - from.tv_sec) * 1e6 +
                    static_cast<double>(to.tv_nsec - from.tv_nsec) / 1e3;
    printf("a bare loop over the same files: %.1f us CPU a container\n", cpu_us / kRounds / count);
    for (int i = 0; i < count; ++i) remove(session, "cost" + std::to_string(i));
}

// ---- a file system that does not answer ----

// Creates whose config.json or bind source lies on `directory`, which `server` serves without ever answering.
void hung(const std::string& directory, pid_t server) {
    Session waiting = connect();
    Session other = connect();
    must(waiting.connect());
    task::CreateTaskRequest of_bundle;
    of_bundle.set_bundle(directory + "/bundle");
    task::CreateTaskRequest of_bind;
    of_bind.set_id("of-bind");
    Spec spec;
    spec.mounts =
        R"(,{"destination":"/data","type":"bind","source":")" + directory + R"(/data","options":["bind"]})";
    of_bind.mutable_options()->set_type_url(std::string(client::kSpecType));
    of_bind.mutable_options()->set_value(spec.json());
    std::vector<uint32_t> calls;
    auto begin = [&](const task::CreateTaskRequest& request) {
        auto call =
            waiting.rpc()->begin_unary(client::kTaskService, "Create", request.SerializeAsString(), {});
        expect(call.ok(), "Create cannot be sent");
        calls.push_back(*call);
    };
    // More than the kernel has threads for by default: four a CPU.
    std::vector<std::string> ids;
    for (int i = 0; i < 20; ++i) {
        ids.push_back("of-bundle" + std::to_string(i));
        of_bundle.set_id(ids.back());
        begin(of_bundle);
    }
    begin(of_bind);
    // The rest of the agent's work goes on.
    client::CallOptions soon;
    soon.timeout_ms = 60'000;
    must(other.connect());
    for (int i = 0; i < 20; ++i) {
        auto info = client::call<v1::InfoResponse>(*other.rpc(), client::kGuestService, "Info",
                                                   v1::InfoRequest(), soon);
        expect(info.ok(), "Info: " + (info.ok() ? "" : info.error().message));
    }
    must(create(other, "beside", Spec()));
    start(other, "beside");
    must(update(other, "beside",
                R"({"memory":{"limit":33554432}})"));  // its write waits in such a thread, too
    expect_eq("memory.max", number_in(cgroup_of("beside") + "/memory.max"), 33554432);
    remove(other, "beside");
    // So does the deadline of a third.
    of_bundle.set_id("with-deadline");
    soon.timeout_ms = 300;
    auto late =
        client::call<task::CreateTaskResponse>(*other.rpc(), client::kTaskService, "Create", of_bundle, soon);
    expect(!late.ok() && late.error().code == core::Code::kDeadlineExceeded,
           "a create with a deadline: " + (late.ok() ? "was done" : late.error().message));
    for (uint32_t call : calls)
        expect(!waiting.rpc()->has_answer(call), "answered before the file system was");
    expect(kill(server, SIGKILL) == 0, "the server was gone");
    for (uint32_t call : calls) {
        while (!waiting.rpc()->has_answer(call)) must(waiting.rpc()->pump(client::deadline_after_ms(60'000)));
        auto answer = waiting.rpc()->take_answer(call);
        expect(!answer.ok(), "a create from a file system that is gone was done");
        printf("%s\n", answer.error().message.c_str());
        expect(answer.error().message.find("open ") != std::string::npos &&
                   answer.error().message.find(directory) != std::string::npos,
               "it does not say what, and where");
    }
    ids.insert(ids.end(), {"of-bind", "with-deadline"});
    for (const std::string& id : ids) {
        wait_until(id + " is left behind", [&] {
            auto state = other.call<task::StateResponse>(client::kTaskService, "State", process(id));
            return !state.ok() && state.error().code == core::Code::kNotFound;
        });
        expect(access(cgroup_of(id).c_str(), F_OK) != 0, cgroup_of(id) + " is left behind");
    }
}

}  // namespace

#include "tests/guest/programs/agent_calls_events.h"

int main(int argc, char** argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    std::string word = argc > 1 ? argv[1] : "";
    if (word == "busy") {
        busy();
    } else if (word == "deadline") {
        deadline();
    } else if (word == "delete") {
        delete_meanwhile();
    } else if (word == "stats") {
        stats();
    } else if (word == "stats-cost" && argc > 2) {
        stats_cost(atoi(argv[2]));
    } else if (word == "oom") {
        oom();
    } else if (word == "kills" && argc > 3) {
        kills(atoi(argv[2]), strtoull(argv[3], nullptr, 10));
    } else if (word == "lost") {
        lost();
    } else if (word == "pressure") {
        pressure();
    } else if (word == "hung" && argc > 3) {
        hung(argv[2], atoi(argv[3]));
    } else {
        give_up(
            "busy, deadline, delete, stats, stats-cost N, oom, kills CONTAINERS EACH, lost, pressure, hung "
            "DIRECTORY "
            "PID");
    }
    return 0;
}
