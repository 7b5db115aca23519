#include "agent/core/swap.h"

#include "agent/core/text.h"

namespace berth::core {
namespace {

std::string number(int64_t value) {
    return std::to_string(value);
}

}  // namespace

Result<std::optional<int64_t>> swap_max(const SwapQuestion& question) {
    std::optional<int64_t> memory = question.memory_limit;
    int64_t total = question.total.value_or(0);
    if (memory && *memory < kNoLimit) {
        return invalid("memory.limit: " + number(*memory) + " is negative; only -1 (no limit) may be");
    }
    if (total < kNoLimit) {
        return invalid("memory.swap: " + number(total) + " is negative; only -1 (no limit) may be");
    }
    if (total == kNoLimit) return std::optional<int64_t>(kNoLimit);
    if (total == 0) {
        // Unlimited memory means unlimited swap.
        if (memory == kNoLimit) return std::optional<int64_t>(kNoLimit);
        return std::optional<int64_t>();
    }
    if (!memory) {
        return invalid("memory.swap: " + number(total) +
                       " is memory and swap together, but no memory limit is known to subtract from it");
    }
    if (*memory == kNoLimit) return std::optional<int64_t>(total);
    if (total < *memory) {
        return invalid("memory.swap: " + number(total) +
                       " (memory and swap together) is below the memory limit " + number(*memory));
    }
    return std::optional<int64_t>(total - *memory);
}

}  // namespace berth::core
