#include "agent/core/cgroup_stats.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>

#include "agent/core/text.h"

namespace berth::core {
namespace {

// Cuts the next part up to `separator` off `text`.
std::string_view next(std::string_view& text, char separator) {
    size_t end = std::min(text.find(separator), text.size());
    std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return part;
}

bool number(std::string_view text, uint64_t& out) {
    if (text == "max") {
        out = kStatNoLimit;
        return true;
    }
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error == std::errc{} && end == text.data() + text.size() && !text.empty()) return true;
    out = 0;
    return false;
}

// "12.34" without locale or from_chars for doubles.
double decimal(std::string_view text) {
    uint64_t whole = 0;
    uint64_t fraction = 0;
    std::string_view rest = text;
    if (!number(next(rest, '.'), whole) || whole > 1'000'000) return 0;
    double scale = 1;
    if (!rest.empty()) {
        if (rest.size() > 9 || !number(rest, fraction)) return 0;
        for (size_t i = 0; i < rest.size(); ++i) scale *= 10;
    }
    return static_cast<double>(whole) + static_cast<double>(fraction) / scale;
}

template <typename Struct>
struct Key {
    std::string_view name;
    uint64_t Struct::*field;
};

// A file of "key value" lines into a struct. The keys come in the kernel's order, so each search begins where
// the last one ended: one comparison a line as a rule.
template <typename Struct, size_t Count>
void flat_keyed(std::string_view text, const Key<Struct> (&keys)[Count], Struct& out) {
    size_t start = 0;
    while (!text.empty()) {
        std::string_view value = next(text, '\n');
        std::string_view name = next(value, ' ');
        for (size_t step = 0; step < Count; ++step) {
            size_t i = start + step < Count ? start + step : start + step - Count;
            if (keys[i].name != name) continue;
            uint64_t parsed = 0;
            if (number(value, parsed)) out.*keys[i].field += parsed;
            start = i + 1 < Count ? i + 1 : 0;
            break;
        }
    }
}

constexpr Key<CpuStats> kCpuKeys[] = {
    {"usage_usec", &CpuStats::usage_usec},     {"user_usec", &CpuStats::user_usec},
    {"system_usec", &CpuStats::system_usec},   {"nr_periods", &CpuStats::nr_periods},
    {"nr_throttled", &CpuStats::nr_throttled}, {"throttled_usec", &CpuStats::throttled_usec},
    {"nr_bursts", &CpuStats::nr_bursts},       {"burst_usec", &CpuStats::burst_usec},
};

using M = MemoryStatFile;
constexpr Key<M> kMemoryKeys[] = {
    {"anon", &M::anon},
    {"file", &M::file},
    {"kernel", &M::kernel},
    {"kernel_stack", &M::kernel_stack},
    {"pagetables", &M::pagetables},
    {"percpu", &M::percpu},
    {"sock", &M::sock},
    {"vmalloc", &M::vmalloc},
    {"shmem", &M::shmem},
    {"zswap", &M::zswap},
    {"zswapped", &M::zswapped},
    {"file_mapped", &M::file_mapped},
    {"file_dirty", &M::file_dirty},
    {"file_writeback", &M::file_writeback},
    {"swapcached", &M::swapcached},
    {"anon_thp", &M::anon_thp},
    {"file_thp", &M::file_thp},
    {"shmem_thp", &M::shmem_thp},
    {"inactive_anon", &M::inactive_anon},
    {"active_anon", &M::active_anon},
    {"inactive_file", &M::inactive_file},
    {"active_file", &M::active_file},
    {"unevictable", &M::unevictable},
    {"slab_reclaimable", &M::slab_reclaimable},
    {"slab_unreclaimable", &M::slab_unreclaimable},
    {"slab", &M::slab},
    {"workingset_refault", &M::workingset_refault},
    {"workingset_refault_anon", &M::workingset_refault},
    {"workingset_refault_file", &M::workingset_refault},
    {"workingset_activate", &M::workingset_activate},
    {"workingset_activate_anon", &M::workingset_activate},
    {"workingset_activate_file", &M::workingset_activate},
    {"workingset_nodereclaim", &M::workingset_nodereclaim},
    {"pgscan", &M::pgscan},
    {"pgsteal", &M::pgsteal},
    {"pgfault", &M::pgfault},
    {"pgmajfault", &M::pgmajfault},
    {"pgrefill", &M::pgrefill},
    {"pgactivate", &M::pgactivate},
    {"pgdeactivate", &M::pgdeactivate},
    {"pglazyfree", &M::pglazyfree},
    {"pglazyfreed", &M::pglazyfreed},
    {"thp_fault_alloc", &M::thp_fault_alloc},
    {"thp_collapse_alloc", &M::thp_collapse_alloc},
};

constexpr Key<MemoryEventCounts> kEventKeys[] = {
    {"low", &MemoryEventCounts::low},           {"high", &MemoryEventCounts::high},
    {"max", &MemoryEventCounts::max},           {"oom", &MemoryEventCounts::oom},
    {"oom_kill", &MemoryEventCounts::oom_kill}, {"oom_group_kill", &MemoryEventCounts::oom_group_kill},
};

// "some avg10=0.00 avg60=0.00 avg300=0.00 total=0" and the same for full.
void pressure(std::string_view text, Pressure& out) {
    while (!text.empty()) {
        std::string_view line = next(text, '\n');
        std::string_view kind = next(line, ' ');
        PressureLine* into = kind == "some" ? &out.some : kind == "full" ? &out.full : nullptr;
        if (into == nullptr) continue;
        out.present = true;
        while (!line.empty()) {
            std::string_view value = next(line, ' ');
            std::string_view key = next(value, '=');
            if (key == "avg10") {
                into->avg10 = decimal(value);
            } else if (key == "avg60") {
                into->avg60 = decimal(value);
            } else if (key == "avg300") {
                into->avg300 = decimal(value);
            } else if (key == "total") {
                number(value, into->total);
            }
        }
    }
}

constexpr Key<IoDeviceStats> kIoKeys[] = {
    {"rbytes", &IoDeviceStats::rbytes}, {"wbytes", &IoDeviceStats::wbytes}, {"rios", &IoDeviceStats::rios},
    {"wios", &IoDeviceStats::wios},     {"dbytes", &IoDeviceStats::dbytes}, {"dios", &IoDeviceStats::dios},
};

bool device_number(std::string_view text, IoDeviceStats& out) {
    std::string_view major = next(text, ':');
    std::optional<uint32_t> first = parse_number<uint32_t>(major);
    std::optional<uint32_t> second = parse_number<uint32_t>(text);
    if (!first || !second) return false;
    out.major = *first;
    out.minor = *second;
    return true;
}

// "8:0 rbytes=1 wbytes=2 ...". A line may hold several devices with one set of numbers, or a device alone
// without any: both are how kernels print disks that did nothing.
void io_stat(std::string_view text, std::vector<IoDeviceStats>& out) {
    out.clear();
    while (!text.empty()) {
        std::string_view line = next(text, '\n');
        IoDeviceStats device;
        bool named = false;
        bool counted = false;
        while (!line.empty()) {
            std::string_view word = next(line, ' ');
            size_t equals = word.find('=');
            if (equals == std::string_view::npos) {
                named = device_number(word, device);
                continue;
            }
            for (const Key<IoDeviceStats>& key : kIoKeys) {
                if (key.name == word.substr(0, equals)) {
                    counted |= number(word.substr(equals + 1), device.*key.field);
                }
            }
        }
        if (named && counted) out.push_back(device);
    }
}

// "mlx4_0 hca_handle=2 hca_object=2000"
void rdma(std::string_view text, std::vector<RdmaEntry>& out) {
    out.clear();
    while (!text.empty()) {
        std::string_view line = next(text, '\n');
        std::string_view name = next(line, ' ');
        if (name.empty()) continue;
        RdmaEntry entry;
        entry.device = name;
        while (!line.empty()) {
            std::string_view value = next(line, ' ');
            std::string_view key = next(value, '=');
            if (key == "hca_handle") number(value, entry.hca_handles);
            if (key == "hca_object") number(value, entry.hca_objects);
        }
        out.push_back(std::move(entry));
    }
}

constexpr const char* kNames[] = {
    "pids.current",    "pids.max",         "cpu.stat",
    "cpu.pressure",    "memory.stat",      "memory.current",
    "memory.max",      "memory.peak",      "memory.swap.current",
    "memory.swap.max", "memory.swap.peak", "memory.events",
    "memory.pressure", "io.stat",          "io.pressure",
    "rdma.current",    "rdma.max",
};
static_assert(std::size(kNames) == static_cast<size_t>(StatFile::kCount));

}  // namespace

