#include "agent/berthctl/arguments.h"

#include "agent/core/text.h"

namespace berth::ctl {

namespace {

template <typename Matches>
const Flag* find(std::span<const Flag* const> tables, std::span<const size_t> sizes, Matches matches) {
    for (size_t table = 0; table < tables.size(); table++) {
        for (const Flag& flag : std::span(tables[table], sizes[table])) {
            if (matches(flag)) return &flag;
        }
    }
    return nullptr;
}

}  // namespace

core::Status Arguments::parse(std::span<const std::string_view> words, std::span<const Flag* const> tables,
                              std::span<const size_t> table_sizes, Order order) {
    for (size_t at = 0; at < words.size(); at++) {
        std::string_view word = words[at];
        bool is_flag = word.size() > 1 && word[0] == '-';
        if (word == "--" || (!is_flag && order == Order::kStopAtFirstWord)) {
            words_.insert(words_.end(), words.begin() + static_cast<ptrdiff_t>(at + (word == "--" ? 1 : 0)),
                          words.end());
            return core::ok();
        }
        if (!is_flag) {
            words_.push_back(word);
            continue;
        }
        if (word.starts_with("--")) {
            BERTH_TRY(take_long(words, at, tables, table_sizes));
        } else {
            BERTH_TRY(take_cluster(words, at, tables, table_sizes));
        }
    }
    return core::ok();
}

core::Status Arguments::take_long(Words words, size_t& at, Tables tables, Sizes table_sizes) {
    std::string_view name = words[at].substr(2);
    size_t equals = name.find('=');
    bool has_value = equals != std::string_view::npos;
    std::string_view value = has_value ? name.substr(equals + 1) : std::string_view();
    name = name.substr(0, equals);
    const Flag* flag =
        find(tables, table_sizes, [&](const Flag& candidate) { return candidate.name == name; });
    if (flag == nullptr) return core::invalid("unknown flag " + core::quoted(words[at]));
    return take(*flag, has_value, value, words, at);
}

// "-t", "-it", "-e VALUE", "-e=VALUE", "-eVALUE", "-teVALUE": switches, and at most one value, which ends it.
core::Status Arguments::take_cluster(Words words, size_t& at, Tables tables, Sizes table_sizes) {
    std::string_view word = words[at];
    for (size_t i = 1; i < word.size(); ++i) {
        const Flag* flag = find(tables, table_sizes, [&](const Flag& candidate) {
            return candidate.letter != 0 && candidate.letter == word[i];
        });
        if (flag == nullptr) return core::invalid("unknown flag " + core::quoted(word));
        std::string_view rest = word.substr(i + 1);
        bool has_equals = rest.starts_with('=');
        if (flag->kind == Flag::Kind::kValue || has_equals) {
            return take(*flag, !rest.empty(), rest.substr(has_equals ? 1 : 0), words, at);
        }
        BERTH_TRY(take(*flag, false, {}, words, at));
    }
    return core::ok();
}

core::Status Arguments::take(const Flag& flag, bool has_value, std::string_view value, Words words,
                             size_t& at) {
    if (flag.kind == Flag::Kind::kSwitch) {
        if (has_value) return core::invalid("--" + std::string(flag.name) + " takes no value");
    } else if (!has_value) {
        if (at + 1 == words.size()) return core::invalid("--" + std::string(flag.name) + " needs a value");
        value = words[++at];
    }
    given_.push_back({flag.name, value});
    return core::ok();
}

bool Arguments::has(std::string_view name) const {
    for (const Given& given : given_) {
        if (given.name == name) return true;
    }
    return false;
}

std::string_view Arguments::value(std::string_view name, std::string_view fallback) const {
    std::string_view found = fallback;
    for (const Given& given : given_) {
        if (given.name == name) found = given.value;
    }
    return found;
}

std::vector<std::string_view> Arguments::values(std::string_view name) const {
    std::vector<std::string_view> found;
    for (const Given& given : given_) {
        if (given.name == name) found.push_back(given.value);
    }
    return found;
}

}  // namespace berth::ctl
