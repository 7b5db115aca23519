// Writing JSON, for --json and for the documents that go to the agent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/core/json.h"

namespace berth::ctl {

// Builds one JSON text, compact or indented. begin_* and end_* pair up; inside an object every value has its
// key.
class JsonText {
 public:
    enum class Style : uint8_t { kCompact, kIndented };
    explicit JsonText(Style style = Style::kCompact) : style_(style) {}

    void begin_object(std::string_view key = {});
    void end_object();
    void begin_array(std::string_view key = {});
    void end_array();
    void text(std::string_view key, std::string_view value);
    void number(std::string_view key, uint64_t value);
    void signed_number(std::string_view key, int64_t value);
    void decimal(std::string_view key, double value);
    void boolean(std::string_view key, bool value);
    // Elements of arrays.
    void item(std::string_view value);
    void item(uint64_t value);

    const std::string& str() const { return out_; }

 private:
    void before_value();
    void before_value(std::string_view key);
    void put_string(std::string_view value);
    void newline();
    void end(char bracket);

    Style style_;
    std::string out_;
    size_t depth_ = 0;
    bool is_first_ = true;
};

// A document that was parsed or changed, as compact text.
std::string json_text_of(const core::JsonValue& value);

}  // namespace berth::ctl
