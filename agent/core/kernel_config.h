// A kernel's .config, as far as whether an option is built in, a module, or off.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/core/result.h"

namespace berth::core {

class KernelConfig {
 public:
    enum class Value : uint8_t { kOff, kModule, kOn };  // kOn: =y, or any number or text

    // Lines CONFIG_NAME=VALUE, "# CONFIG_NAME is not set" and other comments; of a name that comes twice the
    // last line counts, as in kconfig. Keeps views of `text`, which has to outlive it. Anything else is
    // INVALID_ARGUMENT with its line number; so is a text without any option, which is some other file.
    static Result<KernelConfig> parse(std::string_view text);

    // `name` without CONFIG_.
    Value value(std::string_view name) const;

 private:
    std::vector<std::pair<std::string_view, Value>> options_;  // sorted by name
};

}  // namespace berth::core
