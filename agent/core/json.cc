#include "agent/core/json.h"

#include <algorithm>
#include <cstring>
#include <optional>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wshadow"
#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>
#pragma GCC diagnostic pop

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

// Stands between rapidjson's reader and the document: counts, and refuses what rapidjson would take.
class BoundedHandler {
 public:
    using Ch = char;
    explicit BoundedHandler(rapidjson::Document& document) : document_(document) {}

    const std::string& problem() const { return problem_; }

    bool Null() { return count() && document_.Null(); }
    bool Bool(bool value) { return count() && document_.Bool(value); }
    bool Int(int value) { return count() && document_.Int(value); }
    bool Uint(unsigned value) { return count() && document_.Uint(value); }
    bool Int64(int64_t value) { return count() && document_.Int64(value); }
    bool Uint64(uint64_t value) { return count() && document_.Uint64(value); }
    bool Double(double value) { return count() && document_.Double(value); }
    bool RawNumber(const char* text, rapidjson::SizeType length, bool copy) {
        return count() && document_.RawNumber(text, length, copy);
    }
    bool String(const char* text, rapidjson::SizeType length, bool copy) {
        return count() && document_.String(text, length, copy);
    }
    bool StartObject() { return count() && deeper() && document_.StartObject(); }
    bool Key(const char* text, rapidjson::SizeType length, bool copy) {
        return document_.Key(text, length, copy);
    }
    bool EndObject(rapidjson::SizeType members) {
        --depth_;
        return document_.EndObject(members);
    }
    bool StartArray() { return count() && deeper() && document_.StartArray(); }
    bool EndArray(rapidjson::SizeType elements) {
        --depth_;
        return document_.EndArray(elements);
    }

 private:
    bool count() {
        if (++values_ <= limits::kJsonValues) return true;
        problem_ = format("has more than %zu values", limits::kJsonValues);
        return false;
    }
    bool deeper() {
        if (++depth_ <= limits::kJsonDepth) return true;
        problem_ = format("is nested deeper than %zu", limits::kJsonDepth);
        return false;
    }

    rapidjson::Document& document_;
    std::string problem_;
    size_t values_ = 0;
    size_t depth_ = 0;
};

struct Generator {
    std::string_view text;
    rapidjson::ParseResult parsed;
    std::string problem;

    bool operator()(rapidjson::Document& document) {
        BoundedHandler handler(document);
        rapidjson::MemoryStream stream(text.data(), text.size());
        rapidjson::Reader reader;
        parsed =
            reader.Parse<rapidjson::kParseNoFlags>(stream, handler);  // no deeper than the handler allows
        problem = handler.problem();
        return !parsed.IsError();
    }
};

// Bytes of the UTF-8 character that `text` (not empty) begins with; 0: none, or one that RFC 3629 forbids.
size_t utf8_length(std::string_view text) {
    auto byte = [&](size_t index) {
        return index < text.size() ? static_cast<unsigned char>(text[index]) : 0u;
    };
    auto is_tail = [&](size_t index) { return (byte(index) & 0xC0) == 0x80; };
    unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return is_tail(1) ? 2 : 0;
    if ((first & 0xF0) == 0xE0) {
        bool is_overlong = first == 0xE0 && byte(1) < 0xA0;
        bool is_surrogate = first == 0xED && byte(1) > 0x9F;
        return is_tail(1) && is_tail(2) && !is_overlong && !is_surrogate ? 3 : 0;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        bool is_overlong = first == 0xF0 && byte(1) < 0x90;
        bool is_beyond = first == 0xF4 && byte(1) > 0x8F;
        return is_tail(1) && is_tail(2) && is_tail(3) && !is_overlong && !is_beyond ? 4 : 0;
    }
    return 0;
}

