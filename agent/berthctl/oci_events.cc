#include "agent/berthctl/oci_events.h"

#include <cstdlib>

#include "agent/client/events.h"
#include "agent/client/io.h"
#include "agent/core/text.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

namespace {

void put_pressure_line(JsonText& out, std::string_view key, const pb::metrics::PSIData& line) {
    out.begin_object(key);
    out.decimal("avg10", line.avg10());
    out.decimal("avg60", line.avg60());
    out.decimal("avg300", line.avg300());
    out.number("total", line.total());
    out.end_object();
}

template <typename Part>
void put_pressure(JsonText& out, const Part& part) {
    if (!part.has_psi()) return;
    out.begin_object("psi");
    put_pressure_line(out, "some", part.psi().some());
    put_pressure_line(out, "full", part.psi().full());
    out.end_object();
}

void put_cpu(JsonText& out, const pb::metrics::CPUStat& cpu) {
    out.begin_object("cpu");
    out.begin_object("usage");
    out.number("total", cpu.usage_usec() * 1000);
    out.number("kernel", cpu.system_usec() * 1000);
    out.number("user", cpu.user_usec() * 1000);
    out.end_object();
    out.begin_object("throttling");
    out.number("periods", cpu.nr_periods());
    out.number("throttledPeriods", cpu.nr_throttled());
    out.number("throttledTime", cpu.throttled_usec() * 1000);
    out.end_object();
    put_pressure(out, cpu);
    out.end_object();
}

void put_memory_use(JsonText& out, std::string_view key, uint64_t limit, uint64_t usage, uint64_t most,
                    uint64_t failures) {
    out.begin_object(key);
    out.number("limit", limit);
    out.number("usage", usage);
    out.number("max", most);
    out.number("failcnt", failures);
    out.end_object();
}

void put_memory(JsonText& out, const pb::metrics::Metrics& metrics) {
    const auto& memory = metrics.memory();
    out.begin_object("memory");
    out.number("cache", memory.file());
    put_memory_use(out, "usage", memory.usage_limit(), memory.usage(), memory.max_usage(),
                   metrics.memory_events().max());
    put_memory_use(out, "swap", memory.swap_limit(), memory.swap_usage(), memory.swap_max_usage(), 0);
    put_memory_use(out, "kernel", 0, 0, 0, 0);
    put_memory_use(out, "kernelTCP", 0, 0, 0, 0);
    out.begin_object("raw");
    const std::pair<const char*, uint64_t> kRaw[] = {
        {"active_anon", memory.active_anon()},
        {"active_file", memory.active_file()},
        {"anon", memory.anon()},
        {"file", memory.file()},
        {"file_dirty", memory.file_dirty()},
        {"file_mapped", memory.file_mapped()},
        {"file_writeback", memory.file_writeback()},
        {"inactive_anon", memory.inactive_anon()},
        {"inactive_file", memory.inactive_file()},
        {"kernel_stack", memory.kernel_stack()},
        {"pgfault", memory.pgfault()},
        {"pgmajfault", memory.pgmajfault()},
        {"shmem", memory.shmem()},
        {"slab", memory.slab()},
        {"slab_reclaimable", memory.slab_reclaimable()},
        {"slab_unreclaimable", memory.slab_unreclaimable()},
        {"sock", memory.sock()},
        {"unevictable", memory.unevictable()},
    };
    for (const auto& [name, value] : kRaw) out.number(name, value);
    out.end_object();
    put_pressure(out, memory);
    out.end_object();
}

struct Operation {
    const char* name;
    uint64_t value;
};

void put_operations(JsonText& out, std::string_view key, const pb::metrics::IOStat& io, bool bytes) {
    out.begin_array(key);
    for (const auto& entry : io.usage()) {
        for (const Operation& operation : {Operation{"Read", bytes ? entry.rbytes() : entry.rios()},
                                           Operation{"Write", bytes ? entry.wbytes() : entry.wios()}}) {
            out.begin_object();
            out.number("major", entry.major());
            out.number("minor", entry.minor());
            out.text("op", operation.name);
            out.number("value", operation.value);
            out.end_object();
        }
    }
    out.end_array();
}

core::Result<pb::metrics::Metrics> stats_of(Context& context, const std::string& id) {
    pb::task::ContainerRequest request;
    request.set_id(id);
    BERTH_ASSIGN(pb::task::StatsResponse response,
                 task_call<pb::task::StatsResponse>(context, "Stats", request));
    pb::metrics::Metrics metrics;
    if (!metrics.ParseFromString(response.stats().value()))
        return core::make_error(core::Code::kInternal, "Stats: undecodable answer");
    return metrics;
}

core::Status print_stats(Context& context, const std::string& id) {
    BERTH_ASSIGN(pb::metrics::Metrics metrics, stats_of(context, id));
    print(oci_stats_json(context.user_id, metrics) + "\n");
    return core::ok();
}

void print_oom(const std::string& id) {
    JsonText out;
    out.begin_object();
    out.text("type", "oom");
    out.text("id", id);
    out.end_object();
    print(out.str() + "\n");
}

core::Status check_running(Context& context, const std::string& id) {
    pb::task::ProcessRequest request;
    request.set_id(id);
    BERTH_ASSIGN(pb::task::StateResponse state,
                 task_call<pb::task::StateResponse>(context, "State", request));
    if (state.status() != pb::task::STOPPED) return core::ok();
    return core::make_error(core::Code::kFailedPrecondition,
                            "container " + core::quoted(context.user_id) + " is not running");
}

}  // namespace

