// Identifiers that were checked when they were made; a function that takes one need not check again.
#pragma once

#include <compare>
#include <string>
#include <string_view>

#include "agent/core/result.h"

namespace berth::core {

// A container's id: 1 to limits::kContainerIdBytes of [A-Za-z0-9_+-][A-Za-z0-9_+.-]* (runc's and crun's
// alphabet: a plain file name, never "." or "..").
class ContainerId {
 public:
    static Result<ContainerId> parse(std::string_view text);
    const std::string& text() const { return text_; }
    std::string_view view() const { return text_; }
    auto operator<=>(const ContainerId&) const = default;

 private:
    explicit ContainerId(std::string text) : text_(std::move(text)) {}
    std::string text_;
};

// An exec's id: the same alphabet, or empty for the container's init.
class ExecId {
 public:
    ExecId() = default;  // the init
    static Result<ExecId> parse(std::string_view text);
    const std::string& text() const { return text_; }
    bool is_init() const { return text_.empty(); }
    auto operator<=>(const ExecId&) const = default;

 private:
    explicit ExecId(std::string text) : text_(std::move(text)) {}
    std::string text_;
};

}  // namespace berth::core
