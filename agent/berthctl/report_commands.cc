// info, list, state, ps, pids: commands that look and change nothing.
#include <algorithm>

#include "agent/berthctl/command.h"
#include "agent/berthctl/config.h"
#include "agent/berthctl/documents.h"
#include "agent/berthctl/process_table.h"
#include "agent/core/text.h"
#include "proto/berth/guest.pb.h"
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
    out.boolean("hasOtherInit", info.has_other_init());
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
    out += core::format("init        %s\n", info.has_other_init() ? "another (berth --helper)" : "berth");
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

uint32_t shown_pid(const v1::ContainerSummary& container) {
    // As in runc: what has stopped has no pid.
    return container.status() == "stopped" ? 0 : container.pid();
}

// The state of the OCI, with what runc and crun put beside it.
void state_json(JsonText& out, Context& context, const v1::ContainerSummary& container) {
    out.begin_object();
    out.text("ociVersion", BERTH_SPEC_VERSION);
    out.text("id", context.names.user_id(container.id()));
    out.number("pid", shown_pid(container));
    out.text("status", container.status());
    out.text("bundle", container.bundle());
    if (context.is_local()) {
        out.text("rootfs", rootfs_of(agent_config_path(context, container.id()), container.bundle()));
    }
    out.text("created", rfc3339(container.created_at_unix_ns()));
    if (container.status() == "stopped") {
        out.number("exitStatus", container.exit_status());
        out.text("exitedAt", rfc3339(container.exited_at_unix_ns()));
    }
    if (!container.annotations().empty()) {
        out.begin_object("annotations");
        for (const pb::KeyValue& pair : container.annotations()) out.text(pair.key(), pair.value());
        out.end_object();
    }
    out.text("owner", "root");
    out.end_object();
}

std::string list_table(Context& context, const std::vector<const v1::ContainerSummary*>& shown) {
    int id_width = 11;
    int bundle_width = 11;
    for (const v1::ContainerSummary* container : shown) {
        id_width = std::max(id_width, static_cast<int>(context.names.user_id(container->id()).size()));
        bundle_width = std::max(bundle_width, static_cast<int>(container->bundle().size()));
    }
    std::string text = core::format("%-*s %-11s %-11s %-*s %-30s OWNER\n", id_width, "ID", "PID", "STATUS",
                                    bundle_width, "BUNDLE", "CREATED");
    for (const v1::ContainerSummary* container : shown) {
        text += core::format("%-*s %-11u %-11s %-*s %-30s root\n", id_width,
                             context.names.user_id(container->id()).c_str(), shown_pid(*container),
                             container->status().c_str(), bundle_width, container->bundle().c_str(),
                             rfc3339(container->created_at_unix_ns()).c_str());
    }
    return text;
}

core::Result<bool> wants_json(const Arguments& arguments) {
    std::string_view format = arguments.value("format", "table");
    if (format != "json" && format != "table")
        return core::invalid("--format must be table or json, is " + core::quoted(format));
    return format == "json";
}

core::Result<int> list(Context& context) {
    BERTH_ASSIGN(bool oci_json, wants_json(context.arguments));
    v1::ListRequest request;
    for (std::string_view id : context.arguments.words()) {
        request.add_ids(std::string(id));
        if (context.names.has_root()) request.add_ids(context.names.other_id(id));
    }
    BERTH_ASSIGN(v1::ListResponse response,
                 context.session.call<v1::ListResponse>(client::kGuestService, "List", request));
    std::vector<const v1::ContainerSummary*> shown;
    for (const v1::ContainerSummary& container : response.containers()) {
        if (context.names.owns(container.namespace_())) shown.push_back(&container);
    }
    std::string text;
    if (context.json || oci_json) {
        JsonText out;
        out.begin_array();
        for (const v1::ContainerSummary* container : shown) {
            if (context.json) {
                summary_json(out, *container);
            } else {
                state_json(out, context, *container);
            }
        }
        out.end_array();
        text = out.str() + "\n";
    } else if (context.arguments.has("quiet")) {
        for (const v1::ContainerSummary* container : shown)
            text += context.names.user_id(container->id()) + "\n";
    } else {
        text = list_table(context, shown);
    }
    print(text);
    return 0;
}

core::Result<int> exec_state(Context& context, const std::string& id, const std::string& exec_id) {
    pb::task::ProcessRequest request;
    request.set_id(id);
    request.set_exec_id(exec_id);
    BERTH_ASSIGN(pb::task::StateResponse state,
                 task_call<pb::task::StateResponse>(context, "State", request));
    JsonText out(context.json ? JsonText::Style::kCompact : JsonText::Style::kIndented);
    out.begin_object();
    out.text("id", context.user_id);
    out.text("execId", exec_id);
    out.number("pid", state.status() == pb::task::STOPPED ? 0 : state.pid());
    out.text("status", status_name(state.status()));
    out.boolean("terminal", state.terminal());
    if (state.status() == pb::task::STOPPED) {
        out.number("exitStatus", state.exit_status());
        out.text("exitedAt", rfc3339(state.exited_at().seconds(), state.exited_at().nanos()));
    }
    out.end_object();
    print(out.str() + "\n");
    return 0;
}

