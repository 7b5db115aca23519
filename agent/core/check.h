// Broken invariants. An operating error is a Result; a CHECK that fails is a bug of ours and ends the
// process.
#pragma once

namespace berth::core {

// Called once with one line of text when an invariant is broken, before abort(). Each process installs its
// own (the keeper writes to the console). Must not return into the caller's code, must not allocate.
using FatalHandler = void (*)(const char* file, int line, const char* condition);
void set_fatal_handler(FatalHandler handler);

[[noreturn]] void fatal(const char* file, int line, const char* condition);

}  // namespace berth::core

#define BERTH_CHECK(condition)                                         \
    do {                                                               \
        if (!(condition)) [[unlikely]]                                 \
            ::berth::core::fatal(__FILE_NAME__, __LINE__, #condition); \
    } while (false)
