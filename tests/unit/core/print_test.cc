#include "agent/core/print.h"

#include <doctest/doctest.h>

#include <climits>
#include <cstdint>
#include <cstdio>
#include <string>

namespace {

using berth::core::print_text;

// The pattern by print_text and by libc, into a text of `size` bytes that stands between two marks.
struct Printed {
    std::string text;
    int length;
    bool operator==(const Printed&) const = default;
};

using Printer = int (*)(char*, size_t, const char*, va_list);

Printed print(Printer printer, size_t size, const char* pattern, va_list arguments) {
    std::string room(size + 1, '#');
    int length = printer(room.data(), size, pattern, arguments);
    CHECK(room.back() == '#');
    if (size > 0) CHECK(room.find('\0') < size);
    return {room.substr(0, size > 0 ? room.find('\0') : 0), length};
}

void same(const char* pattern, ...) {
    for (size_t size : {0, 1, 2, 5, 64, 400}) {
        va_list ours, libc;
        va_start(ours, pattern);
        va_copy(libc, ours);
        Printed got = print(print_text, size, pattern, ours);
        Printed expected = print(vsnprintf, size, pattern, libc);
        va_end(ours);
        va_end(libc);
        CAPTURE(pattern);
        CAPTURE(size);
        CHECK(got.text == expected.text);
        CHECK(got.length == expected.length);
    }
}

Printed by_us(const char* pattern, ...) {
    va_list arguments;
    va_start(arguments, pattern);
    Printed got = print(print_text, 100, pattern, arguments);
    va_end(arguments);
    return got;
}

TEST_CASE("Texts are those of libc") {
    same("");
    same("plain text, 100%%");
    same("%s", "");
    same("[%s] [%10s] [%-10s] [%.3s] [%8.2s] [%.0s]", "value", "value", "value", "value", "value", "value");
    same("[%.*s] [%*s] [%*s] [%.*s]", 3, "abcdef", 8, "right", -8, "left", -1, "negative precision");
    same("%c%c [%3c] [%-3c]", 'a', 'z', 'b', 'c');
    const char unterminated[] = {'a', 'b', 'c'};
    same("%.*s|%.3s", 2, unterminated, unterminated);
}

TEST_CASE("Numbers are those of libc") {
    for (int value : {0, 1, -1, 9, 10, 42, -42, 65535, INT_MAX, INT_MIN}) {
        same("%d %i %5d %-5d| %05d %.3d %8.3d %hd %hhd", value, value, value, value, value, value, value,
             value, value);
        same("%u %x %X %02x %04x %08X %hhx %hx", value, value, value, value, value, value, value, value);
    }
    for (long value : {0L, 1L, -1L, 1234567890123L, LONG_MAX, LONG_MIN}) {
        same("%ld %lu %lx %zu %zd %jd %ju %td %020ld %-20ld|", value, value, value, value, value, value,
             value, value, value, value);
    }
    for (long long value : {0LL, -1LL, LLONG_MAX, LLONG_MIN})
        same("%lld %llu %llx %016llx", value, value, value, value);
    same("[%.0d] [%5.0d] [%.0u]", 0, 0, 0);
    same("%p", reinterpret_cast<void*>(uintptr_t{0xdeadbeef}));
}

TEST_CASE("Lines as they are logged are those of libc") {
    same("%s: %s: %s: container %s pid %d status %02x of %zu (%llu bytes)", "berth-agent", "info", "exit",
         "web-1", 4711, 137, size_t{3}, 1ULL << 40);
}

TEST_CASE("From an unknown conversion on the pattern is copied") {
    CHECK(by_us("%d of %f and %s", 7, 1.5, "x") == Printed{"7 of %f and %s", 14});
    CHECK(by_us("%5n") == Printed{"%5n", 3});
    CHECK(by_us("50%") == Printed{"50%", 3});
    CHECK(by_us("%s", static_cast<const char*>(nullptr)) == Printed{"(null)", 6});
}

}  // namespace
