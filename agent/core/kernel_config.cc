#include "agent/core/kernel_config.h"

#include <algorithm>

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr std::string_view kPrefix = "CONFIG_";
constexpr std::string_view kNotSet = " is not set";

bool is_name(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
}

Error bad_line(size_t number, std::string_view line) {
    return invalid(format("kernel config: line %zu: neither CONFIG_NAME=VALUE nor a comment: %s", number,
                          quoted(line.substr(0, 64)).c_str()));
}

}  // namespace

Result<KernelConfig> KernelConfig::parse(std::string_view text) {
    if (text.size() > limits::kKernelConfigBytes) {
        return make_error(Code::kResourceExhausted,
                          format("kernel config: %zu bytes, more than the limit of %zu", text.size(),
                                 limits::kKernelConfigBytes));
    }
    if (text.starts_with("\x1f\x8b"))
        return invalid("kernel config: compressed by gzip; read it through zcat");
    KernelConfig config;
    size_t number = 0;
    for (std::string_view line : split_lines(text)) {
        ++number;
        std::string_view rest = line;
        bool is_comment = rest.starts_with("# ");
        if (is_comment) rest.remove_prefix(2);
        if (line.empty() || (line.front() == '#' && !rest.starts_with(kPrefix))) continue;
        if (!rest.starts_with(kPrefix)) return bad_line(number, line);
        rest.remove_prefix(kPrefix.size());
        if (is_comment) {
            // Other comments may begin with an option's name.
            if (!rest.ends_with(kNotSet)) continue;
            rest.remove_suffix(kNotSet.size());
            if (is_name(rest)) config.options_.emplace_back(rest, Value::kOff);
            continue;
        }
        size_t equals = rest.find('=');
        if (equals == std::string_view::npos || !is_name(rest.substr(0, equals)))
            return bad_line(number, line);
        std::string_view value = rest.substr(equals + 1);
        if (value.empty()) return bad_line(number, line);
        Value parsed = value == "n" ? Value::kOff : value == "m" ? Value::kModule : Value::kOn;
        config.options_.emplace_back(rest.substr(0, equals), parsed);
    }
    if (config.options_.empty()) return invalid("kernel config: holds no CONFIG_ line");
    std::stable_sort(config.options_.begin(), config.options_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return config;
}

KernelConfig::Value KernelConfig::value(std::string_view name) const {
    auto after = std::upper_bound(options_.begin(), options_.end(), name,
                                  [](std::string_view key, const auto& entry) { return key < entry.first; });
    if (after == options_.begin() || std::prev(after)->first != name) return Value::kOff;
    return std::prev(after)->second;
}

}  // namespace berth::core
