#include "agent/service/guest_service.h"

#include <sys/utsname.h>

#include "agent/service/decode.h"
#include "proto/berth/guest.pb.h"

namespace berth::service {
namespace {

using core::format;
using core::quoted;

// EventMessage{event = 2} around an event that is encoded already.
std::string event_message(const std::string& encoded) {
    std::string message;
    message.reserve(encoded.size() + 6);
    message.push_back('\x12');
    for (size_t rest = encoded.size();; rest >>= 7) {
        if (rest < 0x80) {
            message.push_back(static_cast<char>(rest));
            break;
        }
        message.push_back(static_cast<char>((rest & 0x7f) | 0x80));
    }
    return message.append(encoded);
}

const char* status_word(runtime::TaskStatus status) {
    switch (status) {
        case runtime::TaskStatus::kCreated: return "created";
        case runtime::TaskStatus::kRunning: return "running";
        case runtime::TaskStatus::kStopped: return "stopped";
        case runtime::TaskStatus::kPaused:
        case runtime::TaskStatus::kPausing: return "paused";
        case runtime::TaskStatus::kUnknown: return "creating";
    }
    return "unknown";
}

void fill_summary(v1::ContainerSummary& summary, const runtime::Container& container) {
    const runtime::Process& init = container.init();
    summary.set_id(container.id.text());
    summary.set_status(status_word(container.status()));
    summary.set_pid(static_cast<uint32_t>(init.pid));
    summary.set_bundle(container.bundle);
    summary.set_created_at_unix_ns(container.created_at_ns);
    if (init.exit) {
        summary.set_exit_status(init.exit->status);
        summary.set_exited_at_unix_ns(init.exit->at_unix_ns);
    }
    for (const auto& [key, value] : container.annotations) {
        pb::KeyValue& annotation = *summary.add_annotations();
        annotation.set_key(key);
        annotation.set_value(value);
    }
    container.fill_memory(*summary.mutable_memory());
    summary.set_namespace_(container.containerd_namespace);
    for (const auto& [exec_id, process] : container.execs) summary.add_execs(exec_id);
    summary.set_cgroup(container.cgroup_path);
}

}  // namespace

std::string GuestService::instance_id() const {
    const auto& id = runtime_.config().instance_id;
    return {reinterpret_cast<const char*>(id), sizeof id};
}

void GuestService::info(std::shared_ptr<Call> call) {
    const core::AgentConfig& config = runtime_.config();
    const runtime::GuestProbe& guest = runtime_.guest();
    v1::InfoResponse response;
    response.set_version(BERTH_VERSION);
    response.set_instance_id(instance_id());
    response.set_generation(config.generation);
    response.set_auth(config.auth_host_cid != 0 ? "host-cid" : config.has_secret != 0 ? "secret" : "local");
    timespec up{};
    clock_gettime(CLOCK_BOOTTIME, &up);
    response.set_uptime_ns(static_cast<uint64_t>(up.tv_sec) * 1'000'000'000 +
                           static_cast<uint64_t>(up.tv_nsec));
    utsname names{};
    if (uname(&names) == 0) {
        response.set_kernel_release(names.release);
        response.set_machine(names.machine);
    }
    response.set_page_size_bytes(static_cast<uint32_t>(sysconf(_SC_PAGESIZE)));
    for (const runtime::GuestFeature& feature : guest.features) {
        v1::Feature& out = *response.add_features();
        out.set_name(feature.name);
        out.set_available(feature.available);
        out.set_detail(feature.detail);
        if (!feature.available) out.set_refused(feature.refused);
    }
    for (const auto& [name, value] : runtime::limits_by_name()) {
        pb::Counter& limit = *response.add_limits();
        limit.set_key(name);
        limit.set_value(value);
    }
    for (const std::string& key : guest.unified_keys) response.add_unified_keys(key);
    response.set_agent_starts(config.agent_starts + 1);
    response.set_safe_mode(config.safe_mode != 0);
    response.set_last_sequence(runtime_.events().last_sequence());
    response.set_has_other_init(config.is_helper != 0);
    call->reply(response.SerializeAsString());
}

void GuestService::list(std::shared_ptr<Call> call) {
    auto request = decode<v1::ListRequest>(*call);
    if (!request) return;
    std::vector<const runtime::Container*> chosen;
    if (request->ids().empty()) {
        for (const auto& [id, container] : runtime_.containers()) chosen.push_back(container.get());
    } else {
        for (const std::string& id : request->ids()) {
            auto found = runtime_.containers().find(id);
            if (found != runtime_.containers().end()) chosen.push_back(found->second.get());
        }
    }
    std::stable_sort(chosen.begin(), chosen.end(),
                     [](const runtime::Container* a, const runtime::Container* b) {
                         return a->created_at_ns < b->created_at_ns;
                     });
    v1::ListResponse response;
    for (const runtime::Container* container : chosen) fill_summary(*response.add_containers(), *container);
    call->reply(response.SerializeAsString());
}

void GuestService::subscribe(std::shared_ptr<Call> call) {
    auto request = decode<v1::SubscribeRequest>(*call);
    if (!request) return;
    std::optional<uint64_t> since;
    if (request->has_since()) since = request->since();
    begin(std::move(call), Interest(), request->instance_id(), since);
}

void GuestService::watch_memory_events(std::shared_ptr<Call> call) {
    auto request = decode<v1::WatchMemoryEventsRequest>(*call);
    if (!request) return;
    Interest interest;
    interest.memory_only = true;
    if (static_cast<size_t>(request->containers_size()) > limits::kContainers) {
        return call->fail(core::invalid(
            format("containers: %d, at most %zu", request->containers_size(), limits::kContainers)));
    }
    for (const std::string& id : request->containers()) {
        auto parsed = core::ContainerId::parse(id);
        if (!parsed.ok()) return call->fail(std::move(parsed).error().within("containers"));
        interest.containers.insert(id);
    }
    std::optional<uint64_t> since;
    if (request->has_since()) since = request->since();
    begin(std::move(call), std::move(interest), request->instance_id(), since);
}

bool GuestService::Interest::wants(const v1::Event& event) const {
    if (memory_only && !event.has_memory()) return false;
    return containers.empty() || containers.contains(event.container_id());
}

v1::EventMessage GuestService::lost_message() const {
    v1::EventMessage message;
    v1::Lost& lost = *message.mutable_lost();
    lost.set_first_available_sequence(runtime_.events().first_sequence());
    lost.set_instance_id(instance_id());
    for (const auto& [id, container] : runtime_.containers()) {
        v1::ContainerMemory& memory = *lost.add_memory();
        memory.set_container_id(id);
        container->fill_memory(*memory.mutable_memory());
    }
    return message;
}

void GuestService::begin(std::shared_ptr<Call> call, Interest interest, const std::string& seen_instance,
                         std::optional<uint64_t> since) {
    runtime::EventHub& events = runtime_.events();
    if (!seen_instance.empty() && seen_instance.size() != sizeof runtime_.config().instance_id) {
        return call->fail(core::invalid("instance_id: must be empty or 16 bytes"));
    }
    v1::EventMessage first;
    first.mutable_subscribed()->set_instance_id(instance_id());
    first.mutable_subscribed()->set_last_sequence(events.last_sequence());
    bool open = call->send(first.SerializeAsString());
    uint64_t from = events.last_sequence() + 1;
    if (since) {
        bool other_guest = !seen_instance.empty() && seen_instance != instance_id();
        bool from_the_future = *since > events.last_sequence();
        from = other_guest || from_the_future ? events.first_sequence() : *since + 1;
        bool forgotten = *since != 0 && from < events.first_sequence();
        if (open && (other_guest || from_the_future || forgotten))
            open = call->send(lost_message().SerializeAsString());
        if (from < events.first_sequence()) from = events.first_sequence();
    }
    if (!open || !replay(*call, interest, from)) return end_as_too_slow(*call);
    Call* key = call.get();
    subscribers_.push_back({call, std::move(interest)});
    call->on_end([this, key](core::Code) {
        std::erase_if(subscribers_,
                      [key](const Subscriber& subscriber) { return subscriber.call.get() == key; });
    });
}

bool GuestService::replay(Call& call, const Interest& interest, uint64_t from) {
    for (uint64_t sequence = from; sequence <= runtime_.events().last_sequence(); ++sequence) {
        std::optional<std::string> encoded = runtime_.events().read(sequence);
        if (!encoded) continue;
        v1::Event event;
        if ((interest.memory_only || !interest.containers.empty()) &&
            (!event.ParseFromString(*encoded) || !interest.wants(event))) {
            continue;
        }
        if (!call.send(event_message(*encoded))) return false;
    }
    return true;
}

void GuestService::end_as_too_slow(Call& call) {
    // The queue has room for this one marker: the subscriber learns that it must ask again from where it was.
    call.send(lost_message().SerializeAsString());
    call.finish();
}

void GuestService::on_event(const v1::Event& event, const std::string& encoded, const runtime::Container*) {
    if (event.has_deleted() && event.exec_id().empty()) end_pressure_of(event.container_id());
    if (subscribers_.empty()) return;
    std::string message = event_message(encoded);
    std::vector<std::shared_ptr<Call>> too_slow;
    for (Subscriber& subscriber : subscribers_) {
        if (!subscriber.interest.wants(event)) continue;
        if (!subscriber.call->send(message)) too_slow.push_back(subscriber.call);
    }
    for (const std::shared_ptr<Call>& call : too_slow) {
        std::erase_if(subscribers_,
                      [&call](const Subscriber& subscriber) { return subscriber.call == call; });
        end_as_too_slow(*call);
    }
}

void GuestService::open_stream(std::shared_ptr<Call> call) {
    auto request = decode<v1::OpenStreamRequest>(*call);
    if (!request) return;
    auto id = value_or_fail(*call, core::ContainerId::parse(request->container_id()));
    if (!id) return;
    auto exec_id = value_or_fail(*call, core::ExecId::parse(request->exec_id()));
    if (!exec_id) return;
    if (request->stream() < v1::STREAM_STDIN || request->stream() > v1::STREAM_STDERR) {
        return call->fail(core::invalid(format("stream: %d is none of the three", request->stream())));
    }
    auto kind = static_cast<runtime::StreamKind>(request->stream());
    std::optional<uint64_t> resume;
    if (request->has_resume_offset()) resume = request->resume_offset();
    auto ticket =
        value_or_fail(*call, runtime_.streams().open_stream(id->text(), exec_id->text(), kind, resume));
    if (!ticket) return;
    v1::OpenStreamResponse response;
    response.set_ticket(reinterpret_cast<const char*>(ticket->data()), ticket->size());
    response.set_lifetime_ms(static_cast<uint32_t>(limits::kTicketLifetimeMs));
    call->reply(response.SerializeAsString());
}

}  // namespace berth::service