const char* stat_file_name(StatFile file) {
    return file < StatFile::kCount ? kNames[static_cast<size_t>(file)] : "";
}

uint64_t parse_single_stat(std::string_view text) {
    uint64_t value = 0;
    number(trim(text), value);
    return value;
}

void parse_stat_file(StatFile file, std::string_view text, CgroupStats& stats) {
    switch (file) {
        case StatFile::kPidsCurrent: stats.pids.current = parse_single_stat(text); break;
        case StatFile::kPidsMax: stats.pids.max = parse_single_stat(text); break;
        case StatFile::kCpuStat:
            stats.cpu = {};
            flat_keyed(text, kCpuKeys, stats.cpu);
            break;
        case StatFile::kCpuPressure: pressure(text, stats.cpu_pressure); break;
        case StatFile::kMemoryStat:
            stats.memory.stat = {};
            flat_keyed(text, kMemoryKeys, stats.memory.stat);
            break;
        case StatFile::kMemoryCurrent: stats.memory.current = parse_single_stat(text); break;
        case StatFile::kMemoryMax: stats.memory.max = parse_single_stat(text); break;
        case StatFile::kMemoryPeak: stats.memory.peak = parse_single_stat(text); break;
        case StatFile::kMemorySwapCurrent: stats.memory.swap_current = parse_single_stat(text); break;
        case StatFile::kMemorySwapMax: stats.memory.swap_max = parse_single_stat(text); break;
        case StatFile::kMemorySwapPeak: stats.memory.swap_peak = parse_single_stat(text); break;
        case StatFile::kMemoryEvents:
            stats.memory_events = {};
            flat_keyed(text, kEventKeys, stats.memory_events);
            break;
        case StatFile::kMemoryPressure: pressure(text, stats.memory_pressure); break;
        case StatFile::kIoStat: io_stat(text, stats.io); break;
        case StatFile::kIoPressure: pressure(text, stats.io_pressure); break;
        case StatFile::kRdmaCurrent: rdma(text, stats.rdma_current); break;
        case StatFile::kRdmaMax: rdma(text, stats.rdma_max); break;
        case StatFile::kCount: break;
    }
}