// The offset of the first byte that is not UTF-8; the size: there is none. Eight at a time while they are
// ASCII, as nearly all of a spec is: rapidjson's own check goes byte by byte.
size_t find_invalid_utf8(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        uint64_t eight = 0;
        if (text.size() - at >= sizeof eight) {
            memcpy(&eight, text.data() + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t length = utf8_length(text.substr(at));
        if (length == 0) return at;
        at += length;
    }
    return at;
}

std::string_view name_of(const JsonValue::Member& member) {
    return {member.name.GetString(), member.name.GetStringLength()};
}

char small_letter(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Not strncasecmp(3), which links 390 KB of locales.
bool is_same_key(std::string_view name, std::string_view key) {
    if (name.size() != key.size()) return false;
    for (size_t i = 0; i < key.size(); ++i)
        if (name[i] != key[i] && small_letter(name[i]) != small_letter(key[i])) return false;
    return true;
}

// A key that occurs twice in one object, which every parser takes for something else.
std::optional<std::string_view> find_twin_in(const JsonValue& object) {
    constexpr rapidjson::SizeType kFew = 12;
    if (object.MemberCount() <= kFew) {
        for (auto one = object.MemberBegin(); one != object.MemberEnd(); ++one)
            for (auto other = object.MemberBegin(); other != one; ++other)
                if (name_of(*one) == name_of(*other)) return name_of(*one);
        return std::nullopt;
    }
    std::vector<std::string_view> names;
    names.reserve(object.MemberCount());
    for (auto member = object.MemberBegin(); member != object.MemberEnd(); ++member)
        names.push_back(name_of(*member));
    std::sort(names.begin(), names.end());
    auto twin = std::adjacent_find(names.begin(), names.end());
    return twin == names.end() ? std::nullopt : std::optional(*twin);
}

// As deep as the document is nested, which is bounded.
std::optional<std::string_view> find_twin(const JsonValue& value) {
    if (value.IsArray()) {
        for (const JsonValue& element : value.GetArray())
            if (auto twin = find_twin(element)) return twin;
    }
    if (!value.IsObject()) return std::nullopt;
    if (auto twin = find_twin_in(value)) return twin;
    for (auto member = value.MemberBegin(); member != value.MemberEnd(); ++member)
        if (auto twin = find_twin(member->value)) return twin;
    return std::nullopt;
}

}  // namespace

Result<rapidjson::Document> parse_json(std::string_view text) {
    if (text.size() > limits::kSpecJsonBytes)
        return make_error(Code::kResourceExhausted, format("JSON: %zu bytes, more than the limit of %zu",
                                                           text.size(), limits::kSpecJsonBytes));
    // A MemoryStream reads a NUL byte as the end of its text and would not look at what follows.
    if (size_t nul = text.find('\0'); nul != std::string_view::npos)
        return invalid(format("JSON: a NUL byte at offset %zu", nul));
    if (size_t bad = find_invalid_utf8(text); bad != text.size())
        return invalid(format("JSON: not UTF-8 at offset %zu", bad));
    rapidjson::Document document;
    Generator generator{.text = text, .parsed = {}, .problem = {}};
    document.Populate(generator);
    if (!generator.problem.empty()) return invalid("JSON: " + generator.problem);
    if (generator.parsed.IsError())
        return invalid(format("JSON: %s (at offset %zu)",
                              rapidjson::GetParseError_En(generator.parsed.Code()),
                              generator.parsed.Offset()));
    if (auto twin = find_twin(document))
        return invalid("JSON: the key " + quoted(*twin) + " occurs twice in one object");
    return document;
}

void JsonReport::ignore(std::string path) {
    if (ignored_.size() < kIgnoredKept) ignored_.push_back(std::move(path));
}

void JsonReport::join(const JsonValue& object, const JsonValue& twin) {
    if (twin_of(object) == nullptr) twins_.emplace_back(&object, &twin);
}

const JsonValue* JsonReport::twin_of(const JsonValue& object) const {
    for (const auto& [one, other] : twins_)
        if (one == &object) return other;
    return nullptr;
}

JsonObject::JsonObject(JsonReport& report, const JsonValue* value, std::string path)
    : report_(&report), value_(value), path_(std::move(path)) {
    if (value_ && value_->IsNull()) value_ = nullptr;
    if (value_ && !value_->IsObject()) {
        report_->fail(invalid((path_.empty() ? "JSON" : path_) + ": must be an object"));
        value_ = nullptr;
    }
    if (!value_) return;
    twin_ = report_->twin_of(*value_);
    known_.resize(value_->MemberCount() + (twin_ ? twin_->MemberCount() : 0));
}

template <typename Visit>
void JsonObject::each_own(Visit visit) {
    size_t index = 0;
    for (const JsonValue* object : {value_, twin_}) {
        if (!object) continue;
        for (auto member = object->MemberBegin(); member != object->MemberEnd(); ++member, ++index)
            visit(*member, index);
    }
}

JsonObject::~JsonObject() {
    if (!value_ || report_->failed()) return;
    each_own([this](const JsonValue::Member& member, size_t index) {
        if (known_[index]) return;
        std::string_view name = name_of(member);
        // A name may hold anything; the log gets one line.
        bool plain = quoted(name).size() == name.size() + 2;
        report_->ignore(plain ? path_of(name) : path_ + "[" + quoted(name) + "]");
    });
}

std::string JsonObject::path_of(std::string_view key) const {
    std::string full = path_;
    if (!full.empty()) full += '.';
    return full.append(key);
}

void JsonObject::fail(std::string_view key, std::string_view problem, Code code) const {
    report_->fail(make_error(code, path_of(key) + ": " + std::string(problem)));
}

const JsonValue* JsonObject::find(std::string_view key) {
    if (!value_ || report_->failed()) return nullptr;
    const JsonValue::Member* found = nullptr;
    const JsonValue::Member* other = nullptr;
    bool is_third = false;
    each_own([&](const JsonValue::Member& member, size_t index) {
        if (!is_same_key(name_of(member), key)) return;
        known_[index] = true;
        if (member.value.IsNull()) return;
        is_third = is_third || other != nullptr;
        (found ? other : found) = &member;
    });
    if (!other) return found ? &found->value : nullptr;
    if (is_third || !found->value.IsObject() || !other->value.IsObject()) {
        report_->fail(invalid(path_of(key) + ": is given twice, as " + quoted(name_of(*found)) + " and " +
                              quoted(name_of(*other))));
        return nullptr;
    }
    report_->join(found->value, other->value);
    return &found->value;
}

void JsonObject::read(std::string_view key, bool& out) {
    const JsonValue* value = find(key);
    if (!value) return;
    if (!value->IsBool()) return fail(key, "must be true or false");
    out = value->GetBool();
}

void JsonObject::read(std::string_view key, std::string& out) {
    if (const JsonValue* value = find(key)) out = json_string(*report_, *value, path_of(key));
}

void JsonObject::read(std::string_view key, std::vector<std::string>& out, size_t limit) {
    each(key, limit, [&](const JsonValue& value, std::string element_path) {
        out.push_back(json_string(*report_, value, element_path));
    });
}

const JsonValue* JsonObject::find_array(std::string_view key, size_t limit) {
    const JsonValue* value = find(key);
    if (!value) return nullptr;
    if (!value->IsArray()) {
        fail(key, "must be an array");
        return nullptr;
    }
    if (value->Size() > limit) {
        fail(key, format("has %u elements, more than the limit of %zu", value->Size(), limit),
             Code::kResourceExhausted);
        return nullptr;
    }
    return value;
}

const JsonValue* JsonObject::find_object(std::string_view key, size_t limit) {
    const JsonValue* value = find(key);
    if (!value) return nullptr;
    if (!value->IsObject()) {
        fail(key, "must be an object");
        return nullptr;
    }
    if (report_->twin_of(*value)) {
        fail(key, "is given twice, in different letter cases");
        return nullptr;
    }
    if (value->MemberCount() > limit) {
        fail(key, format("has %u members, more than the limit of %zu", value->MemberCount(), limit),
             Code::kResourceExhausted);
        return nullptr;
    }
    return value;
}

int64_t JsonObject::signed_between(const JsonValue& value, const std::string& path, int64_t least,
                                   int64_t most) const {
    if (value.IsInt64() && value.GetInt64() >= least && value.GetInt64() <= most) return value.GetInt64();
    report_->fail(invalid(path + format(": must be a number from %lld to %lld", static_cast<long long>(least),
                                        static_cast<long long>(most))));
    return 0;
}

uint64_t JsonObject::unsigned_between(const JsonValue& value, const std::string& path, uint64_t least,
                                      uint64_t most) const {
    if (value.IsUint64() && value.GetUint64() >= least && value.GetUint64() <= most) return value.GetUint64();
    report_->fail(
        invalid(path + format(": must be a number from %llu to %llu", static_cast<unsigned long long>(least),
                              static_cast<unsigned long long>(most))));
    return 0;
}

std::string json_string(JsonReport& report, const JsonValue& value, const std::string& path) {
    if (!value.IsString()) {
        report.fail(invalid(path + ": must be a string"));
        return {};
    }
    std::string text(value.GetString(), value.GetStringLength());
    if (text.find('\0') == std::string::npos) return text;
    report.fail(invalid(path + ": contains a NUL byte"));
    return {};
}

uint32_t json_uint32(JsonReport& report, const JsonValue& value, const std::string& path) {
    if (value.IsUint()) return value.GetUint();
    report.fail(invalid(path + ": must be a number from 0 to 4294967295"));
    return 0;
}

}  // namespace berth::core
