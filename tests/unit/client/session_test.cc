#include "agent/client/session.h"

#include <doctest/doctest.h>

#include <thread>

#include "agent/client/events.h"
#include "tests/support/client/fake_agent.h"

using namespace berth;
using client::EventSubscription;
using client::Session;
using core::Code;

namespace {

template <typename Message>
std::string encoded(const Message& message) {
    std::string bytes;
    message.SerializeToString(&bytes);
    return bytes;
}

v1::EventMessage subscribed(uint64_t last, char instance = 'i') {
    v1::EventMessage message;
    message.mutable_subscribed()->set_instance_id(std::string(16, instance));
    message.mutable_subscribed()->set_last_sequence(last);
    return message;
}

v1::EventMessage event(uint64_t sequence) {
    v1::EventMessage message;
    message.mutable_event()->set_sequence(sequence);
    message.mutable_event()->mutable_deleted();
    return message;
}

v1::EventMessage lost(uint64_t first, char instance = 'i') {
    v1::EventMessage message;
    message.mutable_lost()->set_first_available_sequence(first);
    message.mutable_lost()->set_instance_id(std::string(16, instance));
    return message;
}

// One subscription as the agent sees it.
struct Taken {
    sys::UniqueFd fd;
    uint32_t id = 0;
    std::string method;
    std::string instance;
    std::optional<uint64_t> since;

