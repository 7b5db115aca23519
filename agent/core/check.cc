#include "agent/core/check.h"

#include <cstdlib>

namespace berth::core {
namespace {
FatalHandler g_fatal_handler = nullptr;
}  // namespace

void set_fatal_handler(FatalHandler handler) {
    g_fatal_handler = handler;
}

void fatal(const char* file, int line, const char* condition) {
    if (g_fatal_handler != nullptr) g_fatal_handler(file, line, condition);
    std::abort();
}

}  // namespace berth::core
