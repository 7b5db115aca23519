#include "agent/wire/stream_frame.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace berth::wire {
namespace {

using Kind = StreamEvent::Kind;

std::string text_of(std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string bytes(std::initializer_list<int> values) {
    std::string text;
    for (int value : values) text += static_cast<char>(value);
    return text;
}

std::string data_frame(const std::string& payload) {
    auto header = encode_stream_header(
        {.type = StreamFrameType::kData, .length = static_cast<uint32_t>(payload.size())});
    return std::string(header.begin(), header.end()) + payload;
}

struct Outcome {
    std::string trace;  // one letter an event, DATA as it came
    std::string error;
};

Outcome decode(StreamSender sender, const std::string& input, size_t chunk = SIZE_MAX) {
    Outcome outcome;
    StreamDecoder decoder(sender);
    std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(input.data()), input.size());
    while (!rest.empty()) {
        StreamEvent event;
        core::Result<size_t> taken = decoder.feed(rest.first(std::min(chunk, rest.size())), event);
        if (!taken.ok()) {
            outcome.error = taken.error().message;
            CHECK(taken.error().code == core::Code::kInvalidArgument);
            CHECK(event.kind == Kind::kNone);
            CHECK(decoder.feed(rest, event).error().message == outcome.error);
            return outcome;
        }
        REQUIRE(*taken > 0);
        rest = rest.subspan(*taken);
        switch (event.kind) {
            case Kind::kNone: break;
            case Kind::kData: outcome.trace += text_of(event.data); break;
            case Kind::kEof: outcome.trace += "|E"; break;
            case Kind::kAck: outcome.trace += "|K" + std::to_string(event.value); break;
            case Kind::kLost: outcome.trace += "|L" + std::to_string(event.value); break;
            case Kind::kClosed: outcome.trace += "|C" + std::to_string(event.code); break;
            case Kind::kAttached:
                outcome.trace +=
                    "|A" + std::to_string(event.value) + "," + std::to_string(event.window) + "|";
                break;
        }
    }
    return outcome;
}

const std::string kAttached = text_of(SmallStreamFrame::attached(0x0102030405060708, 0x100000).bytes());
const std::string kEof = text_of(SmallStreamFrame::eof().bytes());

TEST_CASE("frames are laid out as published") {
    CHECK(kAttached == bytes({6, 0, 0, 0, 0, 0, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0}));
    CHECK(kEof == bytes({2, 0, 0, 0, 0, 0, 0, 0}));
    CHECK(text_of(SmallStreamFrame::ack(258).bytes()) ==
          bytes({3, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 1, 2}));
    CHECK(text_of(SmallStreamFrame::lost(UINT64_MAX).bytes()) ==
          bytes({4, 0, 0, 0, 0, 0, 0, 8, 255, 255, 255, 255, 255, 255, 255, 255}));
    CHECK(text_of(SmallStreamFrame::closed(core::Code::kAborted).bytes()) ==
          bytes({5, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 10}));
    CHECK(data_frame("hi") == bytes({1, 0, 0, 0, 0, 0, 0, 2, 'h', 'i'}));
}

TEST_CASE("an output stream, however the bytes arrive") {
    std::string closed = text_of(SmallStreamFrame::closed(core::Code::kOk).bytes());
    std::string input = kAttached + data_frame("abc") + text_of(SmallStreamFrame::lost(9).bytes()) +
                        data_frame(std::string(limits::kStreamPayloadBytes, 'x')) + kEof + closed;
    std::string want =
        "|A72623859790382856,1048576|abc|L9" + std::string(limits::kStreamPayloadBytes, 'x') + "|E|C0";
    for (size_t chunk : {size_t{1}, size_t{3}, size_t{8}, size_t{1000}, SIZE_MAX}) {
        Outcome outcome = decode(StreamSender::kAgentOfOutput, input, chunk);
        CHECK(outcome.error == "");
        CHECK(outcome.trace == want);
    }
    // Cut anywhere: a prefix of the same, and no error.
    for (size_t length = 0; length < 60; length++) {
        Outcome outcome = decode(StreamSender::kAgentOfOutput, input.substr(0, length));
        CHECK(outcome.error == "");
        CHECK(want.starts_with(outcome.trace));
    }
}

TEST_CASE("an input stream") {
    CHECK(decode(StreamSender::kClientOfInput, data_frame("a") + data_frame("b") + kEof).trace == "ab|E");
    std::string agent = kAttached + text_of(SmallStreamFrame::ack(5).bytes()) +
                        text_of(SmallStreamFrame::ack(5).bytes()) +
                        text_of(SmallStreamFrame::closed(core::Code::kAborted).bytes());
    CHECK(decode(StreamSender::kAgentOfInput, agent, 1).trace == "|A72623859790382856,1048576||K5|K5|C10");
    CHECK(decode(StreamSender::kClientOfOutput, text_of(SmallStreamFrame::ack(1).bytes())).trace == "|K1");
}

TEST_CASE("what is malformed, out of order or not for this side is refused by name") {
    std::string ack9 = text_of(SmallStreamFrame::ack(9).bytes());
    std::string ack8 = text_of(SmallStreamFrame::ack(8).bytes());
    std::string closed = text_of(SmallStreamFrame::closed(core::Code::kNotFound).bytes());
    struct Case {
        StreamSender sender;
        std::string input;
        std::string want;
    };
    using enum StreamSender;
    const Case cases[] = {
        {kClientOfInput, bytes({0, 0, 0, 0, 0, 0, 0, 1}), "stream: unknown frame type 0"},
        {kClientOfInput, bytes({7, 0, 0, 0, 0, 0, 0, 1}), "stream: unknown frame type 7"},
        {kClientOfInput, bytes({1, 1, 0, 0, 0, 0, 0, 1}), "stream: a flag or reserved byte is set"},
        {kClientOfInput, bytes({1, 0, 1, 0, 0, 0, 0, 1}), "stream: a flag or reserved byte is set"},
        {kClientOfInput, bytes({1, 0, 0, 1, 0, 0, 0, 1}), "stream: a flag or reserved byte is set"},
        {kClientOfInput, bytes({1, 0, 0, 0, 0, 0, 0, 0}), "stream: DATA with 0 bytes"},
        {kClientOfInput, bytes({1, 0, 0, 0, 0, 1, 0, 1}), "stream: DATA with 65537 bytes"},
        {kClientOfInput, bytes({1, 0, 0, 0, 255, 255, 255, 255}), "stream: DATA with 4294967295 bytes"},
        {kClientOfInput, bytes({2, 0, 0, 0, 0, 0, 0, 1}), "stream: EOF with 1 bytes"},
        {kClientOfOutput, bytes({3, 0, 0, 0, 0, 0, 0, 9}), "stream: ACK with 9 bytes"},
        {kAgentOfOutput, bytes({4, 0, 0, 0, 0, 0, 0, 7}), "stream: LOST with 7 bytes"},
        {kAgentOfOutput, bytes({5, 0, 0, 0, 0, 0, 0, 8}), "stream: CLOSED with 8 bytes"},
        {kAgentOfOutput, bytes({6, 0, 0, 0, 0, 0, 0, 8}), "stream: ATTACHED with 8 bytes"},
        {kClientOfOutput, data_frame("x"), "stream: DATA is not for this side to send"},
        {kClientOfOutput, kAttached, "stream: ATTACHED is not for this side to send"},
        {kClientOfInput, ack9, "stream: ACK is not for this side to send"},
        {kClientOfInput, closed, "stream: CLOSED is not for this side to send"},
        {kAgentOfInput, kAttached + data_frame("x"), "stream: DATA is not for this side to send"},
        {kAgentOfOutput, kAttached + ack9, "stream: ACK is not for this side to send"},
        {kAgentOfOutput, data_frame("x"), "stream: DATA before ATTACHED"},
        {kAgentOfOutput, kEof, "stream: EOF before ATTACHED"},
        {kAgentOfInput, ack9, "stream: ACK before ATTACHED"},
        {kAgentOfOutput, kAttached + kAttached, "stream: ATTACHED twice"},
        {kAgentOfOutput, closed + kEof, "stream: EOF after CLOSED"},
        {kAgentOfOutput, closed + closed, "stream: CLOSED after CLOSED"},
        {kClientOfInput, kEof + data_frame("x"), "stream: DATA after EOF"},
        {kClientOfInput, kEof + kEof, "stream: EOF after EOF"},
        {kClientOfOutput, ack9 + ack8, "stream: ACK goes backwards"},
        {kAgentOfOutput, kAttached + bytes({4, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0}),
         "stream: LOST of 0 bytes"},
        {kAgentOfOutput, bytes({6, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}),
         "stream: ATTACHED with a window of 0"},
    };
    for (const Case& test : cases) {
        CAPTURE(test.want);
        CHECK(decode(test.sender, test.input).error == test.want);
        CHECK(decode(test.sender, test.input, 1).error == test.want);
    }
}

TEST_CASE("a reader may move DATA past the decoder") {
    StreamDecoder decoder(StreamSender::kClientOfInput);
    StreamEvent event;
    std::string header = data_frame("12345").substr(0, 8);
    std::span<const std::byte> input(reinterpret_cast<const std::byte*>(header.data()), header.size());
    CHECK(decoder.bytes_wanted() == 8);
    CHECK(decoder.feed(input, event).value() == 8);
    CHECK(event.kind == Kind::kNone);
    CHECK(decoder.inside_data());
    CHECK(decoder.bytes_wanted() == 5);
    decoder.skip_data(2);
    CHECK(decoder.bytes_wanted() == 3);
    decoder.skip_data(3);
    CHECK(!decoder.inside_data());
    CHECK(decoder.bytes_wanted() == 8);
}

}  // namespace
}  // namespace berth::wire
