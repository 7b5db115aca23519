// A call that came over ttrpc.
#pragma once

#include <memory>
#include <string>

#include "agent/service/call.h"
#include "agent/service/connection_writer.h"

namespace berth::service {

class ControlConnection;

class TtrpcCall final : public Call {
 public:
    TtrpcCall(ControlConnection& connection, uint32_t stream_id);

    void reply(std::string message) override;
    void fail(const core::Error& error) override;
    bool send(std::string message) override;
    void finish() override;
    size_t queued_bytes() const override { return *queued_; }
    bool alive() const override { return connection_ != nullptr; }

    uint32_t stream_id() const { return stream_id_; }

    // Answers with the error, then tells whoever parked the call that it ended because of `why`.
    void break_off(const core::Error& error, core::Code why);
    // The connection is going away: from here on nothing is sent.
    void detach() { connection_ = nullptr; }
    // Tells whoever parked it; after detach.
    void end(core::Code why) { ended_without_answer(why); }

 private:
    // Takes the call off the connection and sends its last frame.
    void answer(std::string frame);
    bool takes(size_t message_bytes, size_t frame_bytes);

    ControlConnection* connection_;
    uint32_t stream_id_;
    bool is_overflowed_ = false;
    bool has_marker_ = false;
    ConnectionWriter::Account queued_ = std::make_shared<size_t>(0);
};

}  // namespace berth::service
