// The statistics files of one cgroup, as numbers. A file that is absent leaves its part at zero; "max" is
// UINT64_MAX. Parsers take the whole text of one file, skip keys they do not know and lines they cannot read
// (a newer kernel's), and allocate only for lists.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace berth::core {

inline constexpr uint64_t kStatNoLimit = UINT64_MAX;

struct PressureLine {
    double avg10 = 0;  // percent
    double avg60 = 0;
    double avg300 = 0;
    uint64_t total = 0;  // microseconds
};
struct Pressure {
    bool present = false;
    PressureLine some;
    PressureLine full;
};

struct CpuStats {
    uint64_t usage_usec = 0;
    uint64_t user_usec = 0;
    uint64_t system_usec = 0;
    uint64_t nr_periods = 0;
    uint64_t nr_throttled = 0;
    uint64_t throttled_usec = 0;
    uint64_t nr_bursts = 0;
    uint64_t burst_usec = 0;
};

// memory.stat, by the kernel's names.
struct MemoryStatFile {
    uint64_t anon = 0;
    uint64_t file = 0;
    uint64_t kernel_stack = 0;
    uint64_t slab = 0;
    uint64_t sock = 0;
    uint64_t shmem = 0;
    uint64_t file_mapped = 0;
    uint64_t file_dirty = 0;
    uint64_t file_writeback = 0;
    uint64_t anon_thp = 0;
    uint64_t inactive_anon = 0;
    uint64_t active_anon = 0;
    uint64_t inactive_file = 0;
    uint64_t active_file = 0;
    uint64_t unevictable = 0;
    uint64_t slab_reclaimable = 0;
    uint64_t slab_unreclaimable = 0;
    uint64_t pgfault = 0;
    uint64_t pgmajfault = 0;
    uint64_t workingset_refault = 0;   // since Linux 5.9 the sum of _anon and _file
    uint64_t workingset_activate = 0;  // likewise
    uint64_t workingset_nodereclaim = 0;
    uint64_t pgrefill = 0;
    uint64_t pgscan = 0;
    uint64_t pgsteal = 0;
    uint64_t pgactivate = 0;
    uint64_t pgdeactivate = 0;
    uint64_t pglazyfree = 0;
    uint64_t pglazyfreed = 0;
    uint64_t thp_fault_alloc = 0;
    uint64_t thp_collapse_alloc = 0;
    uint64_t file_thp = 0;
    uint64_t shmem_thp = 0;
    uint64_t kernel = 0;
    uint64_t pagetables = 0;
    uint64_t percpu = 0;
    uint64_t vmalloc = 0;
    uint64_t swapcached = 0;
    uint64_t zswap = 0;
    uint64_t zswapped = 0;
};

struct MemoryStats {
    MemoryStatFile stat;
    uint64_t current = 0;
    uint64_t max = 0;
    uint64_t peak = 0;  // memory.peak: since Linux 5.19
    uint64_t swap_current = 0;
    uint64_t swap_max = 0;
    uint64_t swap_peak = 0;  // memory.swap.peak: since Linux 6.5
};

struct PidsStats {
    uint64_t current = 0;
    uint64_t max = 0;
};

struct IoDeviceStats {
    uint32_t major = 0;
    uint32_t minor = 0;
    uint64_t rbytes = 0;
    uint64_t wbytes = 0;
    uint64_t rios = 0;
    uint64_t wios = 0;
    uint64_t dbytes = 0;
    uint64_t dios = 0;
};

struct HugetlbStats {
    std::string page_size;  // "2MB"
    uint64_t current = 0;
    uint64_t max = 0;
    uint64_t failures = 0;  // "max" of hugetlb.SIZE.events
};

struct RdmaEntry {
    std::string device;
    uint64_t hca_handles = 0;
    uint64_t hca_objects = 0;
};

struct MemoryEventCounts {
    uint64_t low = 0;
    uint64_t high = 0;
    uint64_t max = 0;
    uint64_t oom = 0;
    uint64_t oom_kill = 0;
    uint64_t oom_group_kill = 0;
};

struct CgroupStats {
    PidsStats pids;
    CpuStats cpu;
    Pressure cpu_pressure;
    MemoryStats memory;
    Pressure memory_pressure;
    MemoryEventCounts memory_events;
    std::vector<IoDeviceStats> io;
    Pressure io_pressure;
    std::vector<HugetlbStats> hugetlb;
    std::vector<RdmaEntry> rdma_current;
    std::vector<RdmaEntry> rdma_max;
};

// The files to read for a full CgroupStats, hugetlb's apart (whose names carry the page size).
enum class StatFile : uint8_t {
    kPidsCurrent,
    kPidsMax,
    kCpuStat,
    kCpuPressure,
    kMemoryStat,
    kMemoryCurrent,
    kMemoryMax,
    kMemoryPeak,
    kMemorySwapCurrent,
    kMemorySwapMax,
    kMemorySwapPeak,
    kMemoryEvents,
    kMemoryPressure,
    kIoStat,
    kIoPressure,
    kRdmaCurrent,
    kRdmaMax,
    kCount,
};
const char* stat_file_name(StatFile file);

// Puts the text of one file into its place. Text that cannot be read leaves zero.
void parse_stat_file(StatFile file, std::string_view text, CgroupStats& stats);

// Page size of a file "hugetlb.SIZE.current" ("2MB"), or empty when `name` is another file.
std::string_view hugetlb_page_size(std::string_view name);
// The three files of one page size; empty text for an absent one.
HugetlbStats parse_hugetlb(std::string_view page_size, std::string_view current, std::string_view max,
                           std::string_view events);

// cgroup.events: whether any process is in the cgroup or below it, and whether all of them are frozen.
struct CgroupState {
    bool populated = false;
    bool frozen = false;
};
CgroupState parse_cgroup_events(std::string_view text);

// One interface in /proc/PID/net/dev.
struct NetInterfaceStats {
    std::string name;
    uint64_t rx_bytes = 0;
    uint64_t rx_packets = 0;
    uint64_t rx_errors = 0;
    uint64_t rx_dropped = 0;
    uint64_t tx_bytes = 0;
    uint64_t tx_packets = 0;
    uint64_t tx_errors = 0;
    uint64_t tx_dropped = 0;
    bool operator==(const NetInterfaceStats&) const = default;
};
// The interfaces but the loopback one, in the file's order.
std::vector<NetInterfaceStats> parse_net_dev(std::string_view text);

// A *.pressure file.
Pressure parse_pressure(std::string_view text);

// A file of one number: "max" is kStatNoLimit, anything unreadable 0.
uint64_t parse_single_stat(std::string_view text);

}  // namespace berth::core
