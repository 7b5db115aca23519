#include "agent/runtime/keeper_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "agent/sys/log.h"
#include "agent/sys/socket.h"

namespace berth::runtime {
namespace {

using core::KeeperMessage;
using core::KeeperMessageType;

std::string_view name_of(const KeeperMessage& message) {
    return {message.name, strnlen(message.name, sizeof message.name)};
}

}  // namespace

core::Result<Welcome> KeeperLink::receive_welcome() {
    Welcome welcome;
    bool greeted = false;
    while (true) {
        core::WelcomeMessage buffer;
        BERTH_ASSIGN(sys::Received received,
                     sys::receive_with_fds(socket_, std::as_writable_bytes(std::span(&buffer, 1)), 0));
        if (received.end) return core::make_error(core::Code::kUnavailable, "keeper's socket: end of file");
        if (received.truncated)
            return core::make_error(core::Code::kInternal, "keeper's welcome: descriptors lost");
        if (received.bytes < sizeof(KeeperMessage)) {
            return core::make_error(core::Code::kInternal, "keeper's welcome: short message");
        }
        sys::UniqueFd fd = received.fds.empty() ? sys::UniqueFd() : std::move(received.fds.front());
        const KeeperMessage& message = buffer.header;
        switch (message.type) {
            case KeeperMessageType::kWelcome:
                if (received.bytes != sizeof buffer) {
                    return core::make_error(core::Code::kInternal, "keeper's welcome: another build");
                }
                welcome.config = buffer.config;
                welcome.keys = buffer.keys;
                explicit_bzero(&buffer, sizeof buffer);
                greeted = true;
                break;
            case KeeperMessageType::kStoredFd:
                welcome.stored[std::string(name_of(message))] = std::move(fd);
                break;
            case KeeperMessageType::kRegistered:
                welcome.registered.push_back({message.process, std::move(fd)});
                break;
            case KeeperMessageType::kExited: welcome.exited.push_back(message.process); break;
            case KeeperMessageType::kSpawner: welcome.spawner = std::move(fd); break;
            case KeeperMessageType::kWelcomeEnd:
                if (!greeted)
                    return core::make_error(core::Code::kInternal, "keeper's welcome: no configuration");
                return welcome;
            case KeeperMessageType::kStoreFd:
            case KeeperMessageType::kDropFd:
            case KeeperMessageType::kAcknowledgeExit:
            case KeeperMessageType::kShutdown:
            case KeeperMessageType::kAgentReady:
            case KeeperMessageType::kForget:
            default: return core::make_error(core::Code::kInternal, "keeper's welcome: unknown message");
        }
    }
}

void KeeperLink::attach(loop::Loop& loop, Events events) {
    loop_ = &loop;
    events_ = std::move(events);
    acknowledge_at_.emplace(loop, loop::Timer::to<&KeeperLink::send_acknowledgements, KeeperLink>(), this);
    arm();
}

void KeeperLink::arm() {
    if (!readable_.pending()) loop_->poll_multishot(readable_, socket_.get(), POLLIN);
}

void KeeperLink::on_readable(loop::Op&, int32_t) {
    while (true) {
        KeeperMessage message;
        auto received =
            sys::receive_with_fds(socket_, std::as_writable_bytes(std::span(&message, 1)), MSG_DONTWAIT);
        if (!received.ok()) {
            if (received.error().err == EAGAIN) break;
            sys::log(sys::LogLevel::kError, "keeper.receive", "%s", received.error().message.c_str());
            events_.on_keeper_gone();
            return;
        }
        if (received->end) {
            events_.on_keeper_gone();
            return;
        }
        if (received->bytes < sizeof message) continue;
        if (message.type == KeeperMessageType::kExited) {
            events_.on_exit(message.process);
        } else if (message.type == KeeperMessageType::kSpawner && !received->fds.empty()) {
            events_.on_spawner(std::move(received->fds.front()));
        }
    }
    arm();
}

void KeeperLink::on_writable(loop::Op&, int32_t) {
    while (!outgoing_.empty()) {
        std::vector<int> fds;
        for (const sys::UniqueFd& fd : outgoing_.front().fds) fds.push_back(fd.get());
        if (!try_send(outgoing_.front().message, fds)) break;
        core::Callback<void()> sent = std::move(outgoing_.front().sent);
        outgoing_.pop_front();
        if (sent) sent();
    }
    if (!outgoing_.empty()) loop_->poll(writable_, socket_.get(), POLLOUT);
}

bool KeeperLink::try_send(const KeeperMessage& message, std::span<const int> fds) {
    auto sent = sys::send_with_fds(socket_, std::as_bytes(std::span(&message, 1)), fds, MSG_DONTWAIT);
    if (sent.ok()) return true;
    if (sent.error().err == EAGAIN || sent.error().err == ENOBUFS || sent.error().err == ETOOMANYREFS)
        return false;
    sys::log(sys::LogLevel::kError, "keeper.send", "%s", sent.error().message.c_str());
    return true;  // the keeper is gone: on_readable says so
}

void KeeperLink::send(KeeperMessageType type, uint32_t value, uint64_t key, std::string_view name,
                      std::span<const int> fds, core::Callback<void()> sent) {
    Outgoing item;
    item.message.type = type;
    item.message.value = value;
    item.message.process.key = key;
    BERTH_CHECK(name.size() < sizeof item.message.name);
    memcpy(item.message.name, name.data(), name.size());
    if (outgoing_.empty() && try_send(item.message, fds)) {
        if (sent) sent();
        return;
    }
    // Order matters (a drop must not overtake a store), so everything waits behind the first that did not
    // fit.
    for (int fd : fds) item.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    item.sent = std::move(sent);
    outgoing_.push_back(std::move(item));
    if (loop_ != nullptr && !writable_.pending()) loop_->poll(writable_, socket_.get(), POLLOUT);
}

void KeeperLink::store(std::string_view name, sys::FdRef fd) {
    const int number = fd.get();
    send(KeeperMessageType::kStoreFd, 0, 0, name, std::span<const int>(&number, 1));
}
void KeeperLink::store_all(std::string_view prefix, std::span<const int> fds) {
    BERTH_CHECK(prefix.ends_with('/'));
    send(KeeperMessageType::kStoreFd, 0, 0, prefix, fds);
}
void KeeperLink::drop(std::string_view name) {
    send(KeeperMessageType::kDropFd, 0, 0, name, {});
}
void KeeperLink::drop_then(std::string_view name, core::Callback<void()> sent) {
    send(KeeperMessageType::kDropFd, 0, 0, name, {}, std::move(sent));
}
void KeeperLink::acknowledge_exit(uint64_t process_key) {
    acknowledged_.push_back(process_key);
    if (!acknowledge_at_ || acknowledged_.size() > limits::kHeldAcknowledgements)
        return send_acknowledgements();
    if (!acknowledge_at_->armed()) acknowledge_at_->arm_after_ms(limits::kAcknowledgeAfterMs);
}
void KeeperLink::send_acknowledgements() {
    if (acknowledged_.empty()) return;
    if (acknowledge_at_) acknowledge_at_->disarm();
    auto more = std::as_bytes(std::span(acknowledged_).subspan(1));
    std::string_view keys(reinterpret_cast<const char*>(more.data()), more.size());
    send(KeeperMessageType::kAcknowledgeExit, static_cast<uint32_t>(acknowledged_.size() - 1),
         acknowledged_.front(), keys, {});
    acknowledged_.clear();
}
void KeeperLink::forget(uint64_t process_key) {
    send(KeeperMessageType::kForget, 0, process_key, {}, {});
}
void KeeperLink::shutdown(core::ShutdownMode mode) {
    send(KeeperMessageType::kShutdown, static_cast<uint32_t>(mode), 0, {}, {});
}
void KeeperLink::ready() {
    send(KeeperMessageType::kAgentReady, 0, 0, {}, {});
}

}  // namespace berth::runtime
