// info, list, state, ps, stats: commands that look and change nothing.
#include <algorithm>

#include "agent/berthctl/command.h"
#include "agent/core/text.h"
#include "proto/berth/guest.pb.h"
#include "proto/containerd/metrics.pb.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

std::string hex_of(const std::string& bytes) {
    return core::hex(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

std::string_view status_name(pb::task::Status status) {
    static constexpr std::string_view kNames[] = {"unknown", "created", "running",
                                                  "stopped", "paused",  "pausing"};
    size_t index = static_cast<size_t>(status);
    return kNames[index < std::size(kNames) ? index : 0];
}

void info_json(const v1::InfoResponse& info) {
    JsonText out;
    out.begin_object();
    out.text("version", info.version());
    out.text("instanceId", hex_of(info.instance_id()));
    out.number("generation", info.generation());
    out.text("auth", info.auth());
    out.number("uptimeNs", info.uptime_ns());
    out.text("kernelRelease", info.kernel_release());
    out.text("machine", info.machine());
    out.number("pageSizeBytes", info.page_size_bytes());
    out.number("agentStarts", info.agent_starts());
    out.boolean("safeMode", info.safe_mode());
    out.number("lastSequence", info.last_sequence());
    out.begin_array("unifiedKeys");
    for (const std::string& key : info.unified_keys()) out.item(key);
    out.end_array();
    out.begin_object("limits");
    for (const pb::Counter& limit : info.limits()) out.number(limit.key(), limit.value());
    out.end_object();
    out.begin_array("features");
    for (const v1::Feature& feature : info.features()) {
        out.begin_object();
        out.text("name", feature.name());
        out.boolean("available", feature.available());
        if (!feature.detail().empty()) out.text("detail", feature.detail());
        if (!feature.refused().empty()) out.text("refused", feature.refused());
        out.end_object();
    }
    out.end_array();
    out.end_object();
    print(out.str() + "\n");
}

core::Result<int> info(Context& context) {
    BERTH_ASSIGN(v1::InfoResponse info,
                 context.session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest()));
    if (context.json) {
        info_json(info);
        return 0;
    }
    std::string out;
    out += core::format("agent       %s, start %u%s\n", info.version().c_str(), info.agent_starts(),
                        info.safe_mode() ? ", SAFE MODE" : "");
    out +=
        core::format("guest       %s, generation %u, up %llu.%03llu s\n", hex_of(info.instance_id()).c_str(),
                     info.generation(), static_cast<unsigned long long>(info.uptime_ns() / 1'000'000'000),
                     static_cast<unsigned long long>(info.uptime_ns() / 1'000'000 % 1000));
    out += core::format("kernel      %s %s, pages of %u bytes\n", info.kernel_release().c_str(),
                        info.machine().c_str(), info.page_size_bytes());
    out += core::format("auth        %s\n", info.auth().c_str());
    out += core::format("events      %llu\n", static_cast<unsigned long long>(info.last_sequence()));
    out += "unified    ";
    for (const std::string& key : info.unified_keys()) out += " " + key;
    out += "\n";
    for (const v1::Feature& feature : info.features()) {
        out += core::format("%-10s  %s%s%s", feature.available() ? "has" : "LACKS", feature.name().c_str(),
                            feature.detail().empty() ? "" : ": ", feature.detail().c_str());
        if (!feature.available() && !feature.refused().empty())
            out += " (refused: " + feature.refused() + ")";
        out += "\n";
    }
    for (const pb::Counter& limit : info.limits()) {
        out += core::format("limit       %s %llu\n", limit.key().c_str(),
                            static_cast<unsigned long long>(limit.value()));
    }
    print(out);
    return 0;
}

void counters_json(JsonText& out, std::string_view key, const v1::MemoryCounters& counters) {
    out.begin_object(key);
    out.number("low", counters.low());
    out.number("high", counters.high());
    out.number("max", counters.max());
    out.number("oom", counters.oom());
    out.number("oom_kill", counters.oom_kill());
    out.number("oom_group_kill", counters.oom_group_kill());
    for (const pb::Counter& other : counters.other()) out.number(other.key(), other.value());
    out.end_object();
}

void summary_json(JsonText& out, const v1::ContainerSummary& container) {
    out.begin_object();
    out.text("id", container.id());
    out.text("status", container.status());
    out.number("pid", container.pid());
    out.text("bundle", container.bundle());
    out.text("created", rfc3339(container.created_at_unix_ns()));
    if (container.status() == "stopped") {
        out.number("exitStatus", container.exit_status());
        out.text("exitedAt", rfc3339(container.exited_at_unix_ns()));
    }
    out.text("namespace", container.namespace_());
    out.text("cgroup", container.cgroup());
    out.begin_array("execs");
    for (const std::string& exec : container.execs()) out.item(exec);
    out.end_array();
    out.begin_object("annotations");
    for (const pb::KeyValue& pair : container.annotations()) out.text(pair.key(), pair.value());
    out.end_object();
    counters_json(out, "memoryEvents", container.memory().total());
    out.end_object();
}

core::Result<int> list(Context& context) {
    v1::ListRequest request;
    for (std::string_view id : context.arguments.words()) request.add_ids(std::string(id));
    BERTH_ASSIGN(v1::ListResponse response,
                 context.session.call<v1::ListResponse>(client::kGuestService, "List", request));
    std::string text;
    if (context.json) {
        JsonText out;
        out.begin_array();
        for (const v1::ContainerSummary& container : response.containers()) summary_json(out, container);
        out.end_array();
        text = out.str() + "\n";
    } else if (context.arguments.has("quiet")) {
        for (const v1::ContainerSummary& container : response.containers()) text += container.id() + "\n";
    } else {
        int width = 2;
        for (const v1::ContainerSummary& container : response.containers()) {
            width = std::max(width, static_cast<int>(container.id().size()));
        }
        text = core::format("%-*s  %-7s  %-8s  %-9s  %-30s  %s\n", width, "ID", "PID", "STATUS", "OOM KILLS",
                            "CREATED", "BUNDLE");
        for (const v1::ContainerSummary& container : response.containers()) {
            text += core::format("%-*s  %-7u  %-8s  %-9llu  %-30s  %s\n", width, container.id().c_str(),
                                 container.pid(), container.status().c_str(),
                                 static_cast<unsigned long long>(container.memory().total().oom_kill()),
                                 rfc3339(container.created_at_unix_ns()).c_str(), container.bundle().c_str());
        }
    }
    print(text);
    return 0;
}

core::Result<int> state(Context& context) {
    pb::task::ProcessRequest request;
    request.set_id(context.word(0));
    request.set_exec_id(std::string(context.arguments.value("exec-id")));
    BERTH_ASSIGN(pb::task::StateResponse state,
                 task_call<pb::task::StateResponse>(context, "State", request));
    // State says neither when the container was created nor its annotations, which OCI's state has.
    v1::ListResponse listed;
    if (state.exec_id().empty()) {
        v1::ListRequest list_request;
        list_request.add_ids(state.id());
        BERTH_ASSIGN(listed,
                     context.session.call<v1::ListResponse>(client::kGuestService, "List", list_request));
    }
    // runc's keys where it has them; its output is JSON always.
    JsonText out(context.json ? JsonText::Style::kCompact : JsonText::Style::kIndented);
    out.begin_object();
    out.text("ociVersion", "1.2.0");
    out.text("id", state.id());
    if (!state.exec_id().empty()) out.text("execId", state.exec_id());
    // As in runc: what has stopped has no pid.
    out.number("pid", state.status() == pb::task::STOPPED ? 0 : state.pid());
    out.text("status", status_name(state.status()));
    out.text("bundle", state.bundle());
    out.boolean("terminal", state.terminal());
    if (state.status() == pb::task::STOPPED) {
        out.number("exitStatus", state.exit_status());
        out.text("exitedAt", rfc3339(state.exited_at().seconds(), state.exited_at().nanos()));
    }
    for (const v1::ContainerSummary& container : listed.containers()) {
        out.text("created", rfc3339(container.created_at_unix_ns()));
        if (container.annotations().empty()) continue;
        out.begin_object("annotations");
        for (const pb::KeyValue& pair : container.annotations()) out.text(pair.key(), pair.value());
        out.end_object();
    }
    out.end_object();
    print(out.str() + "\n");
    return 0;
}

core::Result<int> pids(Context& context) {
    pb::task::ContainerRequest request;
    request.set_id(context.word(0));
    BERTH_ASSIGN(pb::task::PidsResponse response,
                 task_call<pb::task::PidsResponse>(context, "Pids", request));
    if (context.json) {
        JsonText out;
        out.begin_array();
        for (const pb::task::ProcessInfo& process : response.processes()) {
            out.item(uint64_t{process.pid()});
        }
        out.end_array();
        print(out.str() + "\n");
        return 0;
    }
    std::string text = "PID      EXEC\n";
    for (const pb::task::ProcessInfo& process : response.processes()) {
        text += core::format("%-7u  %s\n", process.pid(), process.info().value().c_str());
    }
    print(text);
    return 0;
}

struct Number {
    const char* name;
    uint64_t value;
};

void numbers(JsonText& out, std::string_view key, std::initializer_list<Number> values) {
    out.begin_object(key);
    for (const Number& number : values) out.number(number.name, number.value);
    out.end_object();
}

template <typename Message>
void pressure_json(JsonText& out, std::string_view name, const Message& message) {
    if (!message.has_psi()) return;
    out.begin_object(name);
    auto line = [&out](const char* key, const pb::metrics::PSIData& data) {
        out.begin_object(key);
        out.decimal("avg10", data.avg10());
        out.decimal("avg60", data.avg60());
        out.decimal("avg300", data.avg300());
        out.number("total", data.total());
        out.end_object();
    };
    line("some", message.psi().some());
    line("full", message.psi().full());
    out.end_object();
}

template <typename Entries>
void rdma_json(JsonText& out, std::string_view name, const Entries& entries) {
    out.begin_object(name);
    for (const auto& entry : entries) {
        numbers(out, entry.device(),
                {{"hca_handles", entry.hca_handles()}, {"hca_objects", entry.hca_objects()}});
    }
    out.end_object();
}

void stats_json(JsonText& out, std::string_view name, const pb::metrics::Metrics& metrics) {
    const auto& cpu = metrics.cpu();
    const auto& memory = metrics.memory();
    const auto& events = metrics.memory_events();
    out.begin_object(name);
    numbers(out, "pids", {{"current", metrics.pids().current()}, {"limit", metrics.pids().limit()}});
    numbers(out, "cpu",
            {{"usage_usec", cpu.usage_usec()},
             {"user_usec", cpu.user_usec()},
             {"system_usec", cpu.system_usec()},
             {"nr_periods", cpu.nr_periods()},
             {"nr_throttled", cpu.nr_throttled()},
             {"throttled_usec", cpu.throttled_usec()},
             {"nr_bursts", cpu.nr_bursts()},
             {"burst_usec", cpu.burst_usec()}});
    pressure_json(out, "cpu_pressure", cpu);
    numbers(out, "memory",
            {{"usage", memory.usage()},
             {"usage_limit", memory.usage_limit()},
             {"max_usage", memory.max_usage()},
             {"swap_usage", memory.swap_usage()},
             {"swap_limit", memory.swap_limit()},
             {"swap_max_usage", memory.swap_max_usage()},
             {"anon", memory.anon()},
             {"file", memory.file()},
             {"slab", memory.slab()},
             {"pgfault", memory.pgfault()},
             {"pgmajfault", memory.pgmajfault()},
             {"kernel_stack", memory.kernel_stack()},
             {"sock", memory.sock()},
             {"shmem", memory.shmem()},
             {"file_mapped", memory.file_mapped()},
             {"file_dirty", memory.file_dirty()},
             {"file_writeback", memory.file_writeback()},
             {"anon_thp", memory.anon_thp()},
             {"inactive_anon", memory.inactive_anon()},
             {"active_anon", memory.active_anon()},
             {"inactive_file", memory.inactive_file()},
             {"active_file", memory.active_file()},
             {"unevictable", memory.unevictable()},
             {"slab_reclaimable", memory.slab_reclaimable()},
             {"slab_unreclaimable", memory.slab_unreclaimable()},
             {"workingset_refault", memory.workingset_refault()},
             {"workingset_activate", memory.workingset_activate()},
             {"workingset_nodereclaim", memory.workingset_nodereclaim()},
             {"pgrefill", memory.pgrefill()},
             {"pgscan", memory.pgscan()},
             {"pgsteal", memory.pgsteal()},
             {"pgactivate", memory.pgactivate()},
             {"pgdeactivate", memory.pgdeactivate()},
             {"pglazyfree", memory.pglazyfree()},
             {"pglazyfreed", memory.pglazyfreed()},
             {"thp_fault_alloc", memory.thp_fault_alloc()},
             {"thp_collapse_alloc", memory.thp_collapse_alloc()}});
    pressure_json(out, "memory_pressure", memory);
    numbers(out, "memory_events",
            {{"low", events.low()},
             {"high", events.high()},
             {"max", events.max()},
             {"oom", events.oom()},
             {"oom_kill", events.oom_kill()},
             {"oom_group_kill", events.oom_group_kill()}});
    out.begin_array("io");
    for (const auto& entry : metrics.io().usage()) {
        numbers(out, {},
                {{"major", entry.major()},
                 {"minor", entry.minor()},
                 {"rbytes", entry.rbytes()},
                 {"wbytes", entry.wbytes()},
                 {"rios", entry.rios()},
                 {"wios", entry.wios()}});
    }
    out.end_array();
    pressure_json(out, "io_pressure", metrics.io());
    out.begin_object("hugetlb");
    for (const auto& entry : metrics.hugetlb()) {
        numbers(out, entry.pagesize(),
                {{"current", entry.current()}, {"max", entry.max()}, {"failcnt", entry.failcnt()}});
    }
    out.end_object();
    rdma_json(out, "rdma_current", metrics.rdma().current());
    rdma_json(out, "rdma_limit", metrics.rdma().limit());
    out.begin_object("network");
    for (const auto& entry : metrics.network()) {
        numbers(out, entry.name(),
                {{"rx_bytes", entry.rx_bytes()},
                 {"rx_packets", entry.rx_packets()},
                 {"rx_errors", entry.rx_errors()},
                 {"rx_dropped", entry.rx_dropped()},
                 {"tx_bytes", entry.tx_bytes()},
                 {"tx_packets", entry.tx_packets()},
                 {"tx_errors", entry.tx_errors()},
                 {"tx_dropped", entry.tx_dropped()}});
    }
    out.end_object();
    out.end_object();
}

core::Status add_stats(JsonText& out, std::string_view key, const pb::Any& stats) {
    pb::metrics::Metrics metrics;
    if (!metrics.ParseFromString(stats.value()))
        return core::make_error(core::Code::kInternal, "Stats: undecodable answer");
    stats_json(out, key, metrics);
    return core::ok();
}

// Of several containers, or the sandbox: one object with a member for each.
core::Result<int> stats_of_many(Context& context) {
    v1::StatsAllRequest request;
    for (std::string_view id : context.arguments.words()) request.add_ids(std::string(id));
    request.set_sandbox(context.arguments.has("sandbox"));
    BERTH_ASSIGN(v1::StatsAllResponse response,
                 context.session.call<v1::StatsAllResponse>(client::kGuestService, "StatsAll", request));
    JsonText out(context.json ? JsonText::Style::kCompact : JsonText::Style::kIndented);
    out.begin_object();
    if (request.sandbox()) BERTH_TRY(add_stats(out, "sandbox", response.sandbox()));
    out.begin_object("containers");
    for (const v1::ContainerStats& container : response.containers())
        BERTH_TRY(add_stats(out, container.id(), container.stats()));
    out.end_object();
    out.end_object();
    print(out.str() + "\n");
    return 0;
}

core::Result<int> stats(Context& context) {
    if (context.arguments.words().size() != 1 || context.arguments.has("sandbox"))
        return stats_of_many(context);
    pb::task::ContainerRequest request;
    request.set_id(context.word(0));
    BERTH_ASSIGN(pb::task::StatsResponse response,
                 task_call<pb::task::StatsResponse>(context, "Stats", request));
    JsonText out(context.json ? JsonText::Style::kCompact : JsonText::Style::kIndented);
    BERTH_TRY(add_stats(out, {}, response.stats()));
    print(out.str() + "\n");
    return 0;
}

constexpr Flag kListFlags[] = {{"quiet", 'q', Kind::kSwitch, "only the ids"}};
constexpr Flag kStatsFlags[] = {{"sandbox", 0, Kind::kSwitch, "the cgroup that all containers are in, too"}};
constexpr Flag kStateFlags[] = {{"exec-id", 0, Kind::kValue, "ID  an exec instead of the init"}};
constexpr Arguments::Order kMixed = Arguments::Order::kMixed;

constexpr Command kCommands[] = {
    {"info", "", "what answers, and what it can and cannot do", {}, 0, 0, kMixed, 1, info},
    {"list", "[FLAGS] [ID...]", "containers", kListFlags, 0, SIZE_MAX, kMixed, 1, list},
    {"state", "[FLAGS] ID", "the state of a process as JSON", kStateFlags, 1, 1, kMixed, 1, state},
    {"ps", "ID", "the processes of a container", {}, 1, 1, kMixed, 1, pids},
    {"pids", "ID", "the same as ps", {}, 1, 1, kMixed, 1, pids},
    {"stats", "[FLAGS] [ID...]", "what a container uses, as JSON; of many: all, or those", kStatsFlags, 0,
     SIZE_MAX, kMixed, 1, stats},
};

}  // namespace

std::span<const Command> report_commands() {
    return kCommands;
}

}  // namespace berth::ctl
