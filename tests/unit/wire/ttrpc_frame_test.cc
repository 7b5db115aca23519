#include "agent/wire/ttrpc_frame.h"

#include <doctest/doctest.h>

#include <string>

namespace berth::wire {
namespace {

std::string bytes(std::initializer_list<int> values) {
    std::string text;
    for (int value : values) text += static_cast<char>(value);
    return text;
}

TEST_CASE("a request frame is what containerd's client writes") {
    TtrpcRequest request{
        .service = "S", .method = "M", .payload = "pp", .timeout_nano = 300, .containerd_namespace = ""};
    request.containerd_namespace = "k8s";
    std::string frame = encode_request_frame(3, 0, request).value();
    std::string want = bytes({0, 0, 0, 48, 0, 0, 0, 3, 1, 0}) + bytes({0x0A, 1}) + "S" + bytes({0x12, 1}) +
                       "M" + bytes({0x1A, 2}) + "pp" + bytes({0x20, 0xAC, 0x02}) + bytes({0x2A, 33}) +
                       bytes({0x0A, 26}) + "containerd-namespace-ttrpc" + bytes({0x12, 3}) + "k8s";
    CHECK(frame == want);
    TtrpcRequest back = decode_request(std::string_view(frame).substr(10)).value();
    CHECK(back.service == "S");
    CHECK(back.method == "M");
    CHECK(back.payload == "pp");
    CHECK(back.timeout_nano == 300);
    CHECK(back.containerd_namespace == "k8s");
}

TEST_CASE("requests: what is accepted") {
    struct Case {
        std::string text;
        std::string service;
        int64_t timeout;
    };
    const Case cases[] = {
        {"", "", 0},
        {bytes({0x0A, 1, 'a', 0x0A, 1, 'b'}), "b", 0},                     // the last of two wins
        {bytes({0x30, 5, 0x3A, 1, 'x', 0x0A, 1, 'a'}), "a", 0},            // unknown fields 6 and 7
        {bytes({0x35, 1, 2, 3, 4, 0x39, 1, 2, 3, 4, 5, 6, 7, 8}), "", 0},  // unknown fixed32, fixed64
        {bytes({0x20, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1}), "", -1},
        {bytes({0x20, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F}), "", INT64_MAX},
        {bytes({0x2A, 0}), "", 0},                    // empty metadata
        {bytes({0x2A, 4, 0x0A, 0, 0x18, 1}), "", 0},  // with an unknown field
    };
    for (const Case& test : cases) {
        core::Result<TtrpcRequest> request = decode_request(test.text);
        REQUIRE(request.ok());
        CHECK(request->service == test.service);
        CHECK(request->timeout_nano == test.timeout);
    }
    // Repeated metadata: the first value of the key counts, other keys do not.
    TtrpcRequest first{
        .service = {}, .method = {}, .payload = {}, .timeout_nano = 0, .containerd_namespace = "one"};
    TtrpcRequest second = first;
    second.containerd_namespace = "two";
    std::string both = encode_request_frame(1, 0, first)->substr(10) +
                       encode_request_frame(1, 0, second)->substr(10) +
                       bytes({0x2A, 6, 0x0A, 1, 'k', 0x12, 1, 'v'});
    CHECK(decode_request(both)->containerd_namespace == "one");
}

TEST_CASE("requests: what is refused") {
    const std::string cases[] = {
        bytes({0x0A}),                                                           // no length
        bytes({0x0A, 2, 'a'}),                                                   // too short
        bytes({0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1}),  // 2^64-1 bytes
        bytes({0x80}),                                                           // half a tag
        bytes({0x00, 0}),                                                        // field 0
        bytes({0x0B, 0x0C}),                                                     // a group
        bytes({0x0E}),                                                           // wire type 6
        bytes({0x08, 1}),                                                        // service as a number
        bytes({0x22, 1, '1'}),                                                   // timeout as bytes
        bytes({0x20, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2}),  // 65 bits
        bytes({0x20, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1}),
        bytes({0x0A, 1, 0xFF}),  // not UTF-8
        bytes({0x12, 2, 0xC0, 0x80}),
        bytes({0x2A, 2, 0x0A, 5}),  // metadata cut short
        bytes({0x2A, 3, 0x0A, 1, 0xFF}),
        bytes({0x2A, 2, 0x08, 1}),
        bytes({0x35, 1, 2}),
        bytes({0x39, 1, 2}),
        bytes({0x88, 0x80, 0x80, 0x80, 0x80, 0x01, 0}),  // a tag above 32 bits
    };
    for (const std::string& text : cases) {
        core::Result<TtrpcRequest> request = decode_request(text);
        REQUIRE(!request.ok());
        CHECK(request.error().message == "ttrpc: undecodable request");
        CHECK(request.error().code == core::Code::kInvalidArgument);
    }
}

TEST_CASE("requests cut at any byte never crash, and mostly fail") {
    TtrpcRequest request{.service = "service",
                         .method = "method",
                         .payload = "payload",
                         .timeout_nano = 1,
                         .containerd_namespace = ""};
    request.containerd_namespace = "ns";
    std::string body = encode_request_frame(1, 0, request)->substr(10);
    int accepted = 0;
    for (size_t length = 0; length < body.size(); length++) {
        accepted += decode_request(std::string_view(body).substr(0, length)).ok();
    }
    CHECK(accepted == 5);  // between two fields a shorter message is whole
}

TEST_CASE("responses") {
    std::string frame = encode_response_frame(5, "abc");
    CHECK(frame == bytes({0, 0, 0, 5, 0, 0, 0, 5, 2, 0, 0x12, 3, 'a', 'b', 'c'}));
    CHECK(decode_response(std::string_view(frame).substr(10))->payload == "abc");
    CHECK(encode_response_frame(5, "") == bytes({0, 0, 0, 0, 0, 0, 0, 5, 2, 0}));

    frame = encode_error_frame(7, core::make_error(core::Code::kNotFound, "no\xFFne"));
    CHECK(frame == bytes({0, 0, 0, 11, 0, 0, 0, 7, 2, 0, 0x0A, 9, 0x08, 5, 0x12, 5}) + "no?ne");
    TtrpcResponse response = decode_response(std::string_view(frame).substr(10)).value();
    CHECK(response.code == core::Code::kNotFound);
    CHECK(response.message == "no?ne");
    // An error is never mistaken for success.
    frame = encode_error_frame(7, core::make_error(core::Code::kOk, "x"));
    CHECK(decode_response(std::string_view(frame).substr(10))->code == core::Code::kInternal);

    CHECK(encode_end_frame(9) == bytes({0, 0, 0, 0, 0, 0, 0, 9, 3, 5}));
    CHECK(encode_data_frame(9, 0, "z").value() == bytes({0, 0, 0, 1, 0, 0, 0, 9, 3, 0, 'z'}));
    for (const std::string& text : {bytes({0x0A, 5}), bytes({0x08, 1}), bytes({0x0A, 2, 0x0A, 0}),
                                    bytes({0x0A, 3, 0x12, 1, 0xFF}), bytes({0x12, 9, 'a'})}) {
        CHECK(decode_response(text).error().message == "ttrpc: undecodable response");
    }
    // details, and codes that we do not know
    CHECK(decode_response(bytes({0x0A, 5, 0x08, 99, 0x1A, 1, 'd'}))->code == core::Code::kUnknown);
}

TEST_CASE("4 MiB is the limit, exactly") {
    // tag and length take 1 + 4 bytes
    std::string largest(limits::kTtrpcMessageBytes - 5, 'p');
    std::string frame = encode_response_frame(1, largest);
    CHECK(frame.size() == 10 + limits::kTtrpcMessageBytes);
    std::string refused = encode_response_frame(1, largest + "p");
    TtrpcResponse response = decode_response(std::string_view(refused).substr(10)).value();
    CHECK(response.code == core::Code::kResourceExhausted);
    CHECK(response.message == "ttrpc: response of 4194305 bytes exceeds 4194304");

    TtrpcRequest request;
    request.payload = largest;
    CHECK(encode_request_frame(1, 0, request).ok());
    request.payload += "p";
    CHECK(encode_request_frame(1, 0, request).error().message ==
          "ttrpc: request of 4194305 bytes exceeds 4194304");
    CHECK(encode_data_frame(1, 0, std::string(limits::kTtrpcMessageBytes, 'd')).ok());
    CHECK(encode_data_frame(1, 0, std::string(limits::kTtrpcMessageBytes + 1, 'd')).error().message ==
          "ttrpc: message of 4194305 bytes exceeds 4194304");
}

}  // namespace
}  // namespace berth::wire
