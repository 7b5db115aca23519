#include "agent/keeper/agent_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "agent/sys/log.h"
#include "agent/sys/socket.h"

namespace berth::keeper {
namespace {

using core::KeeperMessage;
using core::KeeperMessageType;

FlushResult result_of(const core::Status& sent) {
    if (sent.ok()) return FlushResult::kDone;
    switch (sent.error().err) {
        case EAGAIN: return FlushResult::kBlocked;
        case ENOBUFS:
        case ENOMEM:
        case ETOOMANYREFS: return FlushResult::kRetry;
        default: return FlushResult::kGone;
    }
}

}  // namespace

AgentChannel::AgentChannel(sys::UniqueFd socket, const core::AgentConfig& config, FdStore& store,
                           ExitTable& exits)
    : socket_(std::move(socket)), config_(config), store_(store), exits_(exits) {
    exits_.forget_told();
}

void AgentChannel::offer_spawner(sys::UniqueFd socket) {
    spawner_ = std::move(socket);
}

FlushResult AgentChannel::flush(const core::ClassKeys& keys) {
    FlushResult result = FlushResult::kDone;
    if (stage_ == Stage::kGreeting) result = send_greeting(keys);
    if (result == FlushResult::kDone && stage_ == Stage::kDescriptors) result = send_descriptors();
    if (result == FlushResult::kDone && stage_ == Stage::kProcesses) result = send_processes();
    if (result == FlushResult::kDone) result = send_live();
    return result;
}

FlushResult AgentChannel::send(const KeeperMessage& message, int fd) {
    std::span<const int> fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
    return result_of(sys::send_with_fds(socket_, sys::bytes_of(message), fds, MSG_DONTWAIT));
}

FlushResult AgentChannel::send_greeting(const core::ClassKeys& keys) {
    core::WelcomeMessage welcome;
    welcome.header.type = KeeperMessageType::kWelcome;
    welcome.config = config_;
    if (config_.has_secret != 0) welcome.keys = keys;
    FlushResult result = result_of(sys::send_with_fds(socket_, sys::bytes_of(welcome), {}, MSG_DONTWAIT));
    explicit_bzero(&welcome.keys, sizeof welcome.keys);
    if (result == FlushResult::kDone) stage_ = Stage::kDescriptors;
    return result;
}

FlushResult AgentChannel::send_descriptors() {
    while (const FdStore::Entry* entry = store_.next_after(last_name_)) {
        KeeperMessage message;
        message.type = KeeperMessageType::kStoredFd;
        std::memcpy(message.name, entry->first.data(), entry->first.size());
        FlushResult result = send(message, entry->second.get());
        if (result != FlushResult::kDone) return result;
        last_name_ = entry->first;
    }
    last_name_ = std::string();
    stage_ = Stage::kProcesses;
    return FlushResult::kDone;
}

FlushResult AgentChannel::send_processes() {
    while (Process* process = exits_.next_after(last_key_)) {
        KeeperMessage message;
        message.type = process->has_exited ? KeeperMessageType::kExited : KeeperMessageType::kRegistered;
        message.process = process->record;
        FlushResult result = send(message, process->has_exited ? -1 : process->pidfd.get());
        if (result != FlushResult::kDone) return result;
        process->is_told = process->has_exited;
        last_key_ = process->record.key;
    }
    stage_ = Stage::kEnd;
    return FlushResult::kDone;
}

FlushResult AgentChannel::send_live() {
    if (spawner_.valid()) {
        KeeperMessage message;
        message.type = KeeperMessageType::kSpawner;
        FlushResult result = send(message, spawner_.get());
        if (result != FlushResult::kDone) return result;
        spawner_.reset();
    }
    if (stage_ == Stage::kEnd) {
        KeeperMessage message;
        message.type = KeeperMessageType::kWelcomeEnd;
        FlushResult result = send(message, -1);
        if (result != FlushResult::kDone) return result;
        stage_ = Stage::kLive;
    }
    while (Process* process = exits_.next_untold()) {
        KeeperMessage message;
        message.type = KeeperMessageType::kExited;
        message.process = process->record;
        FlushResult result = send(message, -1);
        if (result != FlushResult::kDone) return result;
        process->is_told = true;
    }
    return FlushResult::kDone;
}

}  // namespace berth::keeper
