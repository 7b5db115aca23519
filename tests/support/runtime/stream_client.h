// The client's end of a stream connection, for tests: non-blocking, decodes what the agent sends, keeps the
// bytes.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <span>
#include <vector>

#include "agent/sys/fd.h"
#include "agent/wire/stream_frame.h"

namespace berth::test {

class StreamClient {
 public:
    StreamClient(sys::UniqueFd socket, wire::StreamSender agent)
        : socket_(std::move(socket)), decoder_(agent) {}

    // Takes what has come, at most `limit` bytes. False when the agent has closed.
    bool receive(size_t limit = SIZE_MAX) {
        std::byte buffer[65'536];
        while (limit > 0) {
            ssize_t got = recv(socket_.get(), buffer, std::min(sizeof(buffer), limit), MSG_DONTWAIT);
            if (got < 0) return true;
            if (got == 0) return false;
            limit -= static_cast<size_t>(got);
            std::span<const std::byte> bytes(buffer, static_cast<size_t>(got));
            while (!bytes.empty()) {
                wire::StreamEvent event;
                auto taken = decoder_.feed(bytes, event);
                if (!taken.ok()) {
                    malformed = true;
                    return false;
                }
                bytes = bytes.subspan(*taken);
                on(event);
            }
        }
        return true;
    }
    bool send(std::span<const std::byte> bytes) {
        return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
               static_cast<ssize_t>(bytes.size());
    }
    bool ack(uint64_t upto) { return send(wire::SmallStreamFrame::ack(upto).bytes()); }
    bool eof() { return send(wire::SmallStreamFrame::eof().bytes()); }
    bool data(std::span<const std::byte> payload) {
        auto header = wire::encode_stream_header(
            {.type = wire::StreamFrameType::kData, .length = static_cast<uint32_t>(payload.size())});
        std::vector<std::byte> frame(header.size() + payload.size());
        std::memcpy(frame.data(), header.data(), header.size());
        std::memcpy(frame.data() + header.size(), payload.data(), payload.size());
        return send(frame);
    }
    int fd() const { return socket_.get(); }
    void close() { socket_.reset(); }
    std::string text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

    std::optional<uint64_t> attached;  // ATTACHED's offset
    uint32_t window = 0;
    uint64_t offset = 0;           // behind the last byte received
    std::vector<std::byte> bytes;  // DATA, unless keep is false
    bool keep = true;
    uint64_t lost = 0;
    uint64_t acked = 0;  // stdin: what the agent has secured
    bool has_eof = false;
    std::optional<uint32_t> closed;
    bool malformed = false;
    bool pattern_broken = false;  // a byte was not test::pattern(offset); only looked at when check is set
    std::byte (*check)(uint64_t) = nullptr;

 private:
    void on(const wire::StreamEvent& event) {
        using Kind = wire::StreamEvent::Kind;
        switch (event.kind) {
            case Kind::kNone: break;
            case Kind::kData:
                if (check != nullptr) {
                    for (size_t i = 0; i < event.data.size(); ++i) {
                        pattern_broken |= event.data[i] != check(offset + i);
                    }
                }
                if (keep) bytes.insert(bytes.end(), event.data.begin(), event.data.end());
                offset += event.data.size();
                break;
            case Kind::kEof: has_eof = true; break;
            case Kind::kAck: acked = event.value; break;
            case Kind::kLost:
                lost += event.value;
                offset += event.value;
                break;
            case Kind::kClosed: closed = event.code; break;
            case Kind::kAttached:
                attached = event.value;
                window = event.window;
                offset = event.value;
                acked = event.value;
                break;
        }
    }
    sys::UniqueFd socket_;
    wire::StreamDecoder decoder_;
};

}  // namespace berth::test
