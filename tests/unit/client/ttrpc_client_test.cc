#include "agent/client/ttrpc_client.h"

#include <doctest/doctest.h>

#include "agent/core/limits.h"
#include "proto/containerd/task.pb.h"
#include "tests/support/client/fake_agent.h"

using namespace berth;
using client::CallOptions;
using client::TtrpcClient;
using core::Code;

namespace {

struct Fixture {
    test::Pair pair = test::make_pair();
    TtrpcClient client{std::move(pair.near)};

    uint32_t begin(const char* method = "State") {
        auto id = client.begin_unary("s", method, "payload", CallOptions());
        REQUIRE(id.ok());
        return *id;
    }
    void feed(std::string_view bytes) { REQUIRE(test::write_all(pair.far, bytes)); }
    void pump() { CHECK(client.pump(client::deadline_after_ms(5'000)).ok()); }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a request carries what it should") {
    CallOptions options;
    options.timeout_ms = 1500;
    options.containerd_namespace = "k8s.io";
    REQUIRE(client.begin_unary("containerd.task.v3.Task", "State", "abc", options).ok());
    REQUIRE(client.begin_stream("berth.v1.Guest", "Subscribe", "", CallOptions()).ok());
    test::FakeRequest request;
    REQUIRE(test::read_request(pair.far, request));
    CHECK(request.id == 1);
    CHECK(request.flags == 0);
    CHECK(request.message.service == "containerd.task.v3.Task");
    CHECK(request.message.method == "State");
    CHECK(request.message.payload == "abc");
    CHECK(request.message.timeout_nano == 1'500'000'001);
    CHECK(request.message.containerd_namespace == "k8s.io");
    REQUIRE(test::read_request(pair.far, request));
    CHECK(request.id == 3);
    CHECK(request.flags == wire::kFlagRemoteClosed);
    CHECK(request.message.timeout_nano == 0);
}

TEST_CASE_FIXTURE(Fixture, "answers find their calls in any order and any pieces") {
    uint32_t first = begin();
    uint32_t second = begin();
    std::string bytes =
        wire::encode_response_frame(second, "two") +
        wire::encode_error_frame(first, core::make_error(Code::kNotFound, "state \"x\": none"));
    for (char byte : bytes) {
        CHECK(!client.has_answer(first));
        feed(std::string_view(&byte, 1));
        pump();
    }
    REQUIRE(client.has_answer(first));
    REQUIRE(client.has_answer(second));
    CHECK(client.take_answer(second).value() == "two");
    auto failed = client.take_answer(first);
    REQUIRE(!failed.ok());
    CHECK(failed.error().code == Code::kNotFound);
    CHECK(failed.error().message == "state \"x\": none");
}

TEST_CASE_FIXTURE(Fixture, "an empty answer is an answer; unknown ids and types are skipped") {
    uint32_t id = begin();
    std::string alien = wire::encode_response_frame(77, "nobody asked");
    std::string unknown = wire::encode_response_frame(id, "odd type");
    unknown[8] = 9;
    feed(alien + unknown + wire::encode_response_frame(id, ""));
    pump();
    REQUIRE(client.has_answer(id));
    CHECK(client.take_answer(id).value().empty());
}

TEST_CASE_FIXTURE(Fixture, "server streams end well, badly, or with the connection") {
    auto begin_stream = [&] { return client.begin_stream("s", "Subscribe", "", CallOptions()).value(); };
    int64_t deadline = client::deadline_after_ms(5'000);
    uint32_t well = begin_stream();
    uint32_t badly = begin_stream();
    uint32_t cut = begin_stream();
    feed(wire::encode_data_frame(well, 0, "a").value() + wire::encode_data_frame(well, 0, "").value() +
         wire::encode_end_frame(well) + wire::encode_data_frame(badly, 0, "b").value() +
         wire::encode_error_frame(badly, core::make_error(Code::kResourceExhausted, "too slow")));
    CHECK(client.next_message(well, deadline).value().value() == "a");
    CHECK(client.next_message(well, deadline).value().value().empty());
    CHECK(!client.next_message(well, deadline).value().has_value());
    CHECK(client.next_message(badly, deadline).value().value() == "b");
    CHECK(client.next_message(badly, deadline).error().code == Code::kResourceExhausted);
    CHECK(client.next_message(cut, 0).error().code == Code::kDeadlineExceeded);
    pair.far.reset();
    auto ended = client.next_message(cut, deadline);
    REQUIRE(!ended.ok());
    CHECK(client::is_disconnect(ended.error()));
}

TEST_CASE_FIXTURE(Fixture, "the end of the connection ends every call, and later ones fail at once") {
    uint32_t id = begin();
    pair.far.reset();
    CHECK(!client.pump(client::deadline_after_ms(5'000)).ok());
    REQUIRE(client.has_answer(id));
    CHECK(client::is_disconnect(client.take_answer(id).error()));
    auto later = client.call("s", "m", "", CallOptions());
    REQUIRE(!later.ok());
    CHECK(client::is_disconnect(later.error()));
}

TEST_CASE_FIXTURE(Fixture, "hostile frames") {
    SUBCASE("a length beyond the limit ends the connection unread") {
        begin();
        auto header =
            wire::encode_frame_header({.length = limits::kTtrpcMessageBytes + 1, .stream_id = 1, .type = 2});
        feed(std::string_view(reinterpret_cast<const char*>(header.data()), header.size()));
        auto status = client.pump(client::deadline_after_ms(5'000));
        REQUIRE(!status.ok());
        CHECK(status.error().message == "the peer sent a frame of 4194305 bytes");
    }
    SUBCASE("an undecodable answer fails its call alone") {
        uint32_t id = begin();
        uint32_t other = begin();
        auto header = wire::encode_frame_header({.length = 1, .stream_id = id, .type = 2});
        feed(std::string(reinterpret_cast<const char*>(header.data()), header.size()) + "\xff");
        feed(wire::encode_response_frame(other, "fine"));
        while (!client.has_answer(other)) pump();
        CHECK(client.take_answer(id).error().code == Code::kInternal);
        CHECK(client.take_answer(other).value() == "fine");
    }
    SUBCASE("a unary call that is answered with a stream fails") {
        uint32_t id = begin();
        feed(wire::encode_data_frame(id, 0, "x").value());
        pump();
        REQUIRE(client.has_answer(id));
        CHECK(client.take_answer(id).error().code == Code::kInternal);
    }
    SUBCASE("what follows the end of a call is skipped") {
        uint32_t id = begin();
        feed(wire::encode_response_frame(id, "one") + wire::encode_response_frame(id, "two"));
        pump();
        CHECK(client.take_answer(id).value() == "one");
    }
}

TEST_CASE_FIXTURE(Fixture, "a call gives up on an agent that does not answer") {
    CallOptions options;
    options.timeout_ms = 1;
    auto answer = client.call("s", "State", "", options);
    REQUIRE(!answer.ok());
    CHECK(answer.error().code == Code::kDeadlineExceeded);
    CHECK(answer.error().message == "State: no answer in time");
    // The late answer belongs to nobody.
    feed(wire::encode_response_frame(1, "late"));
    pump();
}

TEST_CASE_FIXTURE(Fixture, "messages of generated code") {
    pb::task::StartResponse response;
    response.set_pid(42);
    std::string bytes;
    response.SerializeToString(&bytes);
    feed(wire::encode_response_frame(1, bytes));
    pb::task::ProcessRequest request;
    request.set_id("web");
    auto good = client::call<pb::task::StartResponse>(client, "s", "Start", request, CallOptions());
    REQUIRE(good.ok());
    CHECK(good->pid() == 42);
    feed(wire::encode_response_frame(3, "\xff\xff"));
    auto bad = client::call<pb::task::StartResponse>(client, "s", "Start", request, CallOptions());
    REQUIRE(!bad.ok());
    CHECK(bad.error().message == "Start: undecodable answer");
}
