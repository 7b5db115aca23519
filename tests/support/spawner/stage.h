// A stage for real launches: a small root file system, a cgroup, and a spawner whose keeper and agent are the
// test. Needs root and namespaces; `why_not()` says what is missing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/core/launch_plan.h"
#include "agent/core/spawner_protocol.h"
#include "agent/sys/fd.h"
#include "agent/sys/socket.h"

namespace berth::test {

// The whole of a file, "" when it cannot be read.
std::string slurp(const std::string& path);
// "value" of a line "name:\tvalue" of /proc/PID/status.
std::string status_field(pid_t pid, std::string_view name);

struct Running {
    core::SpawnReply reply;
    pid_t pid = 0;
    sys::UniqueFd pidfd;
    sys::UniqueFd registered;  // the pidfd that the keeper got
    sys::UniqueFd sync;        // the agent's end
};

struct Message {
    bool end = false;  // the child's end closed: it executed, or died
    core::ChildMessage content;
    sys::UniqueFd fd;
};

class Stage {
 public:
    Stage();
    ~Stage();
    Stage(const Stage&) = delete;

    // Empty when launches are possible here.
    const std::string& why_not() const { return why_not_; }
    const std::string& root() const { return root_; }
    const std::string& directory() const { return directory_; }
    const std::string& cgroup() const { return cgroup_; }

    // Sends a plan with `fds` for the slots from 2 on, and waits for the spawner's reply.
    Running launch(const core::LaunchPlan& plan, const std::vector<int>& fds = {});
    // The same with any bytes as the plan, sealed or not.
    core::SpawnReply send(int plan_fd, const std::vector<int>& fds);
    void start_spawner();
    int end_spawner();  // closes the agent's end; its wait status
    pid_t spawner_pid() const { return spawner_; }

    Message next_message(const Running& running);
    void go(const Running& running);
    int wait_status(const Running& running);  // reaps
    int kill(const Running& running);         // SIGKILL, reaps; the signal that ended it

 private:
    void build_root();
    bool find_cgroup();

    std::string why_not_;
    std::string directory_;
    std::string root_;
    std::string cgroup_;
    pid_t spawner_ = 0;
    sys::UniqueFd keeper_;
    sys::UniqueFd agent_;
    uint64_t next_request_ = 1;
};

}  // namespace berth::test
