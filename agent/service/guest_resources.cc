// berth.v1.Guest: SetSandboxResources, StatsAll, WatchPressure.
#include "agent/service/decode.h"
#include "agent/service/guest_service.h"
#include "proto/berth/guest.pb.h"

namespace berth::service {
namespace {

using core::format;
using core::quoted;

void fill_line(const core::PressureLine& from, v1::PressureLine& to) {
    to.set_avg10(from.avg10);
    to.set_avg60(from.avg60);
    to.set_avg300(from.avg300);
    to.set_total_us(from.total);
}

std::string pressure_message(const core::Pressure& pressure, bool armed) {
    v1::PressureMessage message;
    message.set_armed(armed);
    message.set_time_unix_ns(runtime::unix_time_ns());
    fill_line(pressure.some, *message.mutable_some());
    fill_line(pressure.full, *message.mutable_full());
    return message.SerializeAsString();
}

const char* pressure_file(v1::PressureResource resource) {
    switch (static_cast<int>(resource)) {
        case v1::PRESSURE_RESOURCE_MEMORY: return "memory.pressure";
        case v1::PRESSURE_RESOURCE_CPU: return "cpu.pressure";
        case v1::PRESSURE_RESOURCE_IO: return "io.pressure";
        default: return nullptr;
    }
}

}  // namespace

void GuestService::set_sandbox_resources(std::shared_ptr<Call> call) {
    auto request = decode<v1::SetSandboxResourcesRequest>(*call);
    if (!request) return;
    call->on_end([this](core::Code why) {
        if (why != core::Code::kDeadlineExceeded) return;
        runtime_.cancel_sandbox_update(core::make_error(why, "the caller's deadline passed"));
    });
    runtime_.update_sandbox(request->resources(), [call](core::Status status) {
        if (!status.ok()) return call->fail(status.error());
        reply_empty(*call);
    });
}

void GuestService::stats_all(std::shared_ptr<Call> call) {
    auto request = decode<v1::StatsAllRequest>(*call);
    if (!request) return;
    if (static_cast<size_t>(request->ids_size()) > limits::kContainers)
        return call->fail(
            core::invalid(format("ids: %d, at most %zu", request->ids_size(), limits::kContainers)));
    std::vector<std::string> ids(request->ids().begin(), request->ids().end());
    Call* key = call.get();
    call->on_end([this, key](core::Code) { forget_sweep(key); });
    Sweep& entry = sweeps_.emplace_back();
    entry.call = std::move(call);
    entry.sandbox = request->sandbox();
    entry.sweep = std::make_unique<runtime::StatsSweep>(
        runtime_, std::move(ids), [this, key](std::vector<runtime::StatsSweep::Entry> entries) {
            answer_sweep(key, std::move(entries));
        });
}

void GuestService::answer_sweep(Call* key, std::vector<runtime::StatsSweep::Entry> entries) {
    for (Sweep& sweep : sweeps_) {
        if (sweep.call.get() != key) continue;
        v1::StatsAllResponse response;
        for (runtime::StatsSweep::Entry& entry : entries) {
            v1::ContainerStats& stats = *response.add_containers();
            stats.set_id(std::move(entry.id));
            stats.mutable_stats()->set_type_url(runtime::kMetricsType);
            stats.mutable_stats()->set_value(std::move(entry.metrics));
        }
        if (sweep.sandbox) {
            response.mutable_sandbox()->set_type_url(runtime::kMetricsType);
            response.mutable_sandbox()->set_value(
                runtime::read_metrics(runtime_.sandbox_cgroup(), runtime_.guest().cgroup.files));
        }
        std::shared_ptr<Call> call = sweep.call;
        forget_sweep(key);
        runtime_.trim_heap_later();
        return call->reply(response.SerializeAsString());
    }
}

void GuestService::forget_sweep(Call* key) {
    std::erase_if(sweeps_, [key](const Sweep& sweep) { return sweep.call.get() == key; });
}

void GuestService::watch_pressure(std::shared_ptr<Call> call) {
    auto request = decode<v1::WatchPressureRequest>(*call);
    if (!request) return;
    std::string where = request->container_id().empty()
                            ? "watch the pressure of the sandbox"
                            : format("watch the pressure of %s", quoted(request->container_id()).c_str());
    auto refuse = [&](core::Error error) { call->fail(std::move(error).within(where)); };
    const char* file = pressure_file(request->resource());
    if (file == nullptr)
        return refuse(core::invalid(format("resource: %d is none of the three", request->resource())));
    if (pressure_watchers_.size() >= limits::kPressureWatches) {
        return refuse(core::make_error(
            core::Code::kResourceExhausted,
            format("%zu are watched, at most %zu", pressure_watchers_.size(), limits::kPressureWatches)));
    }
    sys::FdRef cgroup = runtime_.sandbox_cgroup();
    if (!request->container_id().empty()) {
        auto id = core::ContainerId::parse(request->container_id());
        if (!id.ok()) return refuse(std::move(id).error());
        auto container = runtime_.find(*id);
        if (!container.ok()) return refuse(std::move(container).error());
        cgroup = (*container)->cgroup.outer;
    }
    std::string trigger =
        format("%s %u %u", request->full() ? "full" : "some", request->stall_us(), request->window_us());
    Call* key = call.get();
    auto watch = runtime::PressureWatch::begin(
        runtime_.loop(), cgroup, file, trigger,
        [this, key](const core::Pressure& pressure) { tell_pressure(key, pressure); });
    if (!watch.ok()) return refuse(std::move(watch).error());
    call->on_end([this, key](core::Code) { forget_pressure(key); });
    if (!call->send(pressure_message((*watch)->first(), true))) {
        (*watch)->retire();
        return call->finish();
    }
    pressure_watchers_.push_back({std::move(call), request->container_id(), std::move(*watch)});
}

void GuestService::tell_pressure(Call* key, const core::Pressure& pressure) {
    for (PressureWatcher& watcher : pressure_watchers_) {
        if (watcher.call.get() != key) continue;
        if (watcher.call->send(pressure_message(pressure, false))) return;
        // It does not read: what it misses is old by the time that it would.
        std::shared_ptr<Call> call = watcher.call;
        forget_pressure(key);
        return call->finish();
    }
}

void GuestService::forget_pressure(Call* key) {
    std::erase_if(pressure_watchers_, [key](const PressureWatcher& watcher) {
        if (watcher.call.get() != key) return false;
        watcher.watch->retire();
        return true;
    });
}

void GuestService::end_pressure_of(const std::string& container) {
    std::vector<std::shared_ptr<Call>> ended;
    for (const PressureWatcher& watcher : pressure_watchers_) {
        if (!watcher.container.empty() && watcher.container == container) ended.push_back(watcher.call);
    }
    for (const std::shared_ptr<Call>& call : ended) {
        forget_pressure(call.get());
        call->finish();
    }
}

}  // namespace berth::service
