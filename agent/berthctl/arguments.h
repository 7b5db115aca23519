// The command line: flags declared in tables, values after a blank or "=".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"

namespace berth::ctl {

struct Flag {
    enum class Kind : uint8_t { kSwitch, kValue };
    std::string_view name;  // without "--"
    char letter;            // 0: no short form
    Kind kind;
    std::string_view help;  // "FILE  what it is"
};

class Arguments {
 public:
    enum class Order : uint8_t {
        kMixed,            // flags may follow positional arguments
        kStopAtFirstWord,  // everything from the first positional argument on is positional (a command line)
    };

    // Adds what `words` hold to what was parsed before. Short flags may be clustered ("-it"), the last of
    // them may have a value. "--" ends the flags. INVALID_ARGUMENT for an unknown flag, a missing value, a
    // value for a switch.
    core::Status parse(std::span<const std::string_view> words, std::span<const Flag* const> tables,
                       std::span<const size_t> table_sizes, Order order);

    bool has(std::string_view name) const;
    // The last one given; `fallback` when there is none.
    std::string_view value(std::string_view name, std::string_view fallback = {}) const;
    std::vector<std::string_view> values(std::string_view name) const;
    const std::vector<std::string_view>& words() const { return words_; }

 private:
    using Words = std::span<const std::string_view>;
    using Tables = std::span<const Flag* const>;
    using Sizes = std::span<const size_t>;
    core::Status take_long(Words words, size_t& at, Tables tables, Sizes table_sizes);
    core::Status take_cluster(Words words, size_t& at, Tables tables, Sizes table_sizes);
    // `at` moves on when the value is the next word.
    core::Status take(const Flag& flag, bool has_value, std::string_view value, Words words, size_t& at);

    struct Given {
        std::string_view name;
        std::string_view value;
    };
    std::vector<Given> given_;
    std::vector<std::string_view> words_;
};

}  // namespace berth::ctl
