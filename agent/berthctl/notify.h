// NOTIFY_SOCKET: whoever manages services knows us, not what runs in a container. As crun: the container gets
// a socket of ours, at the path of the caller's, and we tell that it is ready.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/berthctl/completion.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::ctl {

class Notify {
 public:
    // `folder`: the container's own, of the caller's files; empty: it can have none, nothing is done. Nothing
    // is done either where $NOTIFY_SOCKET is no path and no abstract name.
    explicit Notify(std::string folder);

    bool is_wanted() const { return !folder_.empty(); }

    // In this order: make_folder() before Create, listen() before Start, then wait_ready(), or progress()
    // whenever fd() can be read, until the process has ended.
    core::Status make_folder();
    BindMount mount() const { return {folder_ + "/notify", target_}; }
    std::string variable() const { return "NOTIFY_SOCKET=" + target_ + "/notify"; }
    // Without a folder - the container was created without NOTIFY_SOCKET - it is not wanted from here on.
    core::Status listen();
    // -1: nothing (more) to hear.
    int fd() const { return socket_.get(); }
    // Takes what has come. READY=1 is passed on; what cannot be is told on standard error.
    void progress();
    // We are going to end: the manager hears of the container's process as the one to watch, and has taken
    // that in when this returns. It returns, too, when the process has ended.
    core::Status wait_ready(uint32_t pid);
    // What make_folder() made, after a Create that failed.
    void undo();

    // What is left of a container that is gone; nothing is no error.
    static void remove_folder(const std::string& folder);

 private:
    core::Status receive();
    core::Status tell(std::string_view text, int passed = -1) const;
    core::Status tell_leaving(uint32_t pid) const;

    std::string folder_;
    std::string manager_;  // path, or "@" and an abstract name
    std::string target_;   // in the container
    sys::UniqueFd socket_;
    bool made_ = false;
    bool ready_ = false;
};

// Whether a message of sd_notify(3) ("A=1\nB=2") has that line.
bool has_assignment(std::string_view message, std::string_view assignment);

}  // namespace berth::ctl