    explicit Taken(sys::UniqueFd connection) : fd(std::move(connection)) { read(); }
    void read() {
        test::FakeRequest request;
        if (!test::read_request(fd, request)) return;
        id = request.id;
        method = request.message.method;
        v1::SubscribeRequest message;
        CHECK(message.ParseFromString(request.message.payload));
        instance = message.instance_id();
        since.reset();
        if (message.has_since()) since = message.since();
    }
    void say(const v1::EventMessage& message) const {
        test::write_all(fd, wire::encode_data_frame(id, 0, encoded(message)).value());
    }
    void end() const { test::write_all(fd, wire::encode_end_frame(id)); }
};

int64_t soon() {
    return client::deadline_after_ms(20'000);
}

struct Fixture {
    test::FakeListener listener;
    Session session{{client::Transport::kLocal, 0, 0, listener.path()}, {}, -1};
    const std::string instance = std::string(16, 'i');
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a session dials again after its connection ended, and never repeats a call") {
    int calls = 0;
    std::thread agent([&] {
        test::FakeRequest request;
        {
            sys::UniqueFd fd = listener.accept();
            while (calls < 2 && test::read_request(fd, request)) {
                calls++;
                if (calls == 1) test::write_all(fd, wire::encode_response_frame(request.id, ""));
            }
        }
        sys::UniqueFd fd = listener.accept();
        while (test::read_request(fd, request)) {
            calls++;
            test::write_all(fd, wire::encode_response_frame(request.id, ""));
        }
    });
    auto call = [&] {
        return session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest());
    };
    CHECK(call().ok());
    auto cut = call();
    REQUIRE(!cut.ok());
    CHECK(client::is_disconnect(cut.error()));
    CHECK(call().ok());
    session.disconnect();
    agent.join();
    CHECK(calls == 3);
}

TEST_CASE_FIXTURE(Fixture, "a stream is opened with the ticket that OpenStream gave") {
    v1::OpenStreamRequest asked;
    auth::HelloFields hello;
    std::thread agent([&] {
        sys::UniqueFd control = listener.accept();
        test::FakeRequest request;
        REQUIRE(test::read_request(control, request));
        CHECK(asked.ParseFromString(request.message.payload));
        v1::OpenStreamResponse response;
        response.set_ticket(std::string(32, 't'));
        test::write_all(control, wire::encode_response_frame(request.id, encoded(response)));
        sys::UniqueFd stream = listener.accept();
        auth::Hello message{};
        test::read_all(stream, message.data(), message.size());
        auth::parse_hello(message, hello);
        // A malformed ticket is no ticket.
        REQUIRE(test::read_request(control, request));
        response.set_ticket("short");
        test::write_all(control, wire::encode_response_frame(request.id, encoded(response)));
    });
    CHECK(session.open_stream("web", "e1", v1::STREAM_STDOUT, 77).ok());
    auto bad = session.open_stream("web", "", v1::STREAM_STDIN, std::nullopt);
    agent.join();
    CHECK(asked.container_id() == "web");
    CHECK(asked.exec_id() == "e1");
    CHECK(asked.stream() == v1::STREAM_STDOUT);
    CHECK(asked.resume_offset() == 77);
    CHECK(hello.ticket[31] == 't');
    REQUIRE(!bad.ok());
    CHECK(bad.error().message == "OpenStream: the ticket is malformed");
}

TEST_CASE_FIXTURE(Fixture, "events go on behind the last one seen when the connection ends") {
    std::thread agent([&] {
        {
            Taken first(listener.accept());
            CHECK(first.method == "Subscribe");
            CHECK(!first.since.has_value());
            first.say(subscribed(7));
        }
        {
            // Nothing was seen: where the subscription had begun.
            Taken second(listener.accept());
            CHECK(second.since == 7u);
            CHECK(second.instance == instance);
            second.say(subscribed(8));
            second.say(event(8));
            second.say(event(9));
        }
        Taken third(listener.accept());
        CHECK(third.since == 9u);
        third.say(subscribed(10));
        third.say(event(10));
        char byte = 0;
        test::read_all(third.fd, &byte, 1);
    });
    {
        EventSubscription events(session, {});
        REQUIRE(events.start().ok());
        for (uint64_t sequence : {8u, 9u, 10u}) {
            auto message = events.next(soon());
            REQUIRE(message.ok());
            CHECK(message->event().sequence() == sequence);
        }
        CHECK(events.position().since == 10u);
        CHECK(events.next(client::deadline_after_ms(1)).error().code == Code::kDeadlineExceeded);
    }
    agent.join();
}

TEST_CASE_FIXTURE(Fixture, "lost is told, and a subscriber that was too slow begins again behind it") {
    std::thread agent([&] {
        Taken taken(listener.accept());
        CHECK(taken.since == 3u);
        taken.say(subscribed(100));
        taken.say(lost(50));
        taken.end();
        taken.read();
        CHECK(taken.since == 49u);
        taken.say(subscribed(100));
        taken.say(event(50));
        // An end without a reason is the end.
        taken.end();
        char byte = 0;
        test::read_all(taken.fd, &byte, 1);
    });
    {
        EventSubscription::Options options;
        options.position.instance_id = instance;
        options.position.since = 3;
        EventSubscription events(session, options);
        CHECK(events.next(soon())->lost().first_available_sequence() == 50);
        CHECK(events.next(soon())->event().sequence() == 50);
        auto ended = events.next(soon());
        REQUIRE(!ended.ok());
        CHECK(ended.error().code == Code::kUnavailable);
    }
    agent.join();
}

TEST_CASE_FIXTURE(Fixture, "an agent that sends no `subscribed`, and messages of a newer one") {
    std::thread agent([&] {
        Taken taken(listener.accept());
        CHECK(taken.method == "WatchMemoryEvents");
        taken.say(event(1));
        taken.say(v1::EventMessage());
        taken.say(event(2));
        char byte = 0;
        test::read_all(taken.fd, &byte, 1);
    });
    {
        EventSubscription::Options options;
        options.memory_only = true;
        EventSubscription events(session, options);
        REQUIRE(events.start().ok());
        CHECK(events.has_buffered());
        CHECK(events.next(soon())->event().sequence() == 1);
        CHECK(events.next(soon())->event().sequence() == 2);
    }
    agent.join();
}

TEST_CASE_FIXTURE(Fixture, "a refused subscription is the caller's error") {
    std::thread agent([&] {
        Taken taken(listener.accept());
        test::write_all(taken.fd, wire::encode_error_frame(
                                      taken.id, core::make_error(Code::kInvalidArgument, "since: too new")));
    });
    EventSubscription events(session, {});
    auto status = events.start();
    agent.join();
    REQUIRE(!status.ok());
    CHECK(status.error().message == "since: too new");
}
