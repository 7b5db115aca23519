#include "agent/service/dispatch.h"

#include <string_view>

#include "agent/core/text.h"

namespace berth::service {
namespace {

enum Permission : uint8_t { kNone = 0, kReadOnlyMay = 1, kSafeModeMay = 2 };

struct TaskMethod {
    std::string_view name;
    void (TaskService::*handler)(std::shared_ptr<Call>);
    int permissions;
};
constexpr TaskMethod kTaskMethods[] = {
    {"State", &TaskService::state, kReadOnlyMay | kSafeModeMay},
    {"Create", &TaskService::create, kNone},
    {"Start", &TaskService::start, kNone},
    {"Delete", &TaskService::remove, kSafeModeMay},
    {"Pids", &TaskService::pids, kReadOnlyMay},
    {"Pause", &TaskService::pause, kNone},
    {"Resume", &TaskService::resume, kNone},
    {"Checkpoint", &TaskService::checkpoint, kNone},
    {"Kill", &TaskService::kill, kSafeModeMay},
    {"Exec", &TaskService::exec, kNone},
    {"ResizePty", &TaskService::resize_pty, kNone},
    {"CloseIO", &TaskService::close_io, kNone},
    {"Update", &TaskService::update, kNone},
    {"Wait", &TaskService::wait, kReadOnlyMay},
    {"Stats", &TaskService::stats, kReadOnlyMay},
    {"Connect", &TaskService::connect, kReadOnlyMay},
    {"Shutdown", &TaskService::shutdown, kSafeModeMay},
};

struct GuestMethod {
    std::string_view name;
    void (GuestService::*handler)(std::shared_ptr<Call>);
    int permissions;
};
constexpr GuestMethod kGuestMethods[] = {
    {"Info", &GuestService::info, kReadOnlyMay | kSafeModeMay},
    {"List", &GuestService::list, kReadOnlyMay | kSafeModeMay},
    {"Subscribe", &GuestService::subscribe, kReadOnlyMay},
    {"WatchMemoryEvents", &GuestService::watch_memory_events, kReadOnlyMay},
    {"OpenStream", &GuestService::open_stream, kNone},
    {"SetSandboxResources", &GuestService::set_sandbox_resources, kNone},
    {"StatsAll", &GuestService::stats_all, kReadOnlyMay},
    {"WatchPressure", &GuestService::watch_pressure, kReadOnlyMay},
};

struct EventsMethod {
    std::string_view name;
    void (EventsService::*handler)(std::shared_ptr<Call>);
    int permissions;
};
constexpr EventsMethod kEventsMethods[] = {{"Subscribe", &EventsService::subscribe, kReadOnlyMay}};

template <typename Service, typename Table>
void route(Service& service, const Table& table, bool safe_mode, std::shared_ptr<Call> call) {
    for (const auto& method : table) {
        if (method.name != call->method) continue;
        if (call->access == AccessClass::kReadOnly && (method.permissions & kReadOnlyMay) == 0) {
            call->fail(
                core::make_error(core::Code::kPermissionDenied,
                                 core::format("%s: not on a read-only connection", call->method.c_str())));
        } else if (safe_mode && (method.permissions & kSafeModeMay) == 0) {
            call->fail(core::make_error(
                core::Code::kUnavailable,
                core::format("%s: the agent is in safe mode after repeated crashes", call->method.c_str())));
        } else {
            (service.*method.handler)(std::move(call));
        }
        return;
    }
    call->fail(core::make_error(
        core::Code::kUnimplemented,
        core::format("%s: no method %s", call->service.c_str(), core::quoted(call->method).c_str())));
}

}  // namespace

void Dispatch::handle(std::shared_ptr<Call> call) {
    bool safe_mode = runtime_.config().safe_mode != 0;
    if (call->service == "containerd.task.v3.Task" || call->service == "containerd.task.v2.Task") {
        route(task_, kTaskMethods, safe_mode, std::move(call));
    } else if (call->service == "containerd.services.events.v1.Events") {
        route(events_, kEventsMethods, safe_mode, std::move(call));
    } else if (call->service == "berth.v1.Guest") {
        route(guest_, kGuestMethods, safe_mode, std::move(call));
    } else {
        call->fail(core::make_error(core::Code::kUnimplemented,
                                    core::format("no service %s", core::quoted(call->service).c_str())));
    }
}

}  // namespace berth::service
