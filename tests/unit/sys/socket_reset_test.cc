#include <doctest/doctest.h>
#include <sys/socket.h>

#include "agent/sys/socket.h"

using berth::sys::bytes_of;
using berth::sys::receive_with_fds;
using berth::sys::send_with_fds;

TEST_CASE("the last datagrams of a peer that closed with unread input are not lost") {
    auto pair = berth::sys::make_seqpacket_pair();
    REQUIRE(pair.ok());
    const uint32_t numbers[] = {1, 2};
    for (uint32_t number : numbers) REQUIRE(send_with_fds(pair->second, bytes_of(number), {}).ok());
    REQUIRE(send_with_fds(pair->first, bytes_of(numbers[0]), {}).ok());
    pair->second.reset();  // ECONNRESET for the first end: the peer had not read
    for (uint32_t number : numbers) {
        uint32_t got = 0;
        auto received = receive_with_fds(pair->first, berth::sys::writable_bytes_of(got), MSG_DONTWAIT);
        REQUIRE(received.ok());
        CHECK(!received->end);
        CHECK(got == number);
    }
    uint32_t got = 0;
    auto received = receive_with_fds(pair->first, berth::sys::writable_bytes_of(got), MSG_DONTWAIT);
    REQUIRE(received.ok());
    CHECK(received->end);
}
