#include "agent/client/stream_client.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include "agent/client/io.h"
#include "agent/core/limits.h"
#include "tests/support/client/fake_agent.h"

using namespace berth;
using client::InputStream;
using client::OutputEvent;
using client::OutputStream;
using core::Code;
using wire::SmallStreamFrame;
using wire::StreamFrameType;
using Kind = OutputEvent::Kind;

namespace {

std::string text_of(std::span<const std::byte> data) {
    return {reinterpret_cast<const char*>(data.data()), data.size()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// Everything until nothing is left: "data" concatenated, "<eof>", "<lost N>", "<closed N>".
std::string drain(OutputStream& stream) {
    std::string out;
    for (;;) {
        auto event = stream.next();
        if (!event.ok()) return out + "<" + event.error().message + ">";
        switch (event->kind) {
            case Kind::kNone: return out;
            case Kind::kData: out += text_of(event->data); break;
            case Kind::kLost: out += "<lost " + std::to_string(event->count) + ">"; break;
            case Kind::kEof: out += "<eof>"; break;
            case Kind::kClosed:
                out += "<closed " + std::to_string(static_cast<int>(event->code)) + ">";
                break;
        }
        stream.acknowledge();
    }
}

uint64_t next_ack(const sys::UniqueFd& far) {
    test::FakeFrame frame;
    REQUIRE(test::read_stream_frame(far, frame));
    return test::ack_of(frame);
}

}  // namespace

TEST_CASE("output is given in order, acknowledged when secured, and ends") {
    test::Pair pair = test::make_pair();
    OutputStream stream;
    stream.attach(std::move(pair.near));
    CHECK(drain(stream).empty());
    test::write_all(pair.far, SmallStreamFrame::attached(0, 1 << 20).bytes());
    test::write_stream_data(pair.far, "hello ");
    test::write_stream_data(pair.far, "world");
    CHECK(drain(stream) == "hello world");
    CHECK(next_ack(pair.far) == 11);
    test::write_all(pair.far, SmallStreamFrame::lost(5).bytes());
    test::write_stream_data(pair.far, "!");
    test::write_all(pair.far, SmallStreamFrame::eof().bytes());
    CHECK(drain(stream) == "<lost 5>!<eof>");
    CHECK(stream.received() == 17);
    CHECK(next_ack(pair.far) == 17);
    test::write_all(pair.far, SmallStreamFrame::closed(Code::kOk).bytes());
    CHECK(drain(stream) == "<closed 0>");
    CHECK(stream.closed());
    CHECK(stream.fd() == -1);
}

TEST_CASE("what was not secured is not acknowledged") {
    test::Pair pair = test::make_pair();
    OutputStream stream;
    stream.attach(std::move(pair.near));
    test::write_all(pair.far, SmallStreamFrame::attached(0, 1024).bytes());
    test::write_stream_data(pair.far, "abc");
    CHECK(stream.next()->kind == Kind::kData);
    CHECK(stream.next()->kind == Kind::kNone);
    char byte = 0;
    CHECK(::recv(pair.far.get(), &byte, 1, MSG_DONTWAIT) == -1);
    stream.acknowledge();
    CHECK(stream.next()->kind == Kind::kNone);
    CHECK(next_ack(pair.far) == 3);
}

TEST_CASE("empty output is acknowledged too") {
    test::Pair pair = test::make_pair();
    OutputStream stream;
    stream.attach(std::move(pair.near));
    test::write_all(pair.far, SmallStreamFrame::attached(0, 1024).bytes());
    test::write_all(pair.far, SmallStreamFrame::eof().bytes());
    CHECK(drain(stream) == "<eof>");
    CHECK(next_ack(pair.far) == 0);
}

TEST_CASE("a reattachment loses nothing and doubles nothing") {
    test::Pair first = test::make_pair();
    OutputStream stream;
    stream.attach(std::move(first.near));
    test::write_all(first.far, SmallStreamFrame::attached(0, 1024).bytes());
    test::write_stream_data(first.far, "abcdef");
    CHECK(drain(stream) == "abcdef");
    first.far.reset();
    auto ended = stream.next();
    REQUIRE(!ended.ok());
    CHECK(client::is_disconnect(ended.error()));
    CHECK(stream.received() == 6);

    SUBCASE("where it was") {
        test::Pair second = test::make_pair();
        stream.attach(std::move(second.near));
        test::write_all(second.far, SmallStreamFrame::attached(6, 1024).bytes());
        test::write_stream_data(second.far, "ghi");
        CHECK(drain(stream) == "ghi");
        // The ACK of the first connection may not have arrived: it is said again.
        CHECK(next_ack(second.far) >= 6);
        CHECK(stream.received() == 9);
    }
    SUBCASE("from an older offset") {
        test::Pair second = test::make_pair();
        stream.attach(std::move(second.near));
        test::write_all(second.far, SmallStreamFrame::attached(2, 1024).bytes());
        test::write_stream_data(second.far, "cd");
        test::write_stream_data(second.far, "efgh");
        CHECK(drain(stream) == "gh");
        CHECK(stream.received() == 8);
    }
    SUBCASE("lost bytes that were partly known") {
        test::Pair second = test::make_pair();
        stream.attach(std::move(second.near));
        test::write_all(second.far, SmallStreamFrame::attached(4, 1024).bytes());
        test::write_all(second.far, SmallStreamFrame::lost(5).bytes());
        test::write_stream_data(second.far, "z");
        CHECK(drain(stream) == "<lost 3>z");
        CHECK(stream.received() == 10);
    }
}

TEST_CASE("another client's takeover, and a peer that breaks the protocol") {
    test::Pair pair = test::make_pair();
    OutputStream stream;
    stream.attach(std::move(pair.near));
    SUBCASE("taken over") {
        test::write_all(pair.far, SmallStreamFrame::closed(Code::kAborted).bytes());
        CHECK(drain(stream) == "<closed 10>");
    }
    SUBCASE("data before ATTACHED") {
        test::write_stream_data(pair.far, "x");
        auto event = stream.next();
        REQUIRE(!event.ok());
        CHECK(!client::is_disconnect(event.error()));
        CHECK(stream.fd() == -1);
    }
    SUBCASE("an unknown type") {
        test::write_all(pair.far, std::string_view("\x63\0\0\0\0\0\0\0", 8));
        CHECK(!stream.next().ok());
    }
}

namespace {

struct Input {
    test::Pair pair = test::make_pair();
    InputStream stream;
    Input() { stream.attach(std::move(pair.near)); }
    void attach_again() {
        pair = test::make_pair();
        stream.attach(std::move(pair.near));
    }
    void say(const SmallStreamFrame& frame) { REQUIRE(test::write_all(pair.far, frame.bytes())); }
    void progress() { CHECK(stream.progress().ok()); }
    std::string next_data() {
        test::FakeFrame frame;
        REQUIRE(test::read_stream_frame(pair.far, frame));
        if (frame.header.type == StreamFrameType::kEof) return "<eof>";
        CHECK(frame.header.type == StreamFrameType::kData);
        return frame.payload;
    }
    bool silent() {
        char byte = 0;
        return ::recv(pair.far.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
    }
};

}  // namespace

TEST_CASE_FIXTURE(Input, "input waits for the window and ends with EOF") {
    CHECK(stream.room() == limits::kStreamPayloadBytes);
    stream.queue(bytes_of("early"));
    progress();
    CHECK(silent());
    CHECK(stream.events() == POLLIN);
    say(SmallStreamFrame::attached(0, 8));
    progress();
    CHECK(next_data() == "early");
    CHECK(stream.room() == 3);
    stream.queue(bytes_of("abc"));
    progress();
    CHECK(next_data() == "abc");
    CHECK(stream.room() == 0);
    say(SmallStreamFrame::ack(6));
    progress();
    CHECK(stream.room() == 6);
    stream.queue_eof();
    CHECK(stream.room() == 0);
    progress();
    CHECK(next_data() == "<eof>");
    CHECK(!stream.closed().has_value());
    say(SmallStreamFrame::closed(Code::kOk));
    progress();
    CHECK(stream.closed() == Code::kOk);
    CHECK(stream.fd() == -1);
}

TEST_CASE_FIXTURE(Input, "input that the agent does not have is sent again") {
    say(SmallStreamFrame::attached(0, 100));
    stream.queue(bytes_of("abcdef"));
    stream.queue_eof();
    progress();
    CHECK(next_data() == "abcdef");
    CHECK(next_data() == "<eof>");
    pair.far.reset();
    auto status = stream.progress();
    REQUIRE(!status.ok());
    CHECK(client::is_disconnect(status.error()));
    attach_again();
    say(SmallStreamFrame::attached(4, 100));
    progress();
    CHECK(next_data() == "ef");
    CHECK(next_data() == "<eof>");
}

TEST_CASE_FIXTURE(Input, "a smaller window after a reattachment holds back what is beyond it") {
    say(SmallStreamFrame::attached(0, 100));
    stream.queue(bytes_of("abcdefgh"));
    progress();
    CHECK(next_data() == "abcdefgh");
    pair.far.reset();
    CHECK(!stream.progress().ok());
    attach_again();
    say(SmallStreamFrame::attached(0, 3));
    progress();
    CHECK(next_data() == "abc");
    CHECK(silent());
    CHECK(stream.room() == 0);
    say(SmallStreamFrame::ack(3));
    progress();
    CHECK(next_data() == "def");
}

TEST_CASE_FIXTURE(Input, "an agent that does not read delays nobody") {
    say(SmallStreamFrame::attached(0, 1 << 20));
    std::string much(1 << 20, 'x');
    while (stream.room() > 0) {
        stream.queue(bytes_of(std::string_view(much).substr(0, stream.room())));
        progress();
    }
    CHECK((stream.events() & POLLOUT) != 0);
    size_t got = 0;
    while (got < much.size()) {
        got += next_data().size();
        progress();
    }
    CHECK(got == much.size());
    CHECK((stream.events() & POLLOUT) == 0);
}

TEST_CASE_FIXTURE(Input, "acknowledgements that cannot be") {
    say(SmallStreamFrame::attached(0, 100));
    stream.queue(bytes_of("abc"));
    progress();
    SUBCASE("beyond what was sent") {
        say(SmallStreamFrame::ack(4));
        auto status = stream.progress();
        REQUIRE(!status.ok());
        CHECK(status.error().message == "stream: the agent acknowledges input that was not sent");
    }
    SUBCASE("back below what was acknowledged") {
        say(SmallStreamFrame::ack(3));
        progress();
        pair.far.reset();
        CHECK(!stream.progress().ok());
        attach_again();
        say(SmallStreamFrame::attached(1, 100));
        auto status = stream.progress();
        REQUIRE(!status.ok());
        CHECK(status.error().message == "stream: the agent asks for input that it had acknowledged");
    }
    SUBCASE("a process that takes no more") {
        say(SmallStreamFrame::closed(Code::kNotFound));
        progress();
        CHECK(stream.closed() == Code::kNotFound);
        CHECK(stream.room() == 0);
    }
}