std::string oci_stats_json(std::string_view id, const pb::metrics::Metrics& metrics) {
    JsonText out;
    out.begin_object();
    out.text("type", "stats");
    out.text("id", id);
    out.begin_object("data");
    put_cpu(out, metrics.cpu());
    out.begin_object("cpuset");
    out.end_object();
    put_memory(out, metrics);
    out.begin_object("pids");
    out.number("current", metrics.pids().current());
    // As runc has it: without a limit there is none to tell.
    out.number("limit", metrics.pids().limit() == UINT64_MAX ? 0 : metrics.pids().limit());
    out.end_object();
    out.begin_object("blkio");
    put_operations(out, "ioServiceBytesRecursive", metrics.io(), true);
    put_operations(out, "ioServicedRecursive", metrics.io(), false);
    put_pressure(out, metrics.io());
    out.end_object();
    out.begin_object("hugetlb");
    for (const auto& entry : metrics.hugetlb()) {
        out.begin_object(entry.pagesize());
        out.number("usage", entry.current());
        out.number("failcnt", entry.failcnt());
        out.end_object();
    }
    out.end_object();
    out.begin_object("intel_rdt");
    out.end_object();
    out.begin_array("network_interfaces");
    for (const auto& entry : metrics.network()) {
        out.begin_object();
        out.text("Name", entry.name());
        out.number("RxBytes", entry.rx_bytes());
        out.number("RxPackets", entry.rx_packets());
        out.number("RxErrors", entry.rx_errors());
        out.number("RxDropped", entry.rx_dropped());
        out.number("TxBytes", entry.tx_bytes());
        out.number("TxPackets", entry.tx_packets());
        out.number("TxErrors", entry.tx_errors());
        out.number("TxDropped", entry.tx_dropped());
        out.end_object();
    }
    out.end_array();
    out.end_object();
    out.end_object();
    return out.str();
}

core::Result<int64_t> parse_interval_ms(std::string_view text) {
    core::Error wrong =
        core::invalid("--interval " + core::quoted(text) + ": must be a time such as 5s or 100ms");
    double total_ms = 0;
    std::string_view rest = text;
    do {
        std::string digits;
        while (!rest.empty() && ((rest[0] >= '0' && rest[0] <= '9') || rest[0] == '.')) {
            digits += rest[0];
            rest.remove_prefix(1);
        }
        char* end = nullptr;
        double value = std::strtod(digits.c_str(), &end);
        if (digits.empty() || *end != '\0') return wrong;
        double unit_ms = 1000;
        if (rest.starts_with("ms")) {
            unit_ms = 1;
            rest.remove_prefix(2);
        } else if (!rest.empty()) {
            unit_ms = rest[0] == 's' ? 1000 : rest[0] == 'm' ? 60'000 : rest[0] == 'h' ? 3'600'000 : 0;
            rest.remove_prefix(1);
        }
        if (unit_ms == 0) return wrong;
        total_ms += value * unit_ms;
    } while (!rest.empty());
    constexpr double kLongestMs = 86'400'000;
    if (total_ms < 1 || total_ms > kLongestMs) return wrong;
    return static_cast<int64_t>(total_ms);
}

core::Result<int> oci_events(Context& context, bool once, int64_t interval_ms) {
    BERTH_ASSIGN(std::string id, context.container());
    BERTH_TRY(check_running(context, id));
    if (once) {
        BERTH_TRY(print_stats(context, id));
        return 0;
    }
    client::EventSubscription subscription(context.session, client::EventSubscription::Options());
    BERTH_TRY(subscription.start());
    for (int64_t next_ns = client::now_ns();;) {
        if (client::now_ns() >= next_ns) {
            core::Status printed = print_stats(context, id);
            // Gone: its end is one of the events that follow, or came before we listened.
            if (!printed.ok() && printed.error().code == core::Code::kNotFound) return 0;
            if (!printed.ok()) return std::move(printed).error();
            next_ns = client::deadline_after_ms(interval_ms);
        }
        core::Result<v1::EventMessage> message = subscription.next(next_ns);
        if (!message.ok() && message.error().code == core::Code::kDeadlineExceeded) continue;
        if (!message.ok()) return std::move(message).error();
        const v1::Event& event = message->event();
        if (message->message_case() != v1::EventMessage::kEvent || event.container_id() != id) continue;
        if (event.what_case() == v1::Event::kMemory && event.memory().total_increase().oom_kill() > 0)
            print_oom(context.user_id);
        bool is_init = event.exec_id().empty();
        if (is_init && (event.what_case() == v1::Event::kExited || event.what_case() == v1::Event::kDeleted))
            return 0;
    }
}

}  // namespace berth::ctl
