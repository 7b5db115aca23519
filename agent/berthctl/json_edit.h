// Changes to JSON documents that people wrote: whatever is of another type than it should be is replaced, or
// taken for absent; the agent is who refuses.
#pragma once

#include <span>
#include <string_view>

#include "agent/core/json.h"
#include "agent/core/result.h"

namespace berth::ctl {

// INVALID_ARGUMENT names `what`.
core::Result<rapidjson::Document> parse_object(std::string_view text, std::string_view what);

core::JsonValue string_value(std::string_view text, rapidjson::Document& document);
core::JsonValue string_array(std::span<const std::string_view> words, rapidjson::Document& document);

// Null when there is none.
core::JsonValue* find_member(core::JsonValue& object, const char* name);
// Null when it is no object, too.
core::JsonValue* find_object(core::JsonValue& object, const char* name);
// Absent, null, or [].
bool is_empty_list(core::JsonValue& object, const char* name);

void set_member(core::JsonValue& object, const char* name, core::JsonValue value,
                rapidjson::Document& document);
// The member of that name, of the fallback's type; the fallback when it is absent or of another type.
core::JsonValue& member(core::JsonValue& object, const char* name, core::JsonValue fallback,
                        rapidjson::Document& document);

// Sets NAME=VALUE in a list of such; the variable is replaced where it is.
void set_environment(std::string_view assignment, core::JsonValue& env, rapidjson::Document& document);

}  // namespace berth::ctl
