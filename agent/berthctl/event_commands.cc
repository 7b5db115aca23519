// events: the agent's numbered events as they come, one line each.
#include <cinttypes>
#include <ctime>

#include "agent/berthctl/command.h"
#include "agent/berthctl/oci_events.h"
#include "agent/client/events.h"
#include "agent/core/text.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

struct Field {
    const char* name;
    uint64_t value;
};

// What an event carries, once for both ways of printing it.
struct Line {
    std::string_view what;
    std::vector<Field> numbers;
    std::string text;  // a reason; empty: none
    bool oom_likely = false;
};

void add_counters(Line& line, const v1::MemoryCounters& counters, const v1::MemoryCounters* increase) {
    auto add = [&](const char* name, uint64_t value, uint64_t grown) {
        // With the increase at hand, only what grew.
        if (increase == nullptr || grown > 0) line.numbers.push_back({name, value});
    };
    static const v1::MemoryCounters kNone;
    const v1::MemoryCounters& grown = increase == nullptr ? kNone : *increase;
    add("low", counters.low(), grown.low());
    add("high", counters.high(), grown.high());
    add("max", counters.max(), grown.max());
    add("oom", counters.oom(), grown.oom());
    add("oom_kill", counters.oom_kill(), grown.oom_kill());
    add("oom_group_kill", counters.oom_group_kill(), grown.oom_group_kill());
}

const char* stream_name(v1::Stream stream) {
    if (stream == v1::STREAM_STDIN) return "stdin";
    return stream == v1::STREAM_STDERR ? "stderr" : "stdout";
}

Line line_of(const v1::Event& event, bool json) {
    Line line;
    switch (event.what_case()) {
        case v1::Event::kCreated:
            line.what = "created";
            line.numbers = {{"pid", event.created().pid()}};
            break;
        case v1::Event::kStarted:
            line.what = "started";
            line.numbers = {{"pid", event.started().pid()}};
            break;
        case v1::Event::kExecAdded: line.what = "exec-added"; break;
        case v1::Event::kExecStarted:
            line.what = "exec-started";
            line.numbers = {{"pid", event.exec_started().pid()}};
            break;
        case v1::Event::kExited:
            line.what = "exited";
            line.numbers = {{"pid", event.exited().pid()}, {"exitStatus", event.exited().exit_status()}};
            line.oom_likely = event.exited().oom_likely();
            break;
        case v1::Event::kDeleted: line.what = "deleted"; break;
        case v1::Event::kPaused: line.what = "paused"; break;
        case v1::Event::kResumed: line.what = "resumed"; break;
        case v1::Event::kMemory:
            line.what = "memory";
            add_counters(line, event.memory().total(), json ? nullptr : &event.memory().total_increase());
            break;
        case v1::Event::kStdioLost:
            line.what = "stdio-lost";
            line.text = stream_name(event.stdio_lost().stream());
            line.numbers = {{"bytes", event.stdio_lost().bytes()}};
            break;
        case v1::Event::kAgentRestarted:
            line.what = "agent-restarted";
            line.text = event.agent_restarted().reason();
            line.numbers = {{"agentStarts", event.agent_restarted().count()}};
            break;
        case v1::Event::WHAT_NOT_SET: line.what = "unknown"; break;
    }
    return line;
}

std::string event_text(const v1::Event& event) {
    Line line = line_of(event, false);
    std::string out =
        core::format("%" PRIu64 "  %s  %-12.*s", event.sequence(), rfc3339(event.time_unix_ns()).c_str(),
                     static_cast<int>(line.what.size()), line.what.data());
    if (!event.container_id().empty()) out += "  " + event.container_id();
    if (!event.exec_id().empty()) out += "/" + event.exec_id();
    for (const Field& field : line.numbers) {
        out += core::format("  %s=%" PRIu64, field.name, field.value);
    }
    if (line.oom_likely) out += "  (OOM-killed)";
    if (!line.text.empty()) out += "  " + line.text;
    return out + "\n";
}

int64_t unix_now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// timeUnixNs is the guest's clock, receivedUnixNs this side's.
std::string event_json(const v1::Event& event, int64_t received_unix_ns) {
    Line line = line_of(event, true);
    JsonText out;
    out.begin_object();
    out.number("sequence", event.sequence());
    out.signed_number("timeUnixNs", event.time_unix_ns());
    out.signed_number("receivedUnixNs", received_unix_ns);
    out.text("event", line.what);
    out.text("id", event.container_id());
    if (!event.exec_id().empty()) out.text("execId", event.exec_id());
    if (!event.namespace_().empty()) out.text("namespace", event.namespace_());
    for (const Field& field : line.numbers) out.number(field.name, field.value);
    if (line.what == "exited") out.boolean("oomLikely", line.oom_likely);
    if (!line.text.empty()) out.text(line.what == "stdio-lost" ? "stream" : "reason", line.text);
    if (event.what_case() == v1::Event::kMemory) {
        Line increase;
        add_counters(increase, event.memory().total_increase(), nullptr);
        out.begin_object("increase");
        for (const Field& field : increase.numbers) out.number(field.name, field.value);
        out.end_object();
        Line local;
        add_counters(local, event.memory().local(), nullptr);
        out.begin_object("local");
        for (const Field& field : local.numbers) out.number(field.name, field.value);
        out.end_object();
    }
    out.end_object();
    return out.str() + "\n";
}

