#include "agent/core/ids.h"

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

bool is_id_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '+' || c == '-' || c == '.';
}

Status check_id(std::string_view text, size_t limit, const char* what) {
    if (text.empty()) return invalid(format("%s: empty", what));
    if (text.size() > limit) {
        return invalid(format("%s: %zu bytes, at most %zu", what, text.size(), limit));
    }
    if (text.front() == '.')
        return invalid(format("%s %s: must not begin with a dot", what, quoted(text).c_str()));
    for (char c : text) {
        if (!is_id_character(c)) {
            return invalid(
                format("%s %s: only letters, digits, '_', '+', '-' and '.'", what, quoted(text).c_str()));
        }
    }
    return ok();
}

}  // namespace

Result<ContainerId> ContainerId::parse(std::string_view text) {
    BERTH_TRY(check_id(text, limits::kContainerIdBytes, "id"));
    return ContainerId(std::string(text));
}

Result<ExecId> ExecId::parse(std::string_view text) {
    if (text.empty()) return ExecId();
    BERTH_TRY(check_id(text, limits::kExecIdBytes, "exec_id"));
    return ExecId(std::string(text));
}

}  // namespace berth::core
