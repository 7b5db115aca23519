// Result<T> and Error: how every operation that can fail says so. No exceptions anywhere in agent/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "agent/core/check.h"

namespace berth::core {

// The status codes of the API (google.rpc.Code numbers, so that the wire needs no table).
enum class Code : uint8_t {
    kOk = 0,
    kCancelled = 1,
    kUnknown = 2,
    kInvalidArgument = 3,
    kDeadlineExceeded = 4,
    kNotFound = 5,
    kAlreadyExists = 6,
    kPermissionDenied = 7,
    kResourceExhausted = 8,
    kFailedPrecondition = 9,
    kAborted = 10,
    kOutOfRange = 11,
    kUnimplemented = 12,
    kInternal = 13,
    kUnavailable = 14,
};

// The name as google.rpc spells it ("INVALID_ARGUMENT").
std::string_view code_name(Code code);

// What failed, on what, and the kernel's reason. `message` is one line for a person, complete but for the
// outer context that callers put before it with `within()`: `create "web": ` + `cgroup.write memory.max=5: `
// + `EINVAL`.
struct Error {
    Code code = Code::kInternal;
    int err = 0;  // errno of the failing syscall; 0 when no syscall was involved
    std::string message;

    // Puts `context` and ": " before the message.
    Error within(std::string_view context) &&;
};

// An error without a syscall.
Error make_error(Code code, std::string message);
inline Error invalid(std::string message) {
    return make_error(Code::kInvalidArgument, std::move(message));
}

// An error of a syscall: message = step + ": " + errno name ("EINVAL"); the code follows from errno
// (ENOENT NOT_FOUND, EEXIST ALREADY_EXISTS, EPERM/EACCES PERMISSION_DENIED, EINVAL INVALID_ARGUMENT,
// ENOSPC/ENOMEM/EMFILE/ENFILE/EAGAIN RESOURCE_EXHAUSTED, EBUSY/ENODEV/ENOSYS/EOPNOTSUPP FAILED_PRECONDITION,
// else INTERNAL).
Error errno_error(int err, std::string step);
Code code_of_errno(int err);

// "EINVAL" for 22; "errno 9999" for what has no name.
std::string errno_name(int err);

struct [[nodiscard]] Unit {};

template <typename T>
class [[nodiscard]] Result {
 public:
    Result(T value) : inner_(std::move(value)) {}                    // NOLINT(google-explicit-constructor)
    Result(Error error) : inner_(tl::unexpect, std::move(error)) {}  // NOLINT(google-explicit-constructor)

    bool ok() const { return inner_.has_value(); }
    explicit operator bool() const { return ok(); }

    T& value() & {
        BERTH_CHECK(ok());
        return *inner_;
    }
    const T& value() const& {
        BERTH_CHECK(ok());
        return *inner_;
    }
    T&& value() && {
        BERTH_CHECK(ok());
        return std::move(*inner_);
    }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    Error& error() & {
        BERTH_CHECK(!ok());
        return inner_.error();
    }
    const Error& error() const& {
        BERTH_CHECK(!ok());
        return inner_.error();
    }
    Error&& error() && {
        BERTH_CHECK(!ok());
        return std::move(inner_.error());
    }

 private:
    tl::expected<T, Error> inner_;
};

using Status = Result<Unit>;
inline Status ok() {
    return Unit{};
}

}  // namespace berth::core

#define BERTH_CONCAT_INNER(a, b) a##b
#define BERTH_CONCAT(a, b) BERTH_CONCAT_INNER(a, b)

// BERTH_TRY(expr): returns the error of `expr` from the enclosing function, or goes on.
#define BERTH_TRY(expression)                                                          \
    do {                                                                               \
        if (auto berth_try_result = (expression); !berth_try_result.ok()) [[unlikely]] \
            return std::move(berth_try_result).error();                                \
    } while (false)

// BERTH_ASSIGN(auto x, expr): declares or assigns x from the value of `expr`, or returns its error.
#define BERTH_ASSIGN(target, expression) \
    BERTH_ASSIGN_INNER(BERTH_CONCAT(berth_result_, __LINE__), target, expression)
#define BERTH_ASSIGN_INNER(temporary, target, expression) \
    auto temporary = (expression);                        \
    if (!temporary.ok()) [[unlikely]]                     \
        return std::move(temporary).error();              \
    target = std::move(temporary).value()
