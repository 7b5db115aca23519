#include "agent/service/events_service.h"

#include "agent/service/decode.h"
#include "proto/containerd/events.pb.h"

namespace berth::service {
namespace {

struct Topic {
    std::string topic;
    std::string type;
    std::string body;
};

template <typename Message>
Topic topic(const char* name, const char* type, const Message& body) {
    return {name, type, body.SerializeAsString()};
}

Topic create_topic(const v1::Event& event, const runtime::Container* container) {
    pb::events::TaskCreate body;
    body.set_container_id(event.container_id());
    body.set_pid(event.created().pid());
    if (container != nullptr) {
        body.set_bundle(container->bundle);
        const runtime::StdioPaths& paths = container->init().paths();
        body.mutable_io()->set_stdin(paths.in);
        body.mutable_io()->set_stdout(paths.out);
        body.mutable_io()->set_stderr(paths.err);
        body.mutable_io()->set_terminal(paths.terminal);
        for (const core::RootfsMount& mount : container->rootfs) {
            pb::Mount& out = *body.add_rootfs();
            out.set_type(mount.type);
            out.set_source(mount.source);
            out.set_target(mount.target);
            for (const std::string& option : mount.options) out.add_options(option);
        }
    }
    return topic("/tasks/create", "containerd.events.TaskCreate", body);
}

Topic exit_topic(const v1::Event& event) {
    pb::events::TaskExit body;
    body.set_container_id(event.container_id());
    body.set_id(event.exec_id().empty() ? event.container_id() : event.exec_id());
    body.set_pid(event.exited().pid());
    body.set_exit_status(event.exited().exit_status());
    set_timestamp(*body.mutable_exited_at(), event.exited().exited_at_unix_ns());
    return topic("/tasks/exit", "containerd.events.TaskExit", body);
}

Topic delete_topic(const v1::Event& event, const runtime::Container* container) {
    pb::events::TaskDelete body;
    body.set_container_id(event.container_id());
    body.set_id(event.exec_id().empty() ? event.container_id() : event.exec_id());
    if (container != nullptr) {
        if (const runtime::Process* process = container->find_process(event.exec_id()); process != nullptr) {
            body.set_pid(static_cast<uint32_t>(process->pid));
            if (process->exit) {
                body.set_exit_status(process->exit->status);
                set_timestamp(*body.mutable_exited_at(), process->exit->at_unix_ns);
            }
        }
    }
    return topic("/tasks/delete", "containerd.events.TaskDelete", body);
}

// Several of containerd's messages have the same fields.
Topic notice(const char* name, const char* type, const v1::Event& event, uint32_t pid = 0) {
    pb::events::TaskNotice body;
    body.set_container_id(event.container_id());
    body.set_exec_id(event.exec_id());
    body.set_pid(pid);
    return topic(name, type, body);
}

// containerd's topic and message for an event; nothing for what only our own stream tells.
std::optional<Topic> topic_of(const v1::Event& event, const runtime::Container* container) {
    switch (event.what_case()) {
        case v1::Event::kCreated: return create_topic(event, container);
        case v1::Event::kStarted: {
            pb::events::TaskStart body;
            body.set_container_id(event.container_id());
            body.set_pid(event.started().pid());
            return topic("/tasks/start", "containerd.events.TaskStart", body);
        }
        case v1::Event::kExecAdded:
            return notice("/tasks/exec-added", "containerd.events.TaskExecAdded", event);
        case v1::Event::kExecStarted:
            return notice("/tasks/exec-started", "containerd.events.TaskExecStarted", event,
                          event.exec_started().pid());
        case v1::Event::kExited: return exit_topic(event);
        case v1::Event::kDeleted: return delete_topic(event, container);
        case v1::Event::kPaused: return notice("/tasks/paused", "containerd.events.TaskPaused", event);
        case v1::Event::kResumed: return notice("/tasks/resumed", "containerd.events.TaskResumed", event);
        case v1::Event::kMemory:
            // containerd's word for an OOM kill; `oom` alone (an allocation that failed) is not one.
            if (event.memory().total_increase().oom_kill() == 0) return std::nullopt;
            return notice("/tasks/oom", "containerd.events.TaskOOM", event);
        case v1::Event::kStdioLost:
        case v1::Event::kAgentRestarted:
        case v1::Event::WHAT_NOT_SET: return std::nullopt;
    }
    return std::nullopt;
}

}  // namespace

void EventsService::subscribe(std::shared_ptr<Call> call) {
    auto request = decode<pb::events::SubscribeRequest>(*call);
    if (!request) return;
    std::vector<std::string> filters(request->filters().begin(), request->filters().end());
    auto filter = value_or_fail(*call, EventFilter::parse(filters));
    if (!filter) return;
    Call* key = call.get();
    subscribers_.push_back({call, std::move(*filter)});
    call->on_end([this, key](core::Code) {
        std::erase_if(subscribers_,
                      [key](const Subscriber& subscriber) { return subscriber.call.get() == key; });
    });
}

void EventsService::on_event(const v1::Event& event, const std::string&,
                             const runtime::Container* container) {
    if (subscribers_.empty()) return;
    std::optional<Topic> found = topic_of(event, container);
    if (!found) return;
    pb::events::Envelope envelope;
    set_timestamp(*envelope.mutable_timestamp(), event.time_unix_ns());
    envelope.set_namespace_(event.namespace_());
    envelope.set_topic(found->topic);
    envelope.mutable_event()->set_type_url(found->type);
    envelope.mutable_event()->set_value(found->body);
    std::string encoded = envelope.SerializeAsString();
    std::vector<std::shared_ptr<Call>> too_slow;
    for (Subscriber& subscriber : subscribers_) {
        if (!subscriber.filter.matches({found->topic, event.namespace_(), event.container_id()})) continue;
        if (!subscriber.call->send(encoded)) too_slow.push_back(subscriber.call);
    }
    for (const std::shared_ptr<Call>& call : too_slow) {
        std::erase_if(subscribers_,
                      [&call](const Subscriber& subscriber) { return subscriber.call == call; });
        call->fail(core::make_error(core::Code::kResourceExhausted,
                                    "Subscribe: the subscriber does not read its events"));
    }
}

}  // namespace berth::service
