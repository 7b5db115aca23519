// What the linker of the static agent puts in place of functions of libraries (--wrap=NAME; berth_lean_link
// in toolchain/cmake/berth.cmake finds the names here). Each stands at the door of machinery that this
// program never uses, which the linker would take in whole. A name that another version of a library does not
// have is not replaced.
//
// Sound because nothing in the agent throws, loads a library, sets a locale, translates a message, starts a
// thread or prints to a FILE (tests/lint/includes sees to the last). What would do so all the same ends the
// process with a name, or, where libc only wants to say something, says nothing.
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "agent/core/check.h"
#include "agent/core/print.h"

// Names and signatures are those of the libraries.
// NOLINTBEGIN
extern "C" {

// Formatted text without floating point, wide characters and locales: 200 KB.
int __wrap_vsnprintf(char* out, size_t size, const char* pattern, va_list arguments) {
    return berth::core::print_text(out, size, pattern, arguments);
}

int __wrap_snprintf(char* out, size_t size, const char* pattern, ...) {
    va_list arguments;
    va_start(arguments, pattern);
    int length = berth::core::print_text(out, size, pattern, arguments);
    va_end(arguments);
    return length;
}

// libc's words for a broken invariant of its own, which it translates by gettext, prints by stdio and
// converts by iconv: 150 KB.
[[noreturn]] void __wrap___assert_fail(const char* condition, const char* file, unsigned line, const char*) {
    berth::core::fatal(file, static_cast<int>(line), condition);
}

// malloc's report about itself, which nobody asks for, and its words for a broken heap.
FILE* __wrap_stderr = nullptr;
int __wrap_fprintf(FILE*, const char*, ...) {
    return -1;
}
int __wrap__IO_fputs(const char*, FILE*) {
    return -1;
}
int __wrap_fflush(FILE*) {
    return 0;
}
size_t __wrap_fwrite(const void*, size_t, size_t, FILE*) {
    return 0;
}
int __wrap___fxprintf(FILE*, const char*, ...) {
    return -1;
}

// What fork locks and resets in a process of several threads.
void __wrap__IO_list_lock() {}
void __wrap__IO_list_unlock() {}
void __wrap__IO_list_resetlock() {}
void* __wrap__IO_iter_begin() {
    return nullptr;
}
void* __wrap__IO_iter_end() {
    return nullptr;
}
void* __wrap__IO_iter_next(void*) {
    return nullptr;
}
void* __wrap__IO_iter_file(void*) {
    return nullptr;
}

[[noreturn]] void __wrap___libc_dynarray_at_failure(size_t, size_t) {
    berth::core::fatal("libc", 0, "dynarray");
}
char* __wrap_strerror(int err) {
    return const_cast<char*>(strerrorname_np(err));
}

// The tables behind isalpha and its kind, wide characters and transliteration among them: 150 KB. (Functions
// that take their locale as an argument, as strtol does inside, bring the tables back and work.)
void __wrap___ctype_init() {}
const unsigned short** __wrap___ctype_b_loc() {
    berth::core::fatal("libc", 0, "ctype: not in this program");
}
const int** __wrap___ctype_tolower_loc() {
    berth::core::fatal("libc", 0, "ctype: not in this program");
}
const int** __wrap___ctype_toupper_loc() {
    berth::core::fatal("libc", 0, "ctype: not in this program");
}

// Lazy binding and its profiles: a static program binds nothing when it runs.
void __wrap__dl_runtime_resolve_fxsave() {
    abort();
}
void __wrap__dl_runtime_resolve_xsave() {
    abort();
}
void __wrap__dl_runtime_resolve_xsavec() {
    abort();
}
void __wrap__dl_runtime_profile_sse() {
    abort();
}
void __wrap__dl_runtime_profile_avx() {
    abort();
}
void __wrap__dl_runtime_profile_avx512() {
    abort();
}

// The page's size is all that anybody here asks for.
long __wrap_sysconf(int name) {
    return name == _SC_PAGESIZE ? static_cast<long>(getauxval(AT_PAGESZ)) : -1;
}
// malloc asks for it when two threads want its heap.
int __wrap___get_nprocs() {
    return 1;
}

// Nothing is buffered, nothing runs at the end.
[[noreturn]] void __wrap_exit(int status) {
    _exit(status);
}

// What dlopen would need: 60 KB.
void __wrap__dl_init_paths(const char*, const char*, const char*, const char*) {}
[[noreturn]] void __wrap__dl_signal_exception(int, void*, const char* what) {
    berth::core::fatal("libc", 0, what);
}
[[noreturn]] void __wrap__dl_signal_error(int, const char* object, const char*, const char* what) {
    berth::core::fatal(object, 0, what);
}

// libseccomp's readable form of a filter: nobody asks for it, and it prints by stdio.
int __wrap_gen_pfc_generate(const void*, int) {
    return -38;  // ENOSYS
}

// libsodium's guarded heap and random generator: neither is used. Comparing and clearing stand in the same
// unit.
[[noreturn]] void __wrap_randombytes_buf(void*, size_t) {
    berth::core::fatal("libsodium", 0, "randombytes_buf");
}

// The exceptions' machinery: what would be thrown ends the process with its name. (A process of an agent
// without exceptions ends either way.)
[[noreturn]] void __wrap___cxa_throw(void*, void*, void (*)(void*)) {
    berth::core::fatal("libstdc++", 0, "an exception");
}
void* __wrap___cxa_allocate_exception(size_t) {
    berth::core::fatal("libstdc++", 0, "an exception (out of memory?)");
}
// The real one catches what the throwing one throws.
void* __wrap__ZnwmRKSt9nothrow_t(size_t size, const void*) {
    return malloc(size > 0 ? size : 1);
}
[[noreturn]] void __wrap___cxa_begin_catch() {
    abort();
}
[[noreturn]] void __wrap___cxa_end_catch() {
    abort();
}
[[noreturn]] void __wrap___cxa_rethrow() {
    abort();
}
[[noreturn]] void __wrap___cxa_free_exception() {
    abort();
}
[[noreturn]] void __wrap___gxx_personality_v0() {
    abort();
}
[[noreturn]] void __wrap___gcc_personality_v0() {
    abort();
}
[[noreturn]] void __wrap__Unwind_Resume() {
    abort();
}
[[noreturn]] void __wrap__ZSt20__throw_length_errorPKc(const char* what) {
    berth::core::fatal("length_error", 0, what);
}
[[noreturn]] void __wrap__ZSt19__throw_logic_errorPKc(const char* what) {
    berth::core::fatal("logic_error", 0, what);
}
[[noreturn]] void __wrap__ZSt20__throw_out_of_rangePKc(const char* what) {
    berth::core::fatal("out_of_range", 0, what);
}
[[noreturn]] void __wrap__ZSt24__throw_out_of_range_fmtPKcz(const char* what, ...) {
    berth::core::fatal("out_of_range", 0, what);
}
[[noreturn]] void __wrap__ZSt24__throw_invalid_argumentPKc(const char* what) {
    berth::core::fatal("invalid_argument", 0, what);
}
[[noreturn]] void __wrap__ZSt17__throw_bad_allocv() {
    berth::core::fatal("bad_alloc", 0, "out of memory");
}
[[noreturn]] void __wrap__ZSt28__throw_bad_array_new_lengthv() {
    berth::core::fatal("bad_array_new_length", 0, "too large");
}
[[noreturn]] void __wrap__ZSt25__throw_bad_function_callv() {
    berth::core::fatal("bad_function_call", 0, "an empty std::function");
}
[[noreturn]] void __wrap__ZSt20__throw_system_errori(int) {
    berth::core::fatal("system_error", 0, "a lock failed");
}
}
// NOLINTEND
