// A move-only callable, for completions that outlive the call that asked for them. Empty ones may not be
// called.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "agent/core/check.h"

namespace berth::core {

template <typename Signature>
class Callback;

template <typename Return, typename... Arguments>
class Callback<Return(Arguments...)> {
 public:
    Callback() = default;
    template <typename Function>
    requires(!std::is_same_v<std::remove_cvref_t<Function>, Callback>)
        Callback(Function function)  // NOLINT(google-explicit-constructor)
        : held_(std::make_unique<Holder<Function>>(std::move(function))) {}

    explicit operator bool() const { return held_ != nullptr; }
    Return operator()(Arguments... arguments) {
        BERTH_CHECK(held_ != nullptr);
        return held_->call(std::forward<Arguments>(arguments)...);
    }
    // Takes the callable out and leaves this empty: for callables that must run once.
    Callback take() { return std::exchange(*this, Callback()); }

 private:
    struct Base {
        virtual ~Base() = default;
        virtual Return call(Arguments... arguments) = 0;
    };
    template <typename Function>
    struct Holder final : Base {
        explicit Holder(Function held) : function(std::move(held)) {}
        Return call(Arguments... arguments) override {
            return function(std::forward<Arguments>(arguments)...);
        }
        Function function;
    };
    std::unique_ptr<Base> held_;
};

}  // namespace berth::core
