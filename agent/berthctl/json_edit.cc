#include "agent/berthctl/json_edit.h"

namespace berth::ctl {

using core::JsonValue;
using rapidjson::Document;

JsonValue string_value(std::string_view text, Document& document) {
    JsonValue value;
    value.SetString(text.data(), static_cast<rapidjson::SizeType>(text.size()), document.GetAllocator());
    return value;
}

// Not FindMember: comparing its iterators is ambiguous to clang in C++20.
JsonValue* find_member(JsonValue& object, const char* name) {
    return object.HasMember(name) ? &object[name] : nullptr;
}

void set_member(JsonValue& object, const char* name, JsonValue value, Document& document) {
    if (JsonValue* found = find_member(object, name); found != nullptr) {
        *found = std::move(value);
        return;
    }
    object.AddMember(string_value(name, document), std::move(value), document.GetAllocator());
}

// The member of that name, of the fallback's type; the fallback when it is absent or of another type.
JsonValue& member(JsonValue& object, const char* name, JsonValue fallback, Document& document) {
    JsonValue* found = find_member(object, name);
    if (found == nullptr || found->GetType() != fallback.GetType()) {
        set_member(object, name, std::move(fallback), document);
        found = find_member(object, name);
    }
    return *found;
}

JsonValue string_array(std::span<const std::string_view> words, Document& document) {
    JsonValue array(rapidjson::kArrayType);
    for (std::string_view word : words) array.PushBack(string_value(word, document), document.GetAllocator());
    return array;
}

core::Result<Document> parse_object(std::string_view text, std::string_view what) {
    core::Result<Document> document = core::parse_json(text);
    if (!document.ok()) return std::move(document).error().within(what);
    if (!document->IsObject()) return core::invalid(std::string(what) + ": must be a JSON object");
    return document;
}

void set_environment(std::string_view assignment, JsonValue& env, Document& document) {
    std::string_view name = assignment.substr(0, assignment.find('='));
    std::string prefix = std::string(name) + "=";
    for (JsonValue& entry : env.GetArray()) {
        if (entry.IsString() &&
            std::string_view(entry.GetString(), entry.GetStringLength()).starts_with(prefix)) {
            entry = string_value(assignment, document);
            return;
        }
    }
    env.PushBack(string_value(assignment, document), document.GetAllocator());
}

JsonValue* find_object(JsonValue& object, const char* name) {
    JsonValue* found = find_member(object, name);
    return found != nullptr && found->IsObject() ? found : nullptr;
}

bool is_empty_list(JsonValue& object, const char* name) {
    JsonValue* found = find_member(object, name);
    return found == nullptr || found->IsNull() || (found->IsArray() && found->Empty());
}

}  // namespace berth::ctl
