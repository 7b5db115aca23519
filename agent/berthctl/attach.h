// One process of a container on the caller's own stdio: streams, terminal, signals, until it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/berthctl/notify.h"
#include "agent/berthctl/terminal.h"
#include "agent/client/session.h"
#include "agent/client/stream_client.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

struct AttachTarget {
    std::string container_id;
    std::string exec_id;  // empty: the init
    bool terminal = false;
    bool with_stdin = true;
    bool with_streams = true;  // false: its stdio is the caller's own; signals and the exit are all there is
};

// Steps in the order of the calls: open(), begin_wait(), [Start by the caller], pump().
class Attachment {
 public:
    Attachment(client::Session& session, AttachTarget target)
        : session_(session), target_(std::move(target)) {}

    // Opens the streams that the process was created with ("stream://"), takes over the signals that are
    // passed on, and sends the terminal's size.
    core::Status open();
    core::Status begin_wait();

    // Copies until the process has ended and its output is at its end (or silent: something else may hold its
    // pipes). A lost connection is dialed again and every stream goes on where it was. The exit status.
    core::Result<int> pump();
    // Also tells of the process when it is ready; borrowed.
    void set_notify(Notify& notify) { notify_ = &notify; }

 private:
    struct Output {
        client::OutputStream stream;
        int to = -1;
        v1::Stream name = v1::STREAM_UNSPECIFIED;
        bool done = true;
    };

    core::Result<bool> open_output(Output& output);
    core::Result<bool> open_input();
    core::Status copy_output(Output& output);
    core::Status reattach_output(Output& output);
    core::Status copy_input();
    core::Status on_signal();
    core::Status send_size();
    core::Status check_wait();
    core::Status recover_wait(const core::Error& error);
    bool outputs_done() const { return out_.done && err_.done; }
    core::Result<bool> wait_for_work();
    core::Result<int> finish(const pb::task::WaitResponse& ended) const;

    client::Session& session_;
    AttachTarget target_;
    Notify* notify_ = nullptr;
    Output out_;
    Output err_;
    client::InputStream in_;
    bool reads_stdin_ = false;
    bool in_open_ = false;
    RawTerminal terminal_;
    sys::UniqueFd signals_;
    std::optional<uint32_t> wait_id_;
    std::optional<pb::task::WaitResponse> ended_;
    int64_t ended_at_ns_ = 0;
    int64_t last_output_ns_ = 0;
    uint64_t lost_bytes_ = 0;
};

}  // namespace berth::ctl
