// Reading foreign JSON: bounded, iterative, strict (RFC 8259, UTF-8 checked, duplicate keys refused), with
// errors that name the JSON path (`process.user.uid: must be a number from 0 to 4294967295`).
//
// The first error is kept in a JsonReport and everything after it is skipped, so that a parser reads as the
// list of its fields and asks for the error once, at its end. JSON null counts as absent, as in Go.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "agent/core/check.h"
#include "agent/core/result.h"
#include "agent/core/text.h"

// rapidjson is included here only, so that its assertions are ours in every file.
// (<rapidjson/fwd.h>, which others may include for a declaration, has set its own.)
#undef RAPIDJSON_ASSERT
#define RAPIDJSON_ASSERT(condition) BERTH_CHECK(condition)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wdeprecated"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wclass-memaccess"
#endif
#include <rapidjson/document.h>
#pragma GCC diagnostic pop

namespace berth::core {

using JsonValue = rapidjson::Value;

// Parses `text` whole. INVALID_ARGUMENT with the byte offset when it is not one JSON value; a duplicate key
// (named), a depth over limits::kJsonDepth, more than limits::kJsonValues values; RESOURCE_EXHAUSTED over
// limits::kSpecJsonBytes.
Result<rapidjson::Document> parse_json(std::string_view text);

// What reading one document has met.
class JsonReport {
 public:
    void fail(Error error) {
        if (!error_) error_ = std::move(error);
    }
    bool failed() const { return error_.has_value(); }
    // The first error, if any. Moves it out.
    Status status() {
        if (error_) return std::move(*error_);
        return ok();
    }
    // Two objects of one key (in different letter cases), which are read as one, as by Go.
    void join(const JsonValue& object, const JsonValue& twin);
    // Null: it has none.
    const JsonValue* twin_of(const JsonValue& object) const;
    // A property that nobody read: kept for the log, at most kIgnoredKept of them.
    void ignore(std::string path);
    std::vector<std::string>& ignored() { return ignored_; }

 private:
    static constexpr size_t kIgnoredKept = 64;
    std::optional<Error> error_;
    std::vector<std::string> ignored_;
    std::vector<std::pair<const JsonValue*, const JsonValue*>> twins_;
};

// One JSON object and its path. Getters leave `out` as it is when the key is absent or null. Keys that were
// never asked for are reported as ignored when the object goes out of scope.
class JsonObject {
 public:
    // An object for `value`; a null pointer is an absent object (all getters do nothing); anything but an
    // object is reported. `path` "" is the document itself.
    JsonObject(JsonReport& report, const JsonValue* value, std::string path);
    ~JsonObject();
    JsonObject(const JsonObject&) = delete;
    JsonObject& operator=(const JsonObject&) = delete;

    bool present() const { return value_ != nullptr; }
    const std::string& path() const { return path_; }
    std::string path_of(std::string_view key) const;
    JsonReport& report() const { return *report_; }
    void fail(std::string_view key, std::string_view problem, Code code = Code::kInvalidArgument) const;

    // The value of `key`, or null when absent or JSON null. Marks the key as known. A key in other letter
    // cases is the same key, as for Go's encoding/json, with which hosts and other runtimes read specs: what
    // "Readonly" closes for them must not stay open here. Two cases of one key contradict each other, but for
    // two objects, which are one.
    const JsonValue* find(std::string_view key);

    void read(std::string_view key, bool& out);
    void read(std::string_view key, std::string& out);  // without NUL bytes
    void read(std::string_view key, std::vector<std::string>& out, size_t limit);
    template <typename Number>
    requires(std::is_integral_v<Number> && !std::is_same_v<Number, bool>) void read(std::string_view key,
                                                                                    Number& out) {
        read_between(key, out, std::numeric_limits<Number>::min(), std::numeric_limits<Number>::max());
    }
    template <typename Type>
    void read(std::string_view key, std::optional<Type>& out) {
        if (!find(key)) return;
        Type value{};
        read(key, value);
        out = std::move(value);
    }
    template <typename Number>
    void read_between(std::string_view key, Number& out, Number least, Number most) {
        const JsonValue* value = find(key);
        if (!value) return;
        if constexpr (std::is_signed_v<Number>)
            out = static_cast<Number>(signed_between(*value, path_of(key), least, most));
        else
            out = static_cast<Number>(unsigned_between(*value, path_of(key), least, most));
    }

    // Calls visit(const JsonValue&, std::string path) for each element of the array `key`, until an error.
    template <typename Visit>
    void each(std::string_view key, size_t limit, Visit visit) {
        const JsonValue* array = find_array(key, limit);
        if (!array) return;
        for (rapidjson::SizeType i = 0; i < array->Size() && !report_->failed(); ++i)
            visit((*array)[i], path_of(key) + "[" + std::to_string(i) + "]");
    }
    // Calls visit(std::string name, const JsonValue&, std::string path) for each member of the object `key`.
    template <typename Visit>
    void each_member(std::string_view key, size_t limit, Visit visit) {
        const JsonValue* object = find_object(key, limit);
        if (!object) return;
        for (auto member = object->MemberBegin(); member != object->MemberEnd() && !report_->failed();
             ++member) {
            std::string name(member->name.GetString(), member->name.GetStringLength());
            std::string member_path = path_of(key) + "[" + quoted(name) + "]";
            visit(std::move(name), member->value, std::move(member_path));
        }
    }

 private:
    int64_t signed_between(const JsonValue& value, const std::string& path, int64_t least,
                           int64_t most) const;
    uint64_t unsigned_between(const JsonValue& value, const std::string& path, uint64_t least,
                              uint64_t most) const;
    const JsonValue* find_array(std::string_view key, size_t limit);
    const JsonValue* find_object(std::string_view key, size_t limit);
    template <typename Visit>
    void each_own(Visit visit);  // visit(const JsonValue::Member&, size_t index), of the twin, too

    JsonReport* report_;
    const JsonValue* value_;
    const JsonValue* twin_ = nullptr;
    std::string path_;
    std::vector<bool> known_;
};

// A single value that is not in an object: an array's element. Reports and returns "" when it is not a
// string, or has a NUL byte.
std::string json_string(JsonReport& report, const JsonValue& value, const std::string& path);
uint32_t json_uint32(JsonReport& report, const JsonValue& value, const std::string& path);

}  // namespace berth::core
