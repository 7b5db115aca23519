#include "agent/core/print.h"

#include <climits>
#include <cstdint>
#include <cstring>

namespace berth::core {
namespace {

// A bounded text that keeps counting when it is full.
class Sink {
 public:
    Sink(char* out, size_t size) : out_(out), size_(size) {}
    void put(char c) {
        if (length_ + 1 < size_) out_[length_] = c;
        ++length_;
    }
    void put(char c, size_t times) {
        for (size_t i = 0; i < times; ++i) put(c);
    }
    void put(const char* text, size_t bytes) {
        for (size_t i = 0; i < bytes; ++i) put(text[i]);
    }
    int finish() {
        if (size_ > 0) out_[length_ < size_ ? length_ : size_ - 1] = '\0';
        return length_ > INT_MAX ? -1 : static_cast<int>(length_);
    }

 private:
    char* out_;
    size_t size_;
    size_t length_ = 0;
};

struct Conversion {
    bool left = false;
    bool zero = false;
    size_t width = 0;
    bool has_precision = false;
    size_t precision = 0;
    int longs = 0;  // 0: int, 1: as wide as long, -1: short, -2: char
};

size_t read_number(const char*& at) {
    constexpr size_t kMost = 1 << 20;
    size_t number = 0;
    for (; *at >= '0' && *at <= '9'; ++at) {
        if (number < kMost) number = number * 10 + static_cast<size_t>(*at - '0');
    }
    return number;
}

// long, long long, size_t, intmax_t and ptrdiff_t are all 64 bits wide on the machines that Linux guests run
// on here.
static_assert(sizeof(long) == sizeof(long long) && sizeof(size_t) == sizeof(long) &&
              sizeof(intmax_t) == sizeof(long));

void read_length(const char*& at, Conversion& conversion) {
    for (;; ++at) {
        if (*at == 'l' || *at == 'z' || *at == 'j' || *at == 't') {
            conversion.longs = 1;
        } else if (*at == 'h') {
            --conversion.longs;
        } else {
            return;
        }
    }
}

void pad_around(Sink& sink, const Conversion& conversion, const char* text, size_t bytes) {
    size_t blanks = conversion.width > bytes ? conversion.width - bytes : 0;
    if (!conversion.left) sink.put(' ', blanks);
    sink.put(text, bytes);
    if (conversion.left) sink.put(' ', blanks);
}

void put_number(Sink& sink, const Conversion& conversion, const char* prefix, uint64_t value, unsigned base,
                bool upper) {
    char digits[24];
    size_t at = sizeof digits;
    const char* alphabet = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    for (; value != 0; value /= base) digits[--at] = alphabet[value % base];
    if (at == sizeof digits && !(conversion.has_precision && conversion.precision == 0)) digits[--at] = '0';
    size_t count = sizeof digits - at, prefix_length = strlen(prefix);
    size_t zeros = conversion.precision > count ? conversion.precision - count : 0;
    if (conversion.zero && !conversion.left && !conversion.has_precision &&
        conversion.width > count + prefix_length) {
        zeros = conversion.width - count - prefix_length;
    }
    size_t bytes = prefix_length + zeros + count;
    size_t blanks = conversion.width > bytes ? conversion.width - bytes : 0;
    if (!conversion.left) sink.put(' ', blanks);
    sink.put(prefix, prefix_length);
    sink.put('0', zeros);
    sink.put(digits + at, count);
    if (conversion.left) sink.put(' ', blanks);
}

void put_signed(Sink& sink, const Conversion& conversion, int64_t value) {
    if (conversion.longs == -1) value = static_cast<short>(value);
    if (conversion.longs == -2) value = static_cast<signed char>(value);
    uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    put_number(sink, conversion, value < 0 ? "-" : "", magnitude, 10, false);
}

void put_unsigned(Sink& sink, const Conversion& conversion, uint64_t value, char kind) {
    if (conversion.longs == -1) value = static_cast<unsigned short>(value);
    if (conversion.longs == -2) value = static_cast<unsigned char>(value);
    put_number(sink, conversion, "", value, kind == 'u' ? 10 : 16, kind == 'X');
}

void put_string(Sink& sink, const Conversion& conversion, const char* text) {
    if (text == nullptr) text = "(null)";
    size_t bytes = conversion.has_precision ? strnlen(text, conversion.precision) : strlen(text);
    pad_around(sink, conversion, text, bytes);
}

}  // namespace

int print_text(char* out, size_t size, const char* pattern, va_list arguments) {
    Sink sink(out, size);
    for (const char* at = pattern; *at != '\0'; ++at) {
        if (*at != '%') {
            sink.put(*at);
            continue;
        }
        const char* begin = at++;
        Conversion conversion;
        for (; *at == '-' || *at == '0'; ++at) (*at == '-' ? conversion.left : conversion.zero) = true;
        if (*at == '*') {
            int width = va_arg(arguments, int);
            conversion.left |= width < 0;
            conversion.width = static_cast<size_t>(width < 0 ? -static_cast<int64_t>(width) : width);
            ++at;
        } else {
            conversion.width = read_number(at);
        }
        if (*at == '.') {
            ++at;
            int64_t precision = 0;
            if (*at == '*') {
                precision = va_arg(arguments, int);
                ++at;
            } else {
                precision = static_cast<int64_t>(read_number(at));
            }
            conversion.has_precision = precision >= 0;
            conversion.precision = precision >= 0 ? static_cast<size_t>(precision) : 0;
        }
        read_length(at, conversion);
        bool wide = conversion.longs > 0;
        switch (*at) {
            case 'd':
            case 'i':
                put_signed(sink, conversion, wide ? va_arg(arguments, long) : va_arg(arguments, int));
                break;
            case 'u':
            case 'x':
            case 'X':
                put_unsigned(sink, conversion,
                             wide ? va_arg(arguments, unsigned long) : va_arg(arguments, unsigned), *at);
                break;
            case 'p': {
                auto address = reinterpret_cast<uintptr_t>(va_arg(arguments, void*));
                put_number(sink, conversion, "0x", address, 16, false);
                break;
            }
            case 'c': {
                char c = static_cast<char>(va_arg(arguments, int));
                pad_around(sink, conversion, &c, 1);
                break;
            }
            case 's': put_string(sink, conversion, va_arg(arguments, const char*)); break;
            case '%': sink.put('%'); break;
            default: sink.put(begin, strlen(begin)); return sink.finish();
        }
    }
    return sink.finish();
}

}  // namespace berth::core
