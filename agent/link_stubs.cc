// Two functions of libraries that the linker would otherwise take whole subsystems for. Linked into every
// program.
#include <cstdlib>

extern "C" {

// libsodium calls it for a misuse of its interface. Its own version sits beside the whole of its random
// generators and their tables (170 KB).
[[noreturn]] void sodium_misuse() {
    abort();
}
}

namespace __gnu_cxx {

// libstdc++'s terminate handler prints the exception that nobody caught: the demangler and stdio (70 KB) for
// programs that are built without exceptions.
[[noreturn]] void __verbose_terminate_handler() {
    abort();
}

}  // namespace __gnu_cxx
