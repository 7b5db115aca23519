#include "agent/runtime/stream_table.h"

#include <algorithm>
#include <utility>

#include "agent/core/text.h"
#include "agent/sys/entropy.h"
#include "agent/sys/log.h"

namespace berth::runtime {
namespace {

const char* short_name(StreamKind kind) {
    switch (kind) {
        case StreamKind::kStdin: return "in";
        case StreamKind::kStdout: return "out";
        case StreamKind::kStderr: return "err";
    }
    return "";
}

std::optional<StreamKind> kind_of(std::string_view name) {
    for (StreamKind kind : {StreamKind::kStdin, StreamKind::kStdout, StreamKind::kStderr}) {
        if (name == short_name(kind)) return kind;
    }
    return std::nullopt;
}

SlotUse use_of(StreamKind kind) {
    return kind == StreamKind::kStdin ? SlotUse::kInput : SlotUse::kOutput;
}

// Of a connection whose stream is gone.
class Nobody final : public AttachmentClient {
 public:
    void on_frame(Attachment&, const wire::StreamEvent&) override {}
    void on_sendable(Attachment&) override {}
    void on_gone(Attachment&) override {}
};
Nobody nobody;

constexpr StreamKind kKinds[] = {StreamKind::kStdin, StreamKind::kStdout, StreamKind::kStderr};

}  // namespace

StreamTable::StreamTable(loop::Loop& loop, FdStore& store)
    : store_(store),
      context_{loop, store, ledger_, tools_, buffers_, *this},
      sweep_(loop, loop::Task::to<&StreamTable::sweep, StreamTable>(), this),
      relay_drain_(loop, loop::Timer::to<&StreamTable::on_relay_drain_over, StreamTable>(), this),
      report_(loop, loop::Timer::to<&StreamTable::on_report, StreamTable>(), this) {}

StreamTable::~StreamTable() {
    streams_.clear();  // they let go of their attachments
    dying_.clear();
    attachments_.clear();
}

core::Status StreamTable::open(std::span<std::byte> ledger) {
    ledger_.open(ledger);
    BERTH_ASSIGN(tools_, PipeTools::create());
    return core::ok();
}

// ---- entries ----

std::string StreamTable::prefix_of(const StreamId& id, uint32_t slot, bool is_draining) {
    return core::format("%c/%s/stdio/%s/%s@%u/", is_draining ? 'd' : 'c', id.container.c_str(),
                        id.exec.c_str(), short_name(id.kind), slot);
}

StreamTable::Entry* StreamTable::insert(StreamId id, uint32_t slot, SlotUse use, bool is_draining) {
    Entry& entry = streams_[id];
    std::string prefix = prefix_of(id, slot, is_draining);
    if (use == SlotUse::kInput) {
        entry.stream = std::make_unique<InputStream>(context_, std::move(id), slot, std::move(prefix));
    } else {
        entry.stream = std::make_unique<OutputStream>(context_, std::move(id), slot, std::move(prefix));
    }
    entry.key = ++last_key_;
    entry.table = this;
    return &entry;
}

core::Result<StreamTable::Entry*> StreamTable::add(StreamId id, SlotUse use, uint8_t flags) {
    if (Entry* old = find(id); old != nullptr) {
        // Of a deleted namesake: its last output is as lost as if its time were over.
        if (!old->is_draining) return core::make_error(core::Code::kAlreadyExists, describe(id) + " exists");
        on_drain_over(old);
    }
    std::optional<uint32_t> slot = ledger_.allocate(use, flags);
    if (!slot) {
        return core::make_error(
            core::Code::kResourceExhausted,
            core::format("%s: all %zu streams are in use", describe(id).c_str(), ledger_.size()));
    }
    return insert(std::move(id), *slot, use, false);
}

StreamTable::Entry* StreamTable::find(const StreamId& id) {
    auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : &found->second;
}

StreamTable::Entry* StreamTable::find(uint64_t key) {
    for (auto& [id, entry] : streams_) {
        if (entry.key == key) return &entry;
    }
    return nullptr;
}

OutputStream* StreamTable::output(const std::string& container, const std::string& exec, StreamKind kind) {
    BERTH_CHECK(kind != StreamKind::kStdin);
    Entry* entry = find(StreamId{container, exec, kind});
    return entry == nullptr ? nullptr : static_cast<OutputStream*>(entry->stream.get());
}

InputStream* StreamTable::input(const std::string& container, const std::string& exec) {
    Entry* entry = find(StreamId{container, exec, StreamKind::kStdin});
    return entry == nullptr ? nullptr : static_cast<InputStream*>(entry->stream.get());
}

void StreamTable::erase(const StreamId& id, core::Code code) {
    auto found = streams_.find(id);
    if (found == streams_.end()) return;
    tickets_.forget(found->second.key);
    std::unique_ptr<StreamBase> stream = std::move(found->second.stream);
    report_dropped(*stream);
    std::erase(draining_, stream->id());
    streams_.erase(found);
    stream->release(code);
    dying_.push_back(std::move(stream));
    sweep_.post();
}

// ---- after Delete ----

void StreamTable::remove_process(const std::string& container, const std::string& exec) {
    for (StreamKind kind : kKinds) {
        remove_relay(StreamId{container, exec, kind});
        Entry* entry = find(StreamId{container, exec, kind});
        if (entry == nullptr || entry->is_draining) continue;
        if (kind == StreamKind::kStdin) {
            erase(StreamId{container, exec, kind}, core::Code::kOk);
            continue;
        }
        auto& stream = static_cast<OutputStream&>(*entry->stream);
        // A client that has every byte still wants to see the end.
        bool is_wanted = stream.is_attached() || stream.undelivered() > 0 || stream.pipes().end() > 0;
        if (is_wanted && !stream.is_finished()) {
            start_draining(*entry);
        } else {
            erase(StreamId{container, exec, kind}, core::Code::kOk);
        }
    }
}

void StreamTable::discard_process(const std::string& container, const std::string& exec) {
    for (StreamKind kind : kKinds) {
        erase(StreamId{container, exec, kind}, core::Code::kNotFound);
        erase_relay(StreamId{container, exec, kind});
    }
}

void StreamTable::start_draining(Entry& entry) {
    while (draining_.size() >= limits::kDrainingStreams) on_drain_over(find(draining_.front()));
    auto& stream = static_cast<OutputStream&>(*entry.stream);
    stream.rename(prefix_of(stream.id(), stream.slot_index(), true));
    arm_drain(entry);
}

void StreamTable::arm_drain(Entry& entry) {
    entry.is_draining = true;
    draining_.push_back(entry.stream->id());
    entry.drain_timer = std::make_unique<loop::Timer>(context_.loop, &StreamTable::on_drain_over, &entry);
    entry.drain_timer->arm_after_ms(limits::kDrainAfterDeleteMs);
}

void StreamTable::on_drain_over(void* owner) {
    auto& entry = *static_cast<Entry*>(owner);
    StreamTable& table = *entry.table;
    auto& stream = static_cast<OutputStream&>(*entry.stream);
    StreamId id = stream.id();
    uint64_t lost = stream.undelivered();
    stream.give_up();
    table.erase(id, core::Code::kDeadlineExceeded);
    if (lost > 0 && table.on_lost) table.on_lost(id, lost);
}

// ---- after a restart ----

bool StreamTable::adopt(std::string_view name, sys::UniqueFd& fd) {
    std::vector<std::string_view> parts = core::split(name, '/');
    if (parts.size() != 6 || (parts[0] != "c" && parts[0] != "d")) return false;
    if (parts[2] == "vsock") return adopt_relay(parts, fd);
    if (parts[2] != "stdio") return false;
    size_t at = parts[4].find('@');
    if (at == std::string_view::npos) return false;
    std::optional<StreamKind> kind = kind_of(parts[4].substr(0, at));
    std::optional<uint32_t> slot = core::parse_number<uint32_t>(parts[4].substr(at + 1));
    if (!kind || !slot) return false;
    adopted_.push_back(Adopted{StreamId{std::string(parts[1]), std::string(parts[3]), *kind}, *slot,
                               parts[0] == "d", std::string(parts[5]),
                               std::string(name.substr(0, name.size() - parts[5].size())), std::move(fd)});
    return true;
}

void StreamTable::adopt_done() {
    std::vector<uint32_t> named;
    std::vector<StreamId> draining;
    for (Adopted& each : adopted_) {
        LedgerSlot* slot = ledger_.find(each.slot);
        Entry* entry = find(each.id);
        bool fits = slot != nullptr && slot->use() == use_of(each.id.kind) &&
                    (entry == nullptr || entry->stream->slot_index() == each.slot);
        if (!fits) {
            sys::log(sys::LogLevel::kWarn, "stream.adopt", "%s: slot %u is not its own",
                     describe(each.id).c_str(), each.slot);
            store_.drop(each.prefix);
            continue;
        }
        if (entry == nullptr) {
            entry = insert(each.id, each.slot, slot->use(), false);
            named.push_back(each.slot);
        }
        // Killed while it was renamed, the keeper has it under both names: then the renaming is done again.
        if (each.is_draining && std::find(draining.begin(), draining.end(), each.id) == draining.end()) {
            draining.push_back(each.id);
        }
        entry->stream->adopt(each.part, std::move(each.fd));
    }
    adopted_.clear();
    ledger_.free_all_but(named);
    for (const StreamId& id : draining) {
        Entry& entry = *find(id);
        auto& stream = static_cast<OutputStream&>(*entry.stream);
        stream.rename(prefix_of(id, stream.slot_index(), true));
        arm_drain(entry);
    }
    for (auto& [id, entry] : streams_) {
        entry.stream->recover();
        if (id.kind != StreamKind::kStdin) static_cast<OutputStream&>(*entry.stream).begin();
    }
    adopt_relays();
}

std::vector<StreamId> StreamTable::undeleted() const {
    std::vector<StreamId> ids;
    for (const auto& [id, entry] : streams_) {
        if (!entry.is_draining) ids.push_back(id);
    }
    for (const auto& [id, relay] : relays_) ids.push_back(id);
    return ids;
}

// ---- clients ----

core::Result<Ticket> StreamTable::open_stream(const std::string& container, const std::string& exec,
                                              StreamKind kind, std::optional<uint64_t> resume_offset) {
    StreamId id{container, exec, kind};
    Entry* entry = find(id);
    if (entry == nullptr) {
        return core::make_error(core::Code::kNotFound, describe(id) + ": no such stream");
    }
    if (core::Status status = entry->stream->check_offset(resume_offset); !status.ok()) {
        return std::move(status).error().within(describe(id));
    }
    Ticket ticket{};
    BERTH_TRY(sys::fill_random(ticket));
    BERTH_TRY(tickets_.add(ticket, StreamGrant{entry->key, resume_offset}, context_.loop.now_ns()));
    return ticket;
}

core::Result<StreamGrant> StreamTable::check_ticket(std::span<const uint8_t, kTicketBytes> ticket) {
    return tickets_.take(ticket, context_.loop.now_ns());
}

void StreamTable::attach(StreamGrant grant, sys::UniqueFd socket) {
    Entry* entry = find(grant.stream_key);
    if (entry != nullptr) {
        attachments_.push_back(entry->stream->attach(std::move(socket), grant.resume_offset));
        return;
    }
    attachments_.push_back(std::make_unique<Attachment>(
        context_.loop, *this, buffers_, nobody, wire::StreamSender::kClientOfOutput, std::move(socket)));
    attachments_.back()->close_with(core::Code::kNotFound);
}

void StreamTable::end_all_attachments() {
    tickets_.clear();
    for (auto& [id, entry] : streams_) entry.stream->detach(core::Code::kAborted);
}

// ---- the end of things ----

void StreamTable::on_attachment_over(Attachment&) {
    sweep_.post();
}

void StreamTable::on_idle() {
    sweep_.post();
}

void StreamTable::on_dropped() {
    if (!report_.armed()) report_.arm_after_ms(limits::kLostReportMs);
}

void StreamTable::report_dropped(StreamBase& stream) {
    if (stream.id().kind == StreamKind::kStdin) return;
    uint64_t lost = static_cast<OutputStream&>(stream).take_lost();
    if (lost > 0 && on_lost) on_lost(stream.id(), lost);
}

void StreamTable::on_report() {
    for (auto& [id, entry] : streams_) report_dropped(*entry.stream);
}

void StreamTable::sweep() {
    std::erase_if(attachments_, [](const auto& attachment) { return attachment->is_over(); });
    std::erase_if(dying_, [](const auto& stream) { return stream->is_idle(); });
    std::vector<StreamId> done;
    for (const StreamId& id : draining_) {
        if (static_cast<OutputStream&>(*find(id)->stream).is_finished()) done.push_back(id);
    }
    for (const StreamId& id : done) erase(id, core::Code::kOk);
    sweep_relays();
}

void StreamTable::quiesce() {
    tickets_.clear();
    report_.disarm();
    on_report();
    for (auto& [id, entry] : streams_) {
        entry.drain_timer.reset();
        entry.stream->quiesce();
    }
    for (auto& attachment : attachments_) attachment->abort();
    relay_drain_.disarm();
    for (auto& [id, relay] : relays_) relay->quiesce();
    for (auto& [until, relay] : draining_relays_) relay->quiesce();
}

bool StreamTable::is_idle() const {
    auto is_idle_relay = [](const auto& each) { return each.second->is_idle(); };
    return attachments_.empty() && dying_.empty() && dying_relays_.empty() &&
           std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& each) { return each.second.stream->is_idle(); }) &&
           std::all_of(relays_.begin(), relays_.end(), is_idle_relay) &&
           std::all_of(draining_relays_.begin(), draining_relays_.end(), is_idle_relay);
}

}  // namespace berth::runtime
