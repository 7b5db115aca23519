// The agent's process.
#pragma once

namespace berth::service {

// Takes over the keeper's socket, reads the welcome, serves until it is told to stop or the keeper is gone.
[[noreturn]] void run_agent(int keeper_socket_fd);

}  // namespace berth::service
