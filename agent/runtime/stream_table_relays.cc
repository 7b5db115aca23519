// The table's connections to the host: found, adopted, drained, ended.
#include <algorithm>
#include <utility>

#include "agent/core/text.h"
#include "agent/runtime/stream_table.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

constexpr std::pair<StreamKind, const char*> kNames[] = {
    {StreamKind::kStdin, "in"}, {StreamKind::kStdout, "out"}, {StreamKind::kStderr, "err"}};

}  // namespace

std::string StreamTable::relay_prefix_of(const StreamId& id, bool is_draining) {
    return core::format("%c/%s/vsock/%s/%s/", is_draining ? 'd' : 'c', id.container.c_str(), id.exec.c_str(),
                        kNames[static_cast<size_t>(id.kind) - 1].second);
}

HostRelay* StreamTable::relay(const StreamId& id) {
    auto found = relays_.find(id);
    return found == relays_.end() ? nullptr : found->second.get();
}

void StreamTable::erase_relay(const StreamId& id) {
    auto found = relays_.find(id);
    if (found == relays_.end()) return;
    found->second->release();
    dying_relays_.push_back(std::move(found->second));
    relays_.erase(found);
    sweep_.post();
}

// Delete of its process: what was written is still delivered, in its own time.
void StreamTable::remove_relay(const StreamId& id) {
    HostRelay* found = relay(id);
    if (found == nullptr) return;
    if (id.kind == StreamKind::kStdin || found->state() != HostRelay::State::kOpen) return erase_relay(id);
    std::unique_ptr<HostRelay> relay = std::move(relays_[id]);
    relays_.erase(id);
    drain_relay(std::move(relay));
}

void StreamTable::drain_relay(std::unique_ptr<HostRelay> relay) {
    // A deleted namesake's is as lost as if its time were over: their names in the store are the same.
    for (auto& [until, older] : draining_relays_) {
        if (older->id() == relay->id()) until = 0;
    }
    if (draining_relays_.size() >= limits::kDrainingStreams) draining_relays_.front().first = 0;
    on_relay_drain_over();
    relay->rename(relay_prefix_of(relay->id(), true));
    draining_relays_.emplace_back(context_.loop.now_ns() + limits::kDrainAfterDeleteMs * 1'000'000,
                                  std::move(relay));
    if (!relay_drain_.armed()) relay_drain_.arm_at_ns(draining_relays_.front().first);
}

void StreamTable::on_relay_drain_over() {
    auto is_over = [&](const auto& each) { return each.first <= context_.loop.now_ns(); };
    for (auto& [until, relay] : draining_relays_) {
        if (until > context_.loop.now_ns()) continue;
        size_t lost = relay->undelivered();
        relay->release();
        if (lost > 0 && on_lost) on_lost(relay->id(), lost);
        dying_relays_.push_back(std::move(relay));
        sweep_.post();
    }
    std::erase_if(draining_relays_, is_over);
    relay_drain_.disarm();
    if (!draining_relays_.empty()) relay_drain_.arm_at_ns(draining_relays_.front().first);
}

void StreamTable::on_relay_changed() {
    sweep_.post();
}

void StreamTable::sweep_relays() {
    std::erase_if(dying_relays_, [](const auto& relay) { return relay->is_idle(); });
    for (auto& [until, relay] : draining_relays_) {
        if (relay->state() == HostRelay::State::kOver) until = 0;
    }
    if (!draining_relays_.empty()) on_relay_drain_over();
    std::erase_if(dying_relays_, [](const auto& relay) { return relay->is_idle(); });
}

// ---- after a restart ----

bool StreamTable::adopt_relay(const std::vector<std::string_view>& parts, sys::UniqueFd& fd) {
    for (const auto& [kind, name] : kNames) {
        if (parts[4] != name) continue;
        StreamId id{std::string(parts[1]), std::string(parts[3]), kind};
        bool is_draining = parts[0] == "d";
        std::unique_ptr<HostRelay>& relay = is_draining ? adopted_draining_[id] : relays_[id];
        if (relay == nullptr) {
            relay = std::make_unique<HostRelay>(context_.loop, store_, *this, id,
                                                relay_prefix_of(id, is_draining));
        }
        return relay->adopt(parts[5], std::move(fd));
    }
    return false;
}

void StreamTable::adopt_relays() {
    std::vector<StreamId> renamed;
    for (auto& [id, relay] : adopted_draining_) {
        // Killed while it was renamed, the keeper has it under both names: then the renaming is done again.
        if (relays_.contains(id)) {
            relay->release();
            renamed.push_back(id);
        } else if (relay->resume()) {
            drain_relay(std::move(relay));
        } else {
            relay->release();
        }
    }
    adopted_draining_.clear();
    std::vector<StreamId> unusable;
    for (auto& [id, relay] : relays_) {
        if (!relay->resume()) unusable.push_back(id);
    }
    for (const StreamId& id : unusable) erase_relay(id);
    for (const StreamId& id : renamed) remove_relay(id);
}

}  // namespace berth::runtime
