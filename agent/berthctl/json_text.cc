#include "agent/berthctl/json_text.h"

#include <cstdlib>

#include "agent/core/text.h"

namespace berth::ctl {

namespace {

void put_value(JsonText& out, std::string_view key, const core::JsonValue& value);

std::string_view text_of(const core::JsonValue& value) {
    return {value.GetString(), value.GetStringLength()};
}

void put_value(JsonText& out, std::string_view key, const core::JsonValue& value) {
    if (value.IsObject()) {
        out.begin_object(key);
        for (rapidjson::SizeType i = 0; i < value.MemberCount(); i++) {
            const auto& member = value.MemberBegin()[i];
            put_value(out, text_of(member.name), member.value);
        }
        out.end_object();
    } else if (value.IsArray()) {
        out.begin_array(key);
        for (const core::JsonValue& element : value.GetArray()) put_value(out, {}, element);
        out.end_array();
    } else if (value.IsString()) {
        out.text(key, text_of(value));
    } else if (value.IsBool()) {
        out.boolean(key, value.GetBool());
    } else if (value.IsUint64()) {
        out.number(key, value.GetUint64());
    } else if (value.IsInt64()) {
        out.signed_number(key, value.GetInt64());
    } else if (value.IsDouble()) {
        out.decimal(key, value.GetDouble());
    }
    // null: as good as absent in the OCI's documents.
}

}  // namespace

void JsonText::newline() {
    if (style_ == Style::kIndented) out_.append("\n").append(depth_ * 2, ' ');
}

void JsonText::before_value() {
    if (!is_first_) out_ += ',';
    if (depth_ > 0) newline();
    is_first_ = false;
}

// An empty key is that of an array's element; no document here has empty keys.
void JsonText::before_value(std::string_view key) {
    before_value();
    if (key.empty()) return;
    put_string(key);
    out_ += style_ == Style::kIndented ? ": " : ":";
}

void JsonText::put_string(std::string_view value) {
    out_ += '"';
    for (char c : value) {
        uint8_t byte = static_cast<uint8_t>(c);
        if (c == '"' || c == '\\') {
            out_ += '\\';
            out_ += c;
        } else if (byte < 0x20 || byte == 0x7f) {
            out_ += core::format("\\u%04x", byte);
        } else {
            out_ += c;
        }
    }
    out_ += '"';
}

void JsonText::begin_object(std::string_view key) {
    before_value(key);
    out_ += '{';
    depth_++;
    is_first_ = true;
}

void JsonText::begin_array(std::string_view key) {
    before_value(key);
    out_ += '[';
    depth_++;
    is_first_ = true;
}

void JsonText::end(char bracket) {
    depth_--;
    if (!is_first_) newline();
    out_ += bracket;
    is_first_ = false;
}

void JsonText::end_object() {
    end('}');
}

void JsonText::end_array() {
    end(']');
}

void JsonText::text(std::string_view key, std::string_view value) {
    before_value(key);
    put_string(value);
}

void JsonText::number(std::string_view key, uint64_t value) {
    before_value(key);
    out_ += core::format("%llu", static_cast<unsigned long long>(value));
}

void JsonText::signed_number(std::string_view key, int64_t value) {
    before_value(key);
    out_ += core::format("%lld", static_cast<long long>(value));
}

void JsonText::decimal(std::string_view key, double value) {
    before_value(key);
    // The shortest that reads back as the same number: 0.54, not 0.54000000000000004.
    std::string text;
    for (int digits = 15; digits <= 17; digits++) {
        text = core::format("%.*g", digits, value);
        if (std::strtod(text.c_str(), nullptr) == value) break;
    }
    out_ += text;
}

void JsonText::boolean(std::string_view key, bool value) {
    before_value(key);
    out_ += value ? "true" : "false";
}

void JsonText::item(std::string_view value) {
    before_value();
    put_string(value);
}

void JsonText::item(uint64_t value) {
    before_value();
    out_ += core::format("%llu", static_cast<unsigned long long>(value));
}

std::string json_text_of(const core::JsonValue& value) {
    JsonText out;
    put_value(out, {}, value);
    return out.str();
}

}  // namespace berth::ctl
