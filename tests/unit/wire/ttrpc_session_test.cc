#include "agent/wire/ttrpc_session.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace berth::wire {
namespace {

using Kind = SessionEvent::Kind;

std::string frame(uint32_t length, uint32_t id, uint8_t type, uint8_t flags, const std::string& body = "") {
    auto header = encode_frame_header({.length = length, .stream_id = id, .type = type, .flags = flags});
    return std::string(header.begin(), header.end()) + body;
}

std::string request(uint32_t id, uint8_t flags = 0, int64_t timeout = 0) {
    return encode_request_frame(id, flags,
                                {.service = "S",
                                 .method = "M",
                                 .payload = "p",
                                 .timeout_nano = timeout,
                                 .containerd_namespace = {}})
        .value();
}

// Feeds in chunks of `chunk` bytes and keeps what happened.
std::vector<SessionEvent> feed(TtrpcSession& session, const std::string& bytes, size_t chunk = SIZE_MAX) {
    std::vector<SessionEvent> events;
    std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    while (!rest.empty()) {
        std::span<const std::byte> piece = rest.first(std::min(chunk, rest.size()));
        rest = rest.subspan(piece.size());
        while (!piece.empty()) {
            SessionEvent event;
            size_t taken = session.feed(piece, event);
            REQUIRE(taken > 0);
            REQUIRE(taken <= piece.size());
            piece = piece.subspan(taken);
            if (event.kind != Kind::kNone) events.push_back(std::move(event));
        }
    }
    return events;
}

SessionEvent feed_one(TtrpcSession& session, const std::string& bytes) {
    std::vector<SessionEvent> events = feed(session, bytes);
    REQUIRE(events.size() == 1);
    return std::move(events[0]);
}

void check_refused(const SessionEvent& event, uint32_t id, core::Code code, const std::string& message) {
    CHECK(event.kind == Kind::kRefused);
    CHECK(event.stream_id == id);
    CHECK(event.error.code == code);
    CHECK(event.error.message == message);
}

TEST_CASE("requests come out whole, however the bytes arrive") {
    for (size_t chunk : {size_t{1}, size_t{2}, size_t{7}, size_t{10}, size_t{11}, size_t{4096}}) {
        CAPTURE(chunk);
        TtrpcSession session;
        std::vector<SessionEvent> events =
            feed(session, request(1) + request(3, 1, 50) + request(5, 6), chunk);
        REQUIRE(events.size() == 3);
        CHECK(events[0].kind == Kind::kRequest);
        CHECK(events[0].request.service == "S");
        CHECK(events[0].request.payload == "p");
        CHECK(!events[0].is_stream);
        CHECK(events[1].stream_id == 3);
        CHECK(events[1].is_stream);
        CHECK(events[1].request.timeout_nano == 50);
        CHECK(events[2].is_stream);
        CHECK(session.open_streams() == 3);
        CHECK(session.at_frame_start());
    }
}

TEST_CASE("a cut frame is no request") {
    std::string whole = request(1);
    for (size_t length = 0; length < whole.size(); length++) {
        TtrpcSession session;
        CHECK(feed(session, whole.substr(0, length)).empty());
        CHECK(session.bytes_wanted() == (length < 10 ? 10 - length : whole.size() - length));
        CHECK(session.at_frame_start() == (length == 0));
        CHECK(feed(session, whole.substr(length)).size() == 1);
    }
}

TEST_CASE("stream ids are odd and grow; a refused one does not count") {
    TtrpcSession session;
    check_refused(feed_one(session, request(0)), 0, core::Code::kInvalidArgument,
                  "ttrpc: stream id 0: clients use odd ids");
    check_refused(feed_one(session, request(100)), 100, core::Code::kInvalidArgument,
                  "ttrpc: stream id 100: clients use odd ids");
    CHECK(feed_one(session, request(5)).kind == Kind::kRequest);
    check_refused(feed_one(session, request(5)), 5, core::Code::kInvalidArgument,
                  "ttrpc: stream id 5 was used already: ids only grow, the last was 5");
    check_refused(feed_one(session, request(3)), 3, core::Code::kInvalidArgument,
                  "ttrpc: stream id 3 was used already: ids only grow, the last was 5");
    session.finish(5);
    CHECK(feed_one(session, request(5)).kind == Kind::kRefused);
    // Undecodable: refused, so 7 is still free.
    check_refused(feed_one(session, frame(1, 7, 1, 0, "\x0A")), 7, core::Code::kInvalidArgument,
                  "ttrpc: undecodable request");
    CHECK(feed_one(session, request(7)).kind == Kind::kRequest);
    CHECK(feed_one(session, request(UINT32_MAX)).kind == Kind::kRequest);
    check_refused(feed_one(session, request(1)), 1, core::Code::kInvalidArgument,
                  "ttrpc: stream ids are used up: open a new connection");
}

TEST_CASE("request flags") {
    uint32_t id = 1;
    for (unsigned flags = 0; flags < 256; flags++, id += 2) {
        CAPTURE(flags);
        TtrpcSession session;
        SessionEvent event = feed_one(session, request(id, static_cast<uint8_t>(flags)));
        if (flags == 0 || flags == 1 || flags == 2 || flags == 6) {
            CHECK(event.kind == Kind::kRequest);
            CHECK(event.is_stream == (flags != 0));
        } else {
            check_refused(event, id, core::Code::kInvalidArgument,
                          "ttrpc: unknown request flags " + std::to_string(flags));
        }
    }
}

TEST_CASE("unknown types are skipped with their payload") {
    TtrpcSession session;
    for (uint8_t type : {0, 2, 4, 255}) {
        std::string skipped = frame(5, 1, type, 0xFF, "xxxxx") + frame(0, 2, type, 0);
        CHECK(feed(session, skipped, 3).empty());
    }
    CHECK(feed_one(session, request(1)).kind == Kind::kRequest);
}

TEST_CASE("4 MiB is accepted, one byte more ends the connection at its header") {
    TtrpcRequest large{
        .service = "S", .method = "M", .payload = {}, .timeout_nano = 0, .containerd_namespace = {}};
    large.payload.assign(limits::kTtrpcMessageBytes - 6 - 5, 'p');
    std::string whole = encode_request_frame(1, 0, large).value();
    REQUIRE(whole.size() == 10 + limits::kTtrpcMessageBytes);
    TtrpcSession session;
    std::vector<SessionEvent> events = feed(session, whole, 65'536);
    REQUIRE(events.size() == 1);
    CHECK(events[0].request.payload.size() == large.payload.size());

    for (uint8_t type : {1, 2, 3, 9}) {
        TtrpcSession other;
        SessionEvent event = feed_one(other, frame(limits::kTtrpcMessageBytes + 1, 4, type, 0) + request(5));
        CHECK(event.kind == Kind::kFatal);
        CHECK(event.stream_id == 4);
        CHECK(event.error.code == core::Code::kResourceExhausted);
        CHECK(event.error.message == "ttrpc: frame of 4194305 bytes exceeds 4194304");
        CHECK(feed(other, request(7)).empty());
    }
    TtrpcSession hello;
    CHECK(feed_one(hello, "BERTH/1\nxx").kind == Kind::kFatal);
}

TEST_CASE("timeouts are clamped to a day; negative ones refused") {
    TtrpcSession session;
    CHECK(feed_one(session, request(1, 0, limits::kTimeoutNanosMax)).request.timeout_nano ==
          limits::kTimeoutNanosMax);
    CHECK(feed_one(session, request(3, 0, INT64_MAX)).request.timeout_nano == limits::kTimeoutNanosMax);
    check_refused(feed_one(session, request(5, 0, -1)), 5, core::Code::kInvalidArgument,
                  "ttrpc: timeout_nano -1 is negative");
    check_refused(feed_one(session, request(5, 0, INT64_MIN)), 5, core::Code::kInvalidArgument,
                  "ttrpc: timeout_nano -9223372036854775808 is negative");
}

TEST_CASE("data frames") {
    TtrpcSession session;
    check_refused(feed_one(session, frame(1, 1, 3, 0, "x")), 1, core::Code::kInvalidArgument,
                  "ttrpc: data on stream 1, which is not open");
    feed_one(session, request(1, 0));
    feed_one(session, request(3, 1));
    feed_one(session, request(5, 2));
    for (uint32_t id : {1u, 3u}) {
        SessionEvent event = feed_one(session, frame(0, id, 3, 5));
        CHECK(event.kind == Kind::kBroken);
        CHECK(event.stream_id == id);
        CHECK(event.error.code == core::Code::kInvalidArgument);
        CHECK(event.error.message ==
              "ttrpc: data on stream " + std::to_string(id) + ", whose method takes none");
    }
    CHECK(feed(session, frame(0, 5, 3, 5)).empty());  // the client closes its direction
    CHECK(feed_one(session, frame(0, 5, 3, 5)).kind == Kind::kBroken);
    feed_one(session, request(7, 6));
    CHECK(feed_one(session, frame(3, 7, 3, 1, "abc")).kind == Kind::kBroken);
    session.finish(7);
    CHECK(feed_one(session, frame(0, 7, 3, 5)).kind == Kind::kRefused);
    CHECK(feed_one(session, frame(0, 8, 3, 5)).kind == Kind::kRefused);
}

TEST_CASE("at most 1,024 open streams") {
    TtrpcSession session;
    uint32_t id = 1;
    for (size_t i = 0; i < limits::kOpenStreamsPerConnection; i++, id += 2) {
        REQUIRE(feed_one(session, request(id)).kind == Kind::kRequest);
    }
    check_refused(feed_one(session, request(id)), id, core::Code::kResourceExhausted,
                  "ttrpc: 1024 calls are open on this connection");
    session.finish(1001);
    session.finish(1001);
    session.finish(4);
    CHECK(session.open_streams() == 1023);
    CHECK(feed_one(session, request(id)).kind == Kind::kRequest);

    // The place is free when the header comes but the payload was not kept, and the other way round.
    std::string next = request(id + 2);
    CHECK(feed(session, next.substr(0, 12)).empty());
    session.finish(3);
    check_refused(feed_one(session, next.substr(12)), id + 2, core::Code::kResourceExhausted,
                  "ttrpc: too many calls were open on this connection");
}

}  // namespace
}  // namespace berth::wire
