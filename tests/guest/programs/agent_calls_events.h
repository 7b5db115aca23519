// The part of agent_calls.cc that is about memory.events and pressure. Included by it alone.
#pragma once

namespace {

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
    // The next one starts at once: when all that run end in step, nothing else would ever send an event.
    auto ended = [&](const std::string& id) {
        if (counts[id].kills >= each && running.erase(id) > 0) fill();
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
            if (!message.ok()) {
                for (const std::string& id : running) {
                    printf("%s: counted %llu, memory.events has %llu\n", id.c_str(),
                           static_cast<unsigned long long>(counts[id].kills),
                           static_cast<unsigned long long>(
                               number_in(cgroup_of(id) + "/memory.events", "oom_kill")));
                }
                give_up("events: " + message.error().message);
            }
            if (message->has_lost()) {
                // Too far behind for the log: the totals tell what was missed.
                for (const v1::ContainerMemory& memory : message->lost().memory()) {
                    Count& count = counts[memory.container_id()];
                    seen += memory.memory().total().oom_kill() - count.total;
                    count.kills += memory.memory().total().oom_kill() - count.total;
                    count.total = memory.memory().total().oom_kill();
                    ended(memory.container_id());
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
            ended(event.container_id());
        }
        options.position = events.position();
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

// How much of `file`'s mapping the process of that name has in memory.
uint64_t mapped_bytes(const std::string& name, const std::string& file) {
    for (const std::string& pid : list("/proc")) {
        if (read_file("/proc/" + pid + "/cmdline").find(name) != 0) continue;
        std::string smaps = read_file("/proc/" + pid + "/smaps");
        size_t at = smaps.find(file);
        if (at == std::string::npos) return 0;
        return strtoull(smaps.c_str() + smaps.find("Rss:", at) + 4, nullptr, 10) << 10;
    }
    return 0;
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
    for (uint64_t i = 0; i < 3 * entries / 2;) {
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
    // Three times what the log keeps went through it; the pages of what it does not keep are not kept either.
    uint64_t kept_bytes = mapped_bytes("berth-agent", "/memfd:memory/events");
    printf("the log's memory: %llu bytes\n", static_cast<unsigned long long>(kept_bytes));
    expect(kept_bytes > 0 && kept_bytes <= entries * (16 + 64) + (64 << 10), "the log's memory grows");
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
