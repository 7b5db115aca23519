// The kernel's cgroup files, as a container with a writable cgroup mount or a newer kernel may make them
// look. The first byte chooses the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "agent/core/cgroup_stats.h"
#include "agent/core/memory_events.h"

using namespace berth::core;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    constexpr auto kFiles = static_cast<uint8_t>(StatFile::kCount);
    uint8_t choice = data[0] % (kFiles + 2);
    if (choice < kFiles) {
        CgroupStats stats;
        parse_stat_file(static_cast<StatFile>(choice), text, stats);
    } else if (choice == kFiles) {
        (void)parse_hugetlb(hugetlb_page_size(text), text, text, text);
        (void)parse_cgroup_events(text);
        (void)parse_net_dev(text);
        (void)parse_pressure(text);
    } else {
        Result<MemoryEvents> events = parse_memory_events(text);
        if (events.ok() && !memory_events_since(*events, *events).empty()) abort();
        if (events.ok()) {
            MemoryEvents sum = *events;
            add_memory_events(sum, *events);
        }
    }
    return 0;
}
