#include "agent/child/child.h"

namespace berth::child {

size_t length_of(const char* text) {
    size_t length = 0;
    while (text[length] != '\0') ++length;
    return length;
}

bool starts_with(const char* text, const char* prefix) {
    for (; *prefix != '\0'; ++text, ++prefix) {
        if (*text != *prefix) return false;
    }
    return true;
}

size_t put_decimal(char* out, uint64_t value) {
    char reversed[21];
    size_t digits = 0;
    do {
        reversed[digits++] = static_cast<char>('0' + value % 10);
        value /= 10;
    } while (value != 0);
    for (size_t i = 0; i < digits; ++i) out[i] = reversed[digits - 1 - i];
    out[digits] = '\0';
    return digits;
}

void copy_bytes(char* to, const char* from, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace berth::child
