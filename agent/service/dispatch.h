// From a call's service and method to the function that answers it; the read-only list and the safe mode are
// enforced here.
#pragma once

#include <memory>

#include "agent/runtime/runtime.h"
#include "agent/service/call.h"
#include "agent/service/events_service.h"
#include "agent/service/guest_service.h"
#include "agent/service/task_service.h"

namespace berth::service {

class Dispatch final : public CallHandler {
 public:
    explicit Dispatch(runtime::Runtime& runtime)
        : runtime_(runtime), task_(runtime), events_(runtime), guest_(runtime) {}

    // UNIMPLEMENTED: unknown service or method. PERMISSION_DENIED: not in the read-only list. UNAVAILABLE:
    // safe mode.
    void handle(std::shared_ptr<Call> call) override;

 private:
    runtime::Runtime& runtime_;
    TaskService task_;
    EventsService events_;
    GuestService guest_;
};

}  // namespace berth::service
