#include "agent/client/address.h"

#include <doctest/doctest.h>

using berth::client::Address;
using berth::client::format_address;
using berth::client::parse_address;
using berth::client::Transport;

TEST_CASE("addresses are read and written alike") {
    struct Case {
        const char* text;
        Address address;
    };
    const Case cases[] = {
        {"vsock://3:1023", {Transport::kVsock, 3, 1023, ""}},
        {"vsock://0:4294967294", {Transport::kVsock, 0, 4294967294, ""}},
        {"hvsock:///run/vm.sock:1023", {Transport::kHvsock, 0, 1023, "/run/vm.sock"}},
        {"hvsock:///odd:name:7", {Transport::kHvsock, 0, 7, "/odd:name"}},
        {"unix:///tmp/a", {Transport::kUnix, 0, 0, "/tmp/a"}},
        {"/run/berth/berth.sock", {Transport::kLocal, 0, 0, "/run/berth/berth.sock"}},
    };
    for (const Case& c : cases) {
        CAPTURE(c.text);
        auto parsed = parse_address(c.text);
        REQUIRE(parsed.ok());
        CHECK(*parsed == c.address);
        CHECK(format_address(*parsed) == c.text);
    }
    CHECK(parse_address("local:///x").value() == Address{Transport::kLocal, 0, 0, "/x"});
}

TEST_CASE("a wrong address is named with what is wrong") {
    struct Case {
        std::string text;
        const char* error;
    };
    const Case cases[] = {
        {"", "address \"\": must begin with vsock://, hvsock://, unix://, local:// or /"},
        {"tcp://1:2", "address \"tcp://1:2\": must begin with vsock://, hvsock://, unix://, local:// or /"},
        {"vsock://3", "address \"vsock://3\": must be vsock://CID:PORT"},
        {"vsock://x:1", "address \"vsock://x:1\": the CID is not a number"},
        {"vsock://4294967295:1", "address \"vsock://4294967295:1\": the CID is not a number"},
        {"vsock://3:", "address \"vsock://3:\": the port is not a number"},
        {"vsock://3:1:1", "address \"vsock://3:1:1\": the port is not a number"},
        {"vsock://3:+1", "address \"vsock://3:+1\": the port is not a number"},
        {"vsock://3:4294967296", "address \"vsock://3:4294967296\": the port is not a number"},
        {"hvsock:///a", "address \"hvsock:///a\": must be hvsock:///PATH:PORT"},
        {"hvsock://:1", "address \"hvsock://:1\": the path must be absolute"},
        {"unix://a", "address \"unix://a\": the path must be absolute"},
        {"unix://", "address \"unix://\": the path must be absolute"},
        {std::string("/a\0b", 4), "address \"/a\\x00b\": the path holds a zero byte"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.text);
        auto parsed = parse_address(c.text);
        REQUIRE(!parsed.ok());
        CHECK(parsed.error().code == berth::core::Code::kInvalidArgument);
        CHECK(parsed.error().message == c.error);
    }
    CHECK(parse_address("/" + std::string(106, 'p')).ok());
    CHECK(!parse_address("/" + std::string(107, 'p')).ok());
}
