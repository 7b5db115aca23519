// stats: what containers use.
#include "agent/berthctl/command.h"
#include "agent/core/text.h"
#include "proto/berth/guest.pb.h"
#include "proto/containerd/metrics.pb.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

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
    BERTH_ASSIGN(std::string id, context.container());
    request.set_id(id);
    BERTH_ASSIGN(pb::task::StatsResponse response,
                 task_call<pb::task::StatsResponse>(context, "Stats", request));
    JsonText out(context.json ? JsonText::Style::kCompact : JsonText::Style::kIndented);
    BERTH_TRY(add_stats(out, {}, response.stats()));
    print(out.str() + "\n");
    return 0;
}

constexpr Flag kStatsFlags[] = {
    {"sandbox", 0, Flag::Kind::kSwitch, "the cgroup that all containers are in, too"}};

constexpr Command kCommands[] = {
    {"stats", "[FLAGS] [ID...]", "what a container uses, as JSON; of many: all, or those", kStatsFlags, 0,
     SIZE_MAX, Arguments::Order::kMixed, 1, stats},
};

}  // namespace

std::span<const Command> stats_commands() {
    return kCommands;
}

}  // namespace berth::ctl
