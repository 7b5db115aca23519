// All stdio streams of this guest: who may attach to which, what a restarted agent finds again, and what
// happens to output that nobody has read when its container is deleted.
//
// A stream's descriptors are in the keeper's store below "c/ID/stdio/EXEC/out@SLOT/" (in, out, err; EXEC
// empty for the init), after Delete below "d/ID/stdio/EXEC/...": a deletion of "c/ID/" does not touch them.
// Those of a connection to the host are below "c/ID/vsock/EXEC/out/".
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/result.h"
#include "agent/loop/loop.h"
#include "agent/runtime/fd_store.h"
#include "agent/runtime/host_relay.h"
#include "agent/runtime/stdio.h"
#include "agent/runtime/stream.h"
#include "agent/runtime/ticket.h"

namespace berth::runtime {

class StreamTable final : public AttachmentKeeper, public HostRelayKeeper {
 public:
    // Both outlive this. open() comes before everything else.
    StreamTable(loop::Loop& loop, FdStore& store);
    ~StreamTable() override;

    // `ledger`: the keeper's memfd, mapped shared, zeroed at boot; kLedgerBytes in the product.
    core::Status open(std::span<std::byte> ledger);

    // Output that was dropped unread: not drained in time after Delete, at once; by the drop policy,
    // collected for limits::kLostReportMs. What an agent had collected and not told ends with it; LOST frames
    // are exact.
    core::Callback<void(const StreamId&, uint64_t bytes)> on_lost;

    // ---- a process's life ----

    // Makes what `request` asks for: streams, files, connections to the host. Nothing is left behind by an
    // error. See ProcessStdio for what to do with it.
    core::Result<std::unique_ptr<ProcessStdio>> make_stdio(const std::string& container,
                                                           const std::string& exec, StdioRequest request);
    // The same object for a process that an earlier agent started, once adopt_done() ran.
    std::unique_ptr<ProcessStdio> adopted_stdio(const std::string& container, const std::string& exec);

    // Delete of the process: stdin ends, output that is not drained stays for limits::kDrainAfterDeleteMs.
    void remove_process(const std::string& container, const std::string& exec);
    // The launch failed: nothing is kept.
    void discard_process(const std::string& container, const std::string& exec);

    // ---- after a restart ----

    // Takes a descriptor that the keeper returned. False: the name is not a stream's (the fd is left alone).
    bool adopt(std::string_view name, sys::UniqueFd& fd);
    // After the last adopt() and before serving: settles what was half done, frees slots that nobody uses.
    void adopt_done();
    // Streams of processes that were not deleted, as far as this table knows: what adopt() found.
    std::vector<StreamId> undeleted() const;

    // ---- clients ----

    // A ticket for the stream. NOT_FOUND: no such process or its stdio is no stream; INVALID_ARGUMENT,
    // OUT_OF_RANGE: the offset; RESOURCE_EXHAUSTED: limits::kTickets.
    core::Result<Ticket> open_stream(const std::string& container, const std::string& exec, StreamKind kind,
                                     std::optional<uint64_t> resume_offset);
    // service::StreamGate, but for the type of the grant.
    core::Result<StreamGrant> check_ticket(std::span<const uint8_t, kTicketBytes> ticket);
    void attach(StreamGrant grant, sys::UniqueFd socket);
    size_t attached() const { return attachments_.size(); }
    // All tickets and attachments end (a new generation).
    void end_all_attachments();

    // For ProcessStdio.
    OutputStream* output(const std::string& container, const std::string& exec, StreamKind kind);
    InputStream* input(const std::string& container, const std::string& exec);
    HostRelay* relay(const StreamId& id);
    loop::Loop& loop() { return context_.loop; }
    const PipeTools& tools() const { return tools_; }

    // Stops everything of this table's in the loop, and leaves what is stored with the keeper: before an
    // orderly end. Then turns of the loop, until is_idle().
    void quiesce();
    bool is_idle() const;

    void on_attachment_over(Attachment& attachment) override;
    void on_idle() override;
    void on_dropped() override;
    void on_relay_changed() override;

 private:
    struct Entry {
        std::unique_ptr<StreamBase> stream;
        uint64_t key = 0;
        bool is_draining = false;
        std::unique_ptr<loop::Timer> drain_timer;
        StreamTable* table = nullptr;
    };
    static std::string prefix_of(const StreamId& id, uint32_t slot, bool is_draining);
    core::Result<Entry*> add(StreamId id, SlotUse use, uint8_t flags);
    Entry* insert(StreamId id, uint32_t slot, SlotUse use, bool is_draining);
    Entry* find(const StreamId& id);
    Entry* find(uint64_t key);
    core::Status make_child_end(const StreamId& id, const StdioTarget& target, StdioRequest& request,
                                ProcessStdio& stdio);
    core::Status make_relay(const StreamId& id, uint32_t port, ProcessStdio& stdio);
    static std::string relay_prefix_of(const StreamId& id, bool is_draining);
    void remove_relay(const StreamId& id);
    void drain_relay(std::unique_ptr<HostRelay> relay);
    void erase_relay(const StreamId& id);
    bool adopt_relay(const std::vector<std::string_view>& parts, sys::UniqueFd& fd);
    void adopt_relays();
    void sweep_relays();
    void on_relay_drain_over();
    core::Status make_stream(const StreamId& id, StdioRequest& request, ProcessStdio& stdio);
    void start_draining(Entry& entry);
    void arm_drain(Entry& entry);
    void erase(const StreamId& id, core::Code code);
    static void on_drain_over(void* entry);
    void sweep();
    void report_dropped(StreamBase& stream);
    void on_report();

    FdStore& store_;
    Ledger ledger_;
    PipeTools tools_;
    SendBuffers buffers_;
    StreamContext context_;
    TicketBook tickets_;
    std::map<StreamId, Entry> streams_;
    std::vector<StreamId> draining_;  // oldest first
    std::vector<std::unique_ptr<StreamBase>> dying_;
    std::vector<std::unique_ptr<Attachment>> attachments_;
    std::map<StreamId, std::unique_ptr<HostRelay>> relays_;
    // Of deleted processes: what they wrote is still on its way; oldest first, with the time when it is given
    // up.
    std::vector<std::pair<int64_t, std::unique_ptr<HostRelay>>> draining_relays_;
    std::vector<std::unique_ptr<HostRelay>> dying_relays_;
    uint64_t last_key_ = 0;
    loop::Task sweep_;
    loop::Timer relay_drain_;
    loop::Timer report_;  // armed while a stream has dropped what was not told yet
    struct Adopted {
        StreamId id;
        uint32_t slot;
        bool is_draining;
        std::string part;
        std::string prefix;
        sys::UniqueFd fd;
    };
    std::vector<Adopted> adopted_;
    std::map<StreamId, std::unique_ptr<HostRelay>> adopted_draining_;
};

}  // namespace berth::runtime