std::string lost_line(const v1::Lost& lost, bool json) {
    if (!json) {
        return core::format("lost: events before %" PRIu64 " are gone\n", lost.first_available_sequence());
    }
    JsonText out;
    out.begin_object();
    out.text("event", "lost");
    out.number("firstAvailableSequence", lost.first_available_sequence());
    out.begin_object("oomKills");
    for (const v1::ContainerMemory& container : lost.memory()) {
        out.number(container.container_id(), container.memory().total().oom_kill());
    }
    out.end_object();
    out.end_object();
    return out.str() + "\n";
}

core::Result<client::EventSubscription::Options> options_of(const Context& context) {
    client::EventSubscription::Options options;
    options.memory_only = context.arguments.has("memory");
    for (std::string_view id : context.arguments.words()) options.containers.emplace_back(id);
    if (context.arguments.has("since")) {
        auto since = core::parse_number<uint64_t>(context.arguments.value("since"));
        if (!since) return core::invalid("--since must be the number of an event, or 0");
        options.position.since = *since;
    }
    if (context.arguments.has("instance")) {
        auto instance = core::unhex(context.arguments.value("instance"));
        if (!instance || instance->size() != 16) return core::invalid("--instance must be 32 hex digits");
        options.position.instance_id.assign(instance->begin(), instance->end());
    }
    return options;
}

// Who drives us as an OCI runtime, with a folder of its own, means runc's events.
bool means_oci_events(const Context& context) {
    const Arguments& arguments = context.arguments;
    if (arguments.has("stats") || arguments.has("interval")) return true;
    if (!context.names.has_root() || context.json || arguments.words().size() != 1) return false;
    for (std::string_view own : {"since", "instance", "memory", "count"}) {
        if (arguments.has(own)) return false;
    }
    return true;
}

core::Result<int> events(Context& context) {
    if (means_oci_events(context)) {
        if (context.arguments.words().size() != 1)
            return core::invalid("events: one ID with --stats or --interval");
        BERTH_ASSIGN(int64_t interval_ms, parse_interval_ms(context.arguments.value("interval", "5s")));
        return oci_events(context, context.arguments.has("stats"), interval_ms);
    }
    BERTH_ASSIGN(client::EventSubscription::Options options, options_of(context));
    uint64_t left = UINT64_MAX;
    if (context.arguments.has("count")) {
        auto count = core::parse_number<uint64_t>(context.arguments.value("count"));
        if (!count || *count == 0) return core::invalid("--count must be a number above 0");
        left = *count;
    }
    if (options.position.since.value_or(0) > 0 && options.position.instance_id.empty()) {
        // A number means nothing without the guest that it is from: take it to be this one.
        BERTH_ASSIGN(v1::InfoResponse info, context.session.call<v1::InfoResponse>(
                                                client::kGuestService, "Info", v1::InfoRequest()));
        options.position.instance_id = info.instance_id();
    }
    auto wanted = [words = options.containers](const v1::Event& event) {
        if (words.empty()) return true;
        for (const std::string& id : words) {
            if (event.container_id() == id) return true;
        }
        return false;
    };
    int64_t deadline_ns = client::deadline_after_ms(context.session.timeout_ms());
    client::EventSubscription subscription(context.session, std::move(options));
    BERTH_TRY(subscription.start());
    while (left > 0) {
        core::Result<v1::EventMessage> message = subscription.next(deadline_ns);
        if (!message.ok()) return std::move(message).error();
        if (message->message_case() == v1::EventMessage::kLost) {
            print(lost_line(message->lost(), context.json));
            continue;
        }
        const v1::Event& event = message->event();
        if (!wanted(event)) continue;
        print(context.json ? event_json(event, unix_now_ns()) : event_text(event));
        left--;
    }
    return 0;
}

constexpr Flag kEventFlags[] = {
    {"since", 's', Kind::kValue, "N  first what came after event N; 0: everything kept"},
    {"instance", 0, Kind::kValue, "ID  of the guest that N is from (default: this one)"},
    {"memory", 'm', Kind::kSwitch, "only the counters of memory.events"},
    {"count", 'n', Kind::kValue, "N  end after N events"},
    {"stats", 0, Kind::kSwitch, "what one container uses, once, in runc's JSON"},
    {"interval", 0, Kind::kValue,
     "TIME  the same every so often (default: 5s), and its OOM kills; so also with --root"},
};

constexpr Command kCommands[] = {
    {"events", "[FLAGS] [ID...]", "what happens to containers, as it happens", kEventFlags, 0, SIZE_MAX,
     Arguments::Order::kMixed, 1, events},
};

}  // namespace

std::span<const Command> event_commands() {
    return kCommands;
}

}  // namespace berth::ctl
