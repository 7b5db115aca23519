// containerd's filter syntax, as far as an event envelope has fields for it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"

namespace berth::service {

// Each filter is `FIELD OPERATOR VALUE[,...]`, all parts of one must hold, any one of the filters is enough.
// Fields: topic, namespace, event.container_id. Operators: ==, != (VALUE quoted or not), ~= (VALUE quoted; a
// plain prefix as in
// `^/tasks/`; other regular expressions are refused by name: there is no regex engine here).
// A bare FIELD holds when the field is not empty.
class EventFilter {
 public:
    static core::Result<EventFilter> parse(const std::vector<std::string>& filters);

    struct Fields {
        std::string_view topic;
        std::string_view namespace_name;
        std::string_view container_id;
    };
    bool matches(const Fields& fields) const;

 private:
    enum class Operator : uint8_t { kPresent, kEqual, kNotEqual, kPrefix };
    struct Condition {
        std::string field;
        Operator op = Operator::kPresent;
        std::string value;
    };
    static core::Result<std::vector<Condition>> parse_one(std::string_view filter);
    static core::Result<Condition> parse_condition(std::string_view& rest, std::string_view filter);
    static std::string_view field_of(const Fields& fields, std::string_view name);

    std::vector<std::vector<Condition>> alternatives_;
};

}  // namespace berth::service
