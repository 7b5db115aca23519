#include "agent/core/result.h"

#include <cerrno>
#include <cstring>

namespace berth::core {

std::string_view code_name(Code code) {
    switch (code) {
        case Code::kOk: return "OK";
        case Code::kCancelled: return "CANCELLED";
        case Code::kUnknown: return "UNKNOWN";
        case Code::kInvalidArgument: return "INVALID_ARGUMENT";
        case Code::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
        case Code::kNotFound: return "NOT_FOUND";
        case Code::kAlreadyExists: return "ALREADY_EXISTS";
        case Code::kPermissionDenied: return "PERMISSION_DENIED";
        case Code::kResourceExhausted: return "RESOURCE_EXHAUSTED";
        case Code::kFailedPrecondition: return "FAILED_PRECONDITION";
        case Code::kAborted: return "ABORTED";
        case Code::kOutOfRange: return "OUT_OF_RANGE";
        case Code::kUnimplemented: return "UNIMPLEMENTED";
        case Code::kInternal: return "INTERNAL";
        case Code::kUnavailable: return "UNAVAILABLE";
    }
    return "UNKNOWN";
}

Error Error::within(std::string_view context) && {
    std::string text;
    text.reserve(context.size() + 2 + message.size());
    text.append(context).append(": ").append(message);
    message = std::move(text);
    return std::move(*this);
}

Error make_error(Code code, std::string message) {
    return Error{code, 0, std::move(message)};
}

Error errno_error(int err, std::string step) {
    step.append(": ").append(errno_name(err));
    return Error{code_of_errno(err), err, std::move(step)};
}

Code code_of_errno(int err) {
    switch (err) {
        case ENOENT:
        case ESRCH: return Code::kNotFound;
        case EEXIST: return Code::kAlreadyExists;
        case EPERM:
        case EACCES: return Code::kPermissionDenied;
        case EINVAL:
        case ERANGE:
        case ENAMETOOLONG:
        case ENOTDIR:
        case ELOOP: return Code::kInvalidArgument;
        case ENOSPC:
        case ENOMEM:
        case EMFILE:
        case ENFILE:
        case EAGAIN: return Code::kResourceExhausted;
        case EBUSY:
        case ENODEV:
        case ENXIO:
        case ENOSYS:
        case EOPNOTSUPP:
        case EROFS: return Code::kFailedPrecondition;
        case ETIMEDOUT: return Code::kDeadlineExceeded;
        default: return Code::kInternal;
    }
}

std::string errno_name(int err) {
    if (const char* name = strerrorname_np(err); name != nullptr) return name;
    return "errno " + std::to_string(err);
}

}  // namespace berth::core