core::Result<int> state(Context& context) {
    BERTH_ASSIGN(std::string id, context.container());
    std::string exec_id(context.arguments.value("exec-id"));
    if (!exec_id.empty()) return exec_state(context, id, exec_id);
    v1::ListRequest request;
    request.add_ids(id);
    BERTH_ASSIGN(v1::ListResponse response,
                 context.session.call<v1::ListResponse>(client::kGuestService, "List", request));
    if (response.containers().empty()) {
        return core::make_error(core::Code::kNotFound,
                                "container " + core::quoted(context.user_id) + ": not found");
    }
    JsonText out(context.json ? JsonText::Style::kCompact : JsonText::Style::kIndented);
    state_json(out, context, response.containers(0));
    print(out.str() + "\n");
    return 0;
}

core::Result<std::vector<uint32_t>> pids_of(Context& context) {
    pb::task::ContainerRequest request;
    BERTH_ASSIGN(std::string id, context.container());
    request.set_id(id);
    BERTH_ASSIGN(pb::task::PidsResponse response,
                 task_call<pb::task::PidsResponse>(context, "Pids", request));
    std::vector<uint32_t> pids;
    for (const pb::task::ProcessInfo& process : response.processes()) pids.push_back(process.pid());
    return pids;
}

void print_pids_json(std::span<const uint32_t> pids) {
    JsonText out;
    out.begin_array();
    for (uint32_t pid : pids) out.item(uint64_t{pid});
    out.end_array();
    print(out.str() + "\n");
}

core::Result<int> pids(Context& context) {
    pb::task::ContainerRequest request;
    BERTH_ASSIGN(std::string id, context.container());
    request.set_id(id);
    BERTH_ASSIGN(pb::task::PidsResponse response,
                 task_call<pb::task::PidsResponse>(context, "Pids", request));
    if (context.json) {
        std::vector<uint32_t> numbers;
        for (const pb::task::ProcessInfo& process : response.processes()) numbers.push_back(process.pid());
        print_pids_json(numbers);
        return 0;
    }
    std::string text = "PID      EXEC\n";
    for (const pb::task::ProcessInfo& process : response.processes()) {
        text += core::format("%-7u  %s\n", process.pid(), process.info().value().c_str());
    }
    print(text);
    return 0;
}

core::Result<int> ps(Context& context) {
    std::span<const std::string_view> options(context.arguments.words());
    options = options.subspan(1);
    BERTH_ASSIGN(bool oci_json, wants_json(context.arguments));
    // Flags behind the id are those of ps, but for this one.
    if (!options.empty() && options[0].starts_with("--format")) {
        bool is_next = options[0] == "--format" && options.size() > 1;
        oci_json = options[0] == "--format=json" || (is_next && options[1] == "json");
        options = options.subspan(is_next ? 2 : 1);
    }
    if (!context.is_local() && !oci_json && options.empty()) return pids(context);
    BERTH_ASSIGN(std::vector<uint32_t> numbers, pids_of(context));
    if (context.json || oci_json) {
        print_pids_json(numbers);
        return 0;
    }
    if (!context.is_local())
        return core::make_error(core::Code::kUnimplemented, "options of ps: only beside the agent");
    BERTH_ASSIGN(std::string table, options.empty() ? core::Result<std::string>(process_table(numbers))
                                                    : process_table_of_ps(options, numbers));
    print(table);
    return 0;
}

constexpr Flag kFormat = {"format", 'f', Kind::kValue, "table|json  (default: table)"};
constexpr Flag kListFlags[] = {{"quiet", 'q', Kind::kSwitch, "only the ids"}, kFormat};
constexpr Flag kPsFlags[] = {kFormat};
constexpr Flag kStateFlags[] = {{"exec-id", 0, Kind::kValue, "ID  an exec instead of the init"}};
constexpr Arguments::Order kMixed = Arguments::Order::kMixed;

constexpr Command kCommands[] = {
    {"info", "", "what answers, and what it can and cannot do", {}, 0, 0, kMixed, 1, info},
    {"list", "[FLAGS] [ID...]", "containers", kListFlags, 0, SIZE_MAX, kMixed, 1, list},
    {"state", "[FLAGS] ID", "the state of a process as JSON", kStateFlags, 1, 1, kMixed, 1, state},
    {"ps", "[FLAGS] ID [OPTION OF PS...]", "the processes of a container", kPsFlags, 1, SIZE_MAX,
     Arguments::Order::kStopAtFirstWord, 1, ps},
    {"pids", "ID", "their pids, and which exec each is", {}, 1, 1, kMixed, 1, pids},
};

}  // namespace

std::span<const Command> report_commands() {
    return kCommands;
}

}  // namespace berth::ctl
