#include "agent/runtime/spawner_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "agent/core/text.h"
#include "agent/sys/log.h"
#include "agent/sys/socket.h"

namespace berth::runtime {

void SpawnerLink::replace(sys::UniqueFd socket) {
    fail_all(core::make_error(core::Code::kUnavailable, "spawner restarted"));
    if (readable_.pending()) {
        next_socket_ = std::move(socket);
        loop_.cancel(readable_);
        return;
    }
    socket_ = std::move(socket);
    loop_.poll_multishot(readable_, socket_.get(), POLLIN);
}

void SpawnerLink::spawn(uint64_t process_key, sys::FdRef plan, std::span<const int> fds,
                        Completion completion) {
    core::SpawnRequest request;
    request.process_key = process_key;
    std::vector<int> all;
    all.reserve(fds.size() + 1);
    all.push_back(plan.get());
    all.insert(all.end(), fds.begin(), fds.end());
    send(request, {}, all, std::move(completion));
}

void SpawnerLink::spawn_inline(uint64_t process_key, std::span<const std::byte> plan,
                               std::span<const int> fds, Completion completion) {
    core::SpawnRequest request;
    request.process_key = process_key;
    request.plan_bytes = static_cast<uint32_t>(plan.size());
    send(request, plan, fds, std::move(completion));
}

void SpawnerLink::send(core::SpawnRequest request, std::span<const std::byte> plan, std::span<const int> fds,
                       Completion completion) {
    request.request = ++last_request_;
    core::Error error = core::make_error(core::Code::kUnavailable, "spawner is being restarted");
    if (socket_.valid() && !next_socket_.valid()) {
        auto sent =
            sys::send_with_fds(socket_, std::as_bytes(std::span(&request, 1)), fds, MSG_DONTWAIT, plan);
        if (sent.ok()) {
            pending_.emplace(request.request, std::move(completion));
            return;
        }
        error = std::move(sent).error().within("spawner");
        if (error.err == EAGAIN) error.code = core::Code::kResourceExhausted;
        // It ended, and nobody has told us yet.
        if (error.err == EPIPE || error.err == ECONNRESET) error.code = core::Code::kUnavailable;
    }
    failed_.emplace_back(std::move(completion), std::move(error));
    fail_task_.post();
}

void SpawnerLink::on_readable(loop::Op&, int32_t) {
    if (next_socket_.valid()) {
        if (readable_.pending()) return;
        socket_ = std::move(next_socket_);
        loop_.poll_multishot(readable_, socket_.get(), POLLIN);
        return;
    }
    while (true) {
        core::SpawnReply reply;
        auto received =
            sys::receive_with_fds(socket_, std::as_writable_bytes(std::span(&reply, 1)), MSG_DONTWAIT);
        if (!received.ok()) {
            if (received.error().err == EAGAIN) break;
            fail_all(std::move(received).error().within("spawner"));
            return;
        }
        if (received->end) {
            fail_all(core::make_error(core::Code::kUnavailable, "spawner ended"));
            if (readable_.pending()) loop_.cancel(readable_);
            return;
        }
        if (received->bytes != sizeof reply) continue;
        auto found = pending_.find(reply.request);
        if (found == pending_.end()) continue;
        Completion completion = std::move(found->second);
        pending_.erase(found);
        if (reply.err != 0) {
            reply.step[sizeof reply.step - 1] = 0;
            completion(core::errno_error(reply.err, reply.step));
        } else if (received->fds.empty()) {
            completion(core::make_error(core::Code::kInternal, "spawner: reply without a pidfd"));
        } else {
            completion(Spawned{reply.pid, std::move(received->fds.front())});
        }
    }
    if (!readable_.pending()) loop_.poll_multishot(readable_, socket_.get(), POLLIN);
}

void SpawnerLink::fail_all(const core::Error& error) {
    for (auto& [request, completion] : pending_) failed_.emplace_back(std::move(completion), error);
    pending_.clear();
    if (!failed_.empty()) fail_task_.post();
}

void SpawnerLink::fail_later() {
    auto failed = std::move(failed_);
    failed_.clear();
    for (auto& [completion, error] : failed) completion(std::move(error));
}

}  // namespace berth::runtime
