// Cases that need more of the agent than berthctl offers at once: calls in parallel, subscriptions that break
// off, exact counts. Each word is one case; the exit status is 0 when it holds, and the reason is on standard
// error.
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

// ---- memory.events ----

constexpr const char* kEat = "dd if=/dev/zero of=/dev/null bs=16M count=1 2>/dev/null";

std::string shell(const std::string& script) {
    return R"(["/bin/sh","-c",")" + script + R"("])";
}

// Reads events until `enough` says so.
template <typename Enough>
void read_events(client::EventSubscription& events, Enough&& enough) {
    int64_t deadline = client::deadline_after_ms(120'000);
    for (;;) {
        auto message = events.next(deadline);
        if (!message.ok()) give_up("events: " + message.error().message);
        expect(message->has_event(), "events were lost");
        if (enough(message->event())) return;
    }
}

struct Seen {
    uint64_t oom_kill = 0;  // the sum of the increases
    uint64_t local_oom_kill = 0;
    uint64_t group_kill = 0;
    uint64_t kills_before_exit = 0;
    bool exit_oom_likely = false;
    uint32_t exit_status = 0;
};

// Runs a container (and, with `exec`, that in it) until `exec_id`'s exit, and what the events told.
Seen run_for_oom(Session& session, const std::string& id, const Spec& spec, const std::string& exec = "") {
    client::EventSubscription events(session, {});
    must(events.start());
    must(session.connect());
    auto topics = session.rpc()->begin_stream(client::kEventsService, "Subscribe",
                                              pb::events::SubscribeRequest().SerializeAsString(), {});
    expect(topics.ok(), "Events.Subscribe");
    must(create(session, id, spec));
    start(session, id);
    std::string exec_id = exec.empty() ? "" : "x";
    if (!exec.empty()) {
        task::ExecProcessRequest request;
        request.set_id(id);
        request.set_exec_id(exec_id);
        request.mutable_spec()->set_type_url(std::string(client::kProcessType));
        request.mutable_spec()->set_value(R"({"cwd":"/","args":)" + exec +
                                          R"(,"env":["PATH=/bin:/sbin"],"user":{"uid":0,"gid":0}})");
        must_call<pb::Empty>(session, "Exec", request);
        start(session, id, exec_id);
    }
    Seen seen;
    v1::MemoryCounters total;
    read_events(events, [&](const v1::Event& event) {
        if (event.container_id() != id) return false;
        if (event.has_memory()) {
            const v1::MemoryEvents& memory = event.memory();
            // Totals go on exactly where the last event left them.
            expect_eq("total oom_kill", memory.total().oom_kill(),
                      total.oom_kill() + memory.total_increase().oom_kill());
            expect_eq("total max", memory.total().max(), total.max() + memory.total_increase().max());
            total = memory.total();
            seen.oom_kill += memory.total_increase().oom_kill();
            seen.local_oom_kill += memory.local_increase().oom_kill();
            seen.group_kill += memory.total_increase().oom_group_kill();
        }
        if (!event.has_exited() || event.exec_id() != exec_id) return false;
        seen.kills_before_exit = seen.oom_kill;
        seen.exit_oom_likely = event.exited().oom_likely();
        seen.exit_status = event.exited().exit_status();
        return true;
    });
    // containerd's own stream: its oom, before its exit.
    bool oom = false;
    for (bool exited = false; !exited;) {
        auto message = session.rpc()->next_message(*topics, client::deadline_after_ms(60'000));
        if (!message.ok() || !message->has_value()) give_up("containerd's event stream ended");
        pb::events::Envelope envelope;
        expect(envelope.ParseFromString(**message), "undecodable Envelope");
        if (envelope.topic() == "/tasks/oom") oom = true;
        exited = envelope.topic() == "/tasks/exit";
    }
    expect(oom == (seen.kills_before_exit > 0),
           "/tasks/oom and the counters do not agree before /tasks/exit");
    session.rpc()->forget(*topics);
    expect_eq("memory.events oom_kill", number_in(cgroup_of(id) + "/memory.events", "oom_kill"),
              seen.oom_kill);
    return seen;
}

Spec limited(const std::string& script, const char* more = "") {
    Spec spec;
    spec.args = shell(script);
    spec.resources = std::string(R"({"memory":{"limit":6291456,"swap":6291456})") + more + "}";
    return spec;
}

// Who was killed: the init, a child of it, an exec, or the whole group.
void oom() {
    Session session = connect();
    Spec init = limited("");
    init.args = R"(["/bin/dd","if=/dev/zero","of=/dev/null","bs=16M","count=1"])";
    Seen seen = run_for_oom(session, "init", init);
    expect_eq("init: oom_kill before the exit", seen.kills_before_exit, 1);
    expect_eq("init: local", seen.local_oom_kill, 1);
    expect_eq("init: exit status", seen.exit_status, 137);
    expect(seen.exit_oom_likely, "init: oom_likely is not set");
    remove(session, "init");

    seen = run_for_oom(session, "child", limited(std::string(kEat) + "; exit 7"));
    expect_eq("child: oom_kill before the exit", seen.kills_before_exit, 1);
    expect_eq("child: the container goes on, and ends as it likes", seen.exit_status, 7);
    expect(!seen.exit_oom_likely, "child: oom_likely of a process that ended by itself");
    remove(session, "child");

    seen = run_for_oom(session, "exec", limited("sleep 1000"), shell(std::string("exec ") + kEat));
    expect_eq("exec: oom_kill before the exit", seen.kills_before_exit, 1);
    expect_eq("exec: exit status", seen.exit_status, 137);
    expect(seen.exit_oom_likely, "exec: oom_likely is not set");
    auto state = must_call<task::StateResponse>(session, "State", process("exec"));
    expect(state.status() == task::RUNNING, "exec: the container does not run any more");
    // SIGKILL by hand afterwards is no OOM kill: the counter has not moved since the last exit.
    client::EventSubscription events(session, {});
    must(events.start());
    kill_all(session, "exec");
    read_events(events, [&](const v1::Event& event) {
        if (!event.has_exited()) return false;
        expect(event.exec_id().empty() && !event.exited().oom_likely(), "exec: oom_likely of a kill by hand");
        return true;
    });
    remove(session, "exec");

    seen = run_for_oom(session, "group",
                       limited(std::string("sleep 1000 & sleep 1000 & ") + kEat + "; sleep 1000",
                               R"(,"unified":{"memory.oom.group":"1"})"));
    expect(seen.kills_before_exit >= 3,
           "group: " + std::to_string(seen.kills_before_exit) + " kills instead of all");
    expect_eq("group: oom_group_kill", seen.group_kill, 1);
    expect_eq("group: exit status", seen.exit_status, 137);
    expect(seen.exit_oom_likely, "group: oom_likely is not set");
    remove(session, "group");
}

struct Count {
    uint64_t kills = 0;
    uint64_t total = 0;
};

// Counts the kills of `containers` containers with `kills` each at a client that breaks off and comes back at
// random.
void kills(int containers, uint64_t each) {
    Session session = connect();
    std::map<std::string, Count> counts;
    client::EventSubscription::Options options;
    options.memory_only = true;
    options.position.since = 0;
    {
        client::EventSubscription first(session, options);
        must(first.start());
        options.position = first.position();
    }
    auto info = session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest());
    expect(info.ok(), "Info");
    options.position.instance_id = info->instance_id();
    options.position.since = info->last_sequence();
    for (int i = 0; i < containers; ++i) {
        std::string id = "k" + std::to_string(i);
        must(create(session, id,
                    limited("i=0; while [ $i -lt " + std::to_string(each) + " ]; do " + kEat +
                            "; i=$((i+1)); done")));
        counts[id] = {};
    }
    unsigned seed = static_cast<unsigned>(time(nullptr));
    printf("seed %u\n", seed);
    srand(seed);
    uint64_t wanted = static_cast<uint64_t>(containers) * each;
    uint64_t seen = 0;
    uint64_t sequence = *options.position.since;
    int attachments = 0;
    size_t started = 0;
    // A few run at a time: what is tested is the counting, not the guest's memory.
    std::set<std::string> running;
    auto fill = [&] {
        while (running.size() < 8 && started < counts.size()) {
            std::string id = "k" + std::to_string(started++);
            start(session, id);
            running.insert(id);
        }
    };
    fill();
    double end = seconds_now() + 3000;
    while (seen < wanted) {
        expect(seconds_now() < end,
               "only " + std::to_string(seen) + " of " + std::to_string(wanted) + " kills");
        client::EventSubscription events(session, options);
        must(events.start());
        ++attachments;
        for (int left = 1 + rand() % 40; left > 0 && seen < wanted; --left) {
            auto message = events.next(client::deadline_after_ms(300'000));
            if (!message.ok()) give_up("events: " + message.error().message);
            if (message->has_lost()) {
                // Too far behind for the log: the totals tell what was missed.
                for (const v1::ContainerMemory& memory : message->lost().memory()) {
                    Count& count = counts[memory.container_id()];
                    seen += memory.memory().total().oom_kill() - count.total;
                    count.kills += memory.memory().total().oom_kill() - count.total;
                    count.total = memory.memory().total().oom_kill();
                }
                continue;
            }
            const v1::Event& event = message->event();
            expect(event.sequence() > sequence,
                   "event " + std::to_string(event.sequence()) + " came after " + std::to_string(sequence));
            sequence = event.sequence();
            Count& count = counts[event.container_id()];
            count.kills += event.memory().total_increase().oom_kill();
            seen += event.memory().total_increase().oom_kill();
            count.total = event.memory().total().oom_kill();
            expect_eq(event.container_id() + ": the increases against the total", count.kills, count.total);
            if (count.kills >= each) running.erase(event.container_id());
        }
        options.position = events.position();
        fill();
    }
    for (const auto& [id, count] : counts) {
        must_call<task::WaitResponse>(session, "Wait", process(id));
        expect_eq(id + ": kills that the client counted", count.kills, each);
        expect_eq(id + ": memory.events", number_in(cgroup_of(id) + "/memory.events", "oom_kill"), each);
        must_call<task::DeleteResponse>(session, "Delete", process(id));
    }
    printf("%llu kills in %d containers, counted exactly over %d attachments\n",
           static_cast<unsigned long long>(seen), containers, attachments);
    expect(attachments > 3, "the client never broke off");
}

// A watcher that was away for longer than the log reaches is told so, and the totals are right.
void lost() {
    Session session = connect();
    must(create(session, "steady", limited(std::string(kEat) + "; " + kEat + "; exit 0")));
    start(session, "steady");
    must_call<task::WaitResponse>(session, "Wait", process("steady"));
    auto info = session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest());
    expect(info.ok(), "Info");
    uint64_t entries = 0;
    for (const pb::Counter& limit : info->limits()) {
        if (limit.key() == "event_log_entries") entries = limit.value();
    }
    // The log is filled with what is cheap: execs that are added and removed.
    must(create(session, "filler", Spec()));
    start(session, "filler");
    must(session.connect());
    std::vector<uint32_t> calls;
    auto begin = [&](const char* method, const std::string& request) {
        auto call = session.rpc()->begin_unary(client::kTaskService, method, request, {});
        expect(call.ok(), method);
        calls.push_back(*call);
    };
    task::ExecProcessRequest exec;
    exec.set_id("filler");
    exec.set_exec_id("x");
    exec.mutable_spec()->set_type_url(std::string(client::kProcessType));
    exec.mutable_spec()->set_value(R"({"cwd":"/","args":["/bin/true"],"user":{"uid":0,"gid":0}})");
    for (uint64_t i = 0; i < entries / 2 + 2;) {
        for (int ahead = 0; ahead < 64; ++ahead, ++i) {
            begin("Exec", exec.SerializeAsString());
            begin("Delete", process("filler", "x").SerializeAsString());
        }
        for (uint32_t call : calls) {
            while (!session.rpc()->has_answer(call))
                must(session.rpc()->pump(client::deadline_after_ms(60'000)));
            auto answer = session.rpc()->take_answer(call);
            expect(answer.ok(), "filler: " + (answer.ok() ? "" : answer.error().message));
        }
        calls.clear();
    }
    client::EventSubscription::Options options;
    options.memory_only = true;
    options.position.instance_id = info->instance_id();
    options.position.since = 1;
    client::EventSubscription events(session, options);
    must(events.start());
    auto message = events.next(client::deadline_after_ms(30'000));
    if (!message.ok()) give_up("events: " + message.error().message);
    expect(message->has_lost(), "no lost marker");
    bool found = false;
    for (const v1::ContainerMemory& memory : message->lost().memory()) {
        if (memory.container_id() != "steady") continue;
        found = true;
        expect_eq("the totals in the marker", memory.memory().total().oom_kill(),
                  number_in(cgroup_of("steady") + "/memory.events", "oom_kill"));
        expect_eq("the kills", memory.memory().total().oom_kill(), 2);
    }
    expect(found, "the container is not in the marker");
    remove(session, "filler");
    must_call<task::DeleteResponse>(session, "Delete", process("steady"));
}

// ---- pressure ----

void pressure() {
    Session session = connect();
    Spec spec;
    spec.args = R"(["/bin/hold_memory","60000000"])";
    spec.resources = R"({"memory":{"limit":100000000,"swap":-1}})";
    must(create(session, "pressed", spec));
    must(session.connect());
    auto watch = [&](const std::string& id, v1::PressureResource resource, uint32_t stall, uint32_t window) {
        v1::WatchPressureRequest request;
        request.set_container_id(id);
        request.set_resource(resource);
        request.set_stall_us(stall);
        request.set_window_us(window);
        auto stream = session.rpc()->begin_stream(client::kGuestService, "WatchPressure",
                                                  request.SerializeAsString(), {});
        expect(stream.ok(), "WatchPressure");
        return *stream;
    };
    auto next = [&](uint32_t stream) {
        return session.rpc()->next_message(stream, client::deadline_after_ms(120'000));
    };
    auto parsed = [&](uint32_t stream) {
        auto message = next(stream);
        if (!message.ok()) give_up("WatchPressure: " + message.error().message);
        expect(message->has_value(), "the stream ended");
        v1::PressureMessage pressure;
        expect(pressure.ParseFromString(**message), "undecodable PressureMessage");
        return pressure;
    };
    uint32_t of_container = watch("pressed", v1::PRESSURE_RESOURCE_MEMORY, 2000, 1'000'000);
    uint32_t of_sandbox = watch("", v1::PRESSURE_RESOURCE_MEMORY, 2000, 1'000'000);
    v1::PressureMessage first = parsed(of_container);
    expect(first.armed(), "the first message is not `armed`");
    expect(parsed(of_sandbox).armed(), "the first message is not `armed`");
    start(session, "pressed");
    // Room for a third of what it touches: it swaps.
    must(update(session, "pressed", R"({"unified":{"memory.high":"20000000"}})"));
    v1::PressureMessage risen = parsed(of_container);
    expect(!risen.armed() && risen.some().total_us() >= first.some().total_us() + 2000,
           "the threshold was not passed");
    expect(!parsed(of_sandbox).armed(), "the sandbox's watch tells nothing");

    auto refused = [&](const std::string& id, v1::PressureResource resource, uint32_t stall, uint32_t window,
                       core::Code code) {
        auto message = next(watch(id, resource, stall, window));
        expect(!message.ok() && message.error().code == code,
               "a bad request: " + (message.ok() ? "was taken" : message.error().message));
    };
    refused("nobody", v1::PRESSURE_RESOURCE_MEMORY, 2000, 1'000'000, core::Code::kNotFound);
    refused("pressed", v1::PRESSURE_RESOURCE_UNSPECIFIED, 2000, 1'000'000, core::Code::kInvalidArgument);
    refused("pressed", v1::PRESSURE_RESOURCE_CPU, 2000, 1, core::Code::kInvalidArgument);
    refused("pressed", v1::PRESSURE_RESOURCE_IO, 2'000'000, 1'000'000, core::Code::kInvalidArgument);
    remove(session, "pressed");
    for (;;) {
        auto message = next(of_container);
        if (!message.ok()) give_up("the stream of a deleted container: " + message.error().message);
        if (!message->has_value()) break;
    }
}

}  // namespace

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
    } else {
        give_up("busy, deadline, delete, stats, stats-cost N, oom, kills CONTAINERS EACH, lost, pressure");
    }
    return 0;
}
