#include "agent/service/event_filter.h"

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::service {
namespace {

using core::format;
using core::quoted;

core::Error bad(std::string_view filter, const char* why) {
    return core::invalid(format("filters: %s: %s", quoted(filter).c_str(), why));
}

bool is_field_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

// A quoted string with \" and \\, or a bare word up to a comma.
core::Result<std::string> parse_value(std::string_view& rest, std::string_view filter) {
    std::string value;
    if (rest.empty()) return bad(filter, "a value is missing");
    if (rest.front() != '"') {
        size_t end = rest.find(',');
        value = std::string(rest.substr(0, end));
        rest.remove_prefix(value.size());
        if (value.empty()) return bad(filter, "a value is missing");
        return value;
    }
    for (size_t i = 1; i < rest.size(); ++i) {
        if (rest[i] == '"') {
            rest.remove_prefix(i + 1);
            return value;
        }
        if (rest[i] == '\\') {
            if (++i == rest.size()) break;
        }
        value.push_back(rest[i]);
    }
    return bad(filter, "a quote is not closed");
}

}  // namespace

core::Result<EventFilter> EventFilter::parse(const std::vector<std::string>& filters) {
    EventFilter parsed;
    if (filters.size() > limits::kEventFilters) {
        return core::invalid(format("filters: %zu, at most %zu", filters.size(), limits::kEventFilters));
    }
    for (const std::string& filter : filters) {
        BERTH_ASSIGN(std::vector<Condition> conditions, parse_one(filter));
        parsed.alternatives_.push_back(std::move(conditions));
    }
    return parsed;
}

core::Result<std::vector<EventFilter::Condition>> EventFilter::parse_one(std::string_view filter) {
    std::vector<Condition> conditions;
    if (filter.size() > limits::kEventFilterBytes) return bad(filter, "too long");
    std::string_view rest = filter;
    while (!rest.empty()) {
        BERTH_ASSIGN(Condition condition, parse_condition(rest, filter));
        conditions.push_back(std::move(condition));
        if (rest.empty()) break;
        if (rest.front() != ',') return bad(filter, "a comma is missing");
        rest.remove_prefix(1);
        if (rest.empty()) return bad(filter, "ends with a comma");
    }
    return conditions;
}

core::Result<EventFilter::Condition> EventFilter::parse_condition(std::string_view& rest,
                                                                  std::string_view filter) {
    Condition condition;
    size_t length = 0;
    while (length < rest.size() && is_field_character(rest[length])) ++length;
    condition.field = std::string(rest.substr(0, length));
    rest.remove_prefix(length);
    if (condition.field != "topic" && condition.field != "namespace" &&
        condition.field != "event.container_id") {
        return bad(filter, "only topic, namespace and event.container_id can be compared");
    }
    if (rest.empty() || rest.front() == ',') return condition;
    std::string_view op = rest.substr(0, 2);
    bool is_regex = op == "~=";
    if (op == "==") {
        condition.op = Operator::kEqual;
    } else if (op == "!=") {
        condition.op = Operator::kNotEqual;
    } else if (is_regex) {
        condition.op = Operator::kPrefix;
    } else {
        return bad(filter, "the operators are ==, != and ~=");
    }
    rest.remove_prefix(2);
    BERTH_ASSIGN(condition.value, parse_value(rest, filter));
    if (is_regex) {
        constexpr std::string_view kSpecial = "\\.+*?()|[]{}$";
        if (condition.value.empty() || condition.value.front() != '^' ||
            condition.value.find_first_of(kSpecial) != std::string::npos) {
            return bad(filter, "~= takes a plain prefix (\"^/tasks/\"), no other regular expression");
        }
        condition.value.erase(0, 1);
    }
    return condition;
}

std::string_view EventFilter::field_of(const Fields& fields, std::string_view name) {
    if (name == "topic") return fields.topic;
    if (name == "namespace") return fields.namespace_name;
    return fields.container_id;
}

bool EventFilter::matches(const Fields& fields) const {
    if (alternatives_.empty()) return true;
    for (const std::vector<Condition>& conditions : alternatives_) {
        bool all = true;
        for (const Condition& condition : conditions) {
            std::string_view value = field_of(fields, condition.field);
            switch (condition.op) {
                case Operator::kPresent: all = all && !value.empty(); break;
                case Operator::kEqual: all = all && value == condition.value; break;
                case Operator::kNotEqual: all = all && value != condition.value; break;
                case Operator::kPrefix: all = all && value.starts_with(condition.value); break;
            }
        }
        if (all) return true;
    }
    return false;
}

}  // namespace berth::service