Pressure parse_pressure(std::string_view text) {
    Pressure parsed;
    pressure(text, parsed);
    return parsed;
}

std::vector<NetInterfaceStats> parse_net_dev(std::string_view text) {
    // Bytes, packets, errors and drops are the first four of eight columns for each direction.
    constexpr uint64_t NetInterfaceStats::*kColumns[16] = {&NetInterfaceStats::rx_bytes,
                                                           &NetInterfaceStats::rx_packets,
                                                           &NetInterfaceStats::rx_errors,
                                                           &NetInterfaceStats::rx_dropped,
                                                           nullptr,
                                                           nullptr,
                                                           nullptr,
                                                           nullptr,
                                                           &NetInterfaceStats::tx_bytes,
                                                           &NetInterfaceStats::tx_packets,
                                                           &NetInterfaceStats::tx_errors,
                                                           &NetInterfaceStats::tx_dropped,
                                                           nullptr,
                                                           nullptr,
                                                           nullptr,
                                                           nullptr};
    std::vector<NetInterfaceStats> found;
    while (!text.empty()) {
        std::string_view line = next(text, '\n');
        size_t colon = line.rfind(':');  // an interface's alias may have one, too
        if (colon == std::string_view::npos) continue;
        NetInterfaceStats interface;
        interface.name = trim(line.substr(0, colon));
        std::string_view rest = line.substr(colon + 1);
        size_t column = 0;
        while (!rest.empty() && column < std::size(kColumns)) {
            std::string_view word = next(rest, ' ');
            if (word.empty()) continue;
            if (kColumns[column] != nullptr) number(word, interface.*kColumns[column]);
            ++column;
        }
        if (column == std::size(kColumns) && interface.name != "lo") found.push_back(std::move(interface));
    }
    return found;
}

CgroupState parse_cgroup_events(std::string_view text) {
    CgroupState state;
    while (!text.empty()) {
        std::string_view line = next(text, '\n');
        if (line == "populated 1") state.populated = true;
        if (line == "frozen 1") state.frozen = true;
    }
    return state;
}

std::string_view hugetlb_page_size(std::string_view name) {
    constexpr std::string_view kPrefix = "hugetlb.";
    constexpr std::string_view kSuffix = ".current";
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
    if (name.size() <= kPrefix.size() + kSuffix.size()) return {};
    std::string_view size = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    return size.find('.') == std::string_view::npos ? size
                                                    : std::string_view();  // not hugetlb.2MB.rsvd.current
}

HugetlbStats parse_hugetlb(std::string_view page_size, std::string_view current, std::string_view max,
                           std::string_view events) {
    HugetlbStats stats;
    stats.page_size = page_size;
    stats.current = parse_single_stat(current);
    stats.max = parse_single_stat(max);
    constexpr Key<HugetlbStats> kKeys[] = {{"max", &HugetlbStats::failures}};
    flat_keyed(events, kKeys, stats);
    return stats;
}

}  // namespace berth::core
