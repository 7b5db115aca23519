// containerd.services.events.v1.Events: a live stream of envelopes, filtered as containerd does.
#pragma once

#include <list>
#include <memory>

#include "agent/runtime/runtime.h"
#include "agent/service/call.h"
#include "agent/service/event_filter.h"

namespace berth::service {

class EventsService final : public runtime::EventListener {
 public:
    explicit EventsService(runtime::Runtime& runtime) : runtime_(runtime) { runtime_.events().add(*this); }
    ~EventsService() override { runtime_.events().remove(*this); }

    void subscribe(std::shared_ptr<Call> call);
    void on_event(const v1::Event& event, const std::string& encoded,
                  const runtime::Container* container) override;

 private:
    struct Subscriber {
        std::shared_ptr<Call> call;
        EventFilter filter;
    };
    runtime::Runtime& runtime_;
    std::list<Subscriber> subscribers_;
};

}  // namespace berth::service
