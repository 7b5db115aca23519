// What a container's process gets of the caller's own, over the local socket: its stdio, the descriptors of
// --preserve-fds and of socket activation, a socket for its terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/berthctl/arguments.h"
#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::ctl {

class Passing {
 public:
    // Stdio fields "fd:N" of the caller's 0, 1 and 2; empty for one that is closed, and for stdin without
    // `with_stdin`.
    void add_stdio(bool with_stdin);
    // --preserve-fds N: 3 to 2 + N, behind those of LISTEN_FDS when `listen`. Of N descriptors some may be
    // closed (crun), not all (runc).
    core::Status add_preserved(const Arguments& arguments, bool listen);
    // --console-socket PATH.
    core::Status connect_console(const Arguments& arguments);

    std::string stdio[3];
    std::string console;                   // "fd:N"; empty: none
    bool plain_newlines = false;           // of a terminal that is shown on the caller's own
    std::vector<std::string> environment;  // LISTEN_FDS and LISTEN_PID, as the process is to see them
    const std::vector<int>& descriptors() const { return descriptors_; }

    template <typename Options>
    void fill(Options& options) const {
        options.set_console_socket(console);
        options.set_plain_newlines(plain_newlines);
        for (const File& file : files_) {
            auto& out = *options.add_files();
            out.set_descriptor(file.target);
            out.set_source(file.source);
        }
    }
    template <typename Request>
    void fill_stdio(Request& request) const {
        request.set_stdin(stdio[0]);
        request.set_stdout(stdio[1]);
        request.set_stderr(stdio[2]);
    }

 private:
    struct File {
        uint32_t target;
        std::string source;
    };
    std::string add(int fd);

    std::vector<int> descriptors_;
    std::vector<File> files_;
    sys::UniqueFd console_socket_;
};

// Writes the pid as other runtimes do: whole, or not at all.
core::Status write_pid_file(std::string_view path, uint32_t pid);

// --pidfd-socket PATH: a pidfd of the process goes there.
core::Status send_pidfd(std::string_view path, uint32_t pid);

}  // namespace berth::ctl
