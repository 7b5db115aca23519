// containerd.task.v3.Task (and its twin v2): decode, call the runtime, encode.
#pragma once

#include <memory>

#include "agent/runtime/runtime.h"
#include "agent/service/call.h"

namespace berth::service {

class TaskService {
 public:
    explicit TaskService(runtime::Runtime& runtime) : runtime_(runtime) {}

    void state(std::shared_ptr<Call> call);
    void create(std::shared_ptr<Call> call);
    void start(std::shared_ptr<Call> call);
    void remove(std::shared_ptr<Call> call);
    void pids(std::shared_ptr<Call> call);
    void pause(std::shared_ptr<Call> call);
    void resume(std::shared_ptr<Call> call);
    void checkpoint(std::shared_ptr<Call> call);
    void kill(std::shared_ptr<Call> call);
    void exec(std::shared_ptr<Call> call);
    void resize_pty(std::shared_ptr<Call> call);
    void close_io(std::shared_ptr<Call> call);
    void update(std::shared_ptr<Call> call);
    void wait(std::shared_ptr<Call> call);
    void stats(std::shared_ptr<Call> call);
    void connect(std::shared_ptr<Call> call);
    void shutdown(std::shared_ptr<Call> call);

 private:
    runtime::Runtime& runtime_;
};

}  // namespace berth::service
