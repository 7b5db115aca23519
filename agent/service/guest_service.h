// berth.v1.Guest: what containerd has no word for.
#pragma once

#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/runtime/pressure.h"
#include "agent/runtime/runtime.h"
#include "agent/runtime/stats.h"
#include "agent/service/call.h"

namespace berth::service {

class GuestService final : public runtime::EventListener {
 public:
    explicit GuestService(runtime::Runtime& runtime) : runtime_(runtime) { runtime_.events().add(*this); }
    ~GuestService() override { runtime_.events().remove(*this); }

    void info(std::shared_ptr<Call> call);
    void list(std::shared_ptr<Call> call);
    void subscribe(std::shared_ptr<Call> call);
    void watch_memory_events(std::shared_ptr<Call> call);
    void open_stream(std::shared_ptr<Call> call);
    void set_sandbox_resources(std::shared_ptr<Call> call);
    void stats_all(std::shared_ptr<Call> call);
    void watch_pressure(std::shared_ptr<Call> call);

    void on_event(const v1::Event& event, const std::string& encoded,
                  const runtime::Container* container) override;

 private:
    // What a subscriber wants: everything, or only memory events, of all or some containers.
    struct Interest {
        bool memory_only = false;
        std::set<std::string> containers;  // empty: all
        bool wants(const v1::Event& event) const;
    };
    struct Subscriber {
        std::shared_ptr<Call> call;
        Interest interest;
    };
    void begin(std::shared_ptr<Call> call, Interest interest, const std::string& instance_id,
               std::optional<uint64_t> since);
    bool replay(Call& call, const Interest& interest, uint64_t from);
    v1::EventMessage lost_message() const;
    void end_as_too_slow(Call& call);
    std::string instance_id() const;

    // A WatchPressure call.
    struct PressureWatcher {
        std::shared_ptr<Call> call;
        std::string container;  // empty: the sandbox
        std::shared_ptr<runtime::PressureWatch> watch;
    };
    void tell_pressure(Call* key, const core::Pressure& pressure);
    void forget_pressure(Call* key);
    void end_pressure_of(const std::string& container);
    // A StatsAll call whose containers are being read.
    struct Sweep {
        std::shared_ptr<Call> call;
        std::unique_ptr<runtime::StatsSweep> sweep;
        bool sandbox;
    };
    void forget_sweep(Call* key);
    void answer_sweep(Call* key, std::vector<runtime::StatsSweep::Entry> entries);

    runtime::Runtime& runtime_;
    std::list<Subscriber> subscribers_;
    std::list<PressureWatcher> pressure_watchers_;
    std::list<Sweep> sweeps_;
};

}  // namespace berth::service
