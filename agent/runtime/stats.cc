#include "agent/runtime/stats.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "agent/core/text.h"
#include "agent/core/uninitialized.h"
#include "agent/runtime/runtime.h"
#include "proto/containerd/metrics.pb.h"

namespace berth::runtime {
namespace {

namespace metrics = pb::metrics;

// The largest files are memory.stat (2 KiB) and io.stat (100 bytes a device). What does not fit is cut at a
// line.
constexpr size_t kFileBytes = 32'768;
constexpr size_t kPerTurn = 4;

// What a file of a cgroup shows is one record, which the kernel's seq_file gives whole to a read that has the
// room (Documentation/filesystems/seq_file.rst): no second read to see its end. /proc/PID/net/dev is a record
// a line.
enum class Records { kOne, kMany };

std::string_view read_text(int directory, const char* name, std::span<char> buffer,
                           Records records = Records::kOne) {
    sys::UniqueFd fd(openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid()) return {};
    size_t used = 0;
    while (used < buffer.size()) {
        ssize_t count = read(fd.get(), buffer.data() + used, buffer.size() - used);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        used += static_cast<size_t>(count);
        if (records == Records::kOne) break;
    }
    std::string_view text(buffer.data(), used);
    if (used == buffer.size()) text = text.substr(0, text.rfind('\n') + 1);
    return text;
}

void fill_line(const core::PressureLine& from, metrics::PSIData& to) {
    to.set_avg10(from.avg10);
    to.set_avg60(from.avg60);
    to.set_avg300(from.avg300);
    to.set_total(from.total);
}

template <typename Message>
void fill_pressure(const core::Pressure& from, Message& to) {
    if (!from.present) return;
    fill_line(from.some, *to.mutable_psi()->mutable_some());
    fill_line(from.full, *to.mutable_psi()->mutable_full());
}

void fill_cpu(const core::CgroupStats& stats, metrics::CPUStat& to) {
    const core::CpuStats& cpu = stats.cpu;
    to.set_usage_usec(cpu.usage_usec);
    to.set_user_usec(cpu.user_usec);
    to.set_system_usec(cpu.system_usec);
    to.set_nr_periods(cpu.nr_periods);
    to.set_nr_throttled(cpu.nr_throttled);
    to.set_throttled_usec(cpu.throttled_usec);
    to.set_nr_bursts(cpu.nr_bursts);
    to.set_burst_usec(cpu.burst_usec);
    fill_pressure(stats.cpu_pressure, to);
}

void fill_memory_stat(const core::MemoryStatFile& stat, metrics::MemoryStat& to) {
    to.set_anon(stat.anon);
    to.set_file(stat.file);
    to.set_kernel_stack(stat.kernel_stack);
    to.set_slab(stat.slab);
    to.set_sock(stat.sock);
    to.set_shmem(stat.shmem);
    to.set_file_mapped(stat.file_mapped);
    to.set_file_dirty(stat.file_dirty);
    to.set_file_writeback(stat.file_writeback);
    to.set_anon_thp(stat.anon_thp);
    to.set_inactive_anon(stat.inactive_anon);
    to.set_active_anon(stat.active_anon);
    to.set_inactive_file(stat.inactive_file);
    to.set_active_file(stat.active_file);
    to.set_unevictable(stat.unevictable);
    to.set_slab_reclaimable(stat.slab_reclaimable);
    to.set_slab_unreclaimable(stat.slab_unreclaimable);
    to.set_pgfault(stat.pgfault);
    to.set_pgmajfault(stat.pgmajfault);
    to.set_workingset_refault(stat.workingset_refault);
    to.set_workingset_activate(stat.workingset_activate);
    to.set_workingset_nodereclaim(stat.workingset_nodereclaim);
    to.set_pgrefill(stat.pgrefill);
    to.set_pgscan(stat.pgscan);
    to.set_pgsteal(stat.pgsteal);
    to.set_pgactivate(stat.pgactivate);
    to.set_pgdeactivate(stat.pgdeactivate);
    to.set_pglazyfree(stat.pglazyfree);
    to.set_pglazyfreed(stat.pglazyfreed);
    to.set_thp_fault_alloc(stat.thp_fault_alloc);
    to.set_thp_collapse_alloc(stat.thp_collapse_alloc);
}

void fill_memory(const core::CgroupStats& stats, metrics::MemoryStat& to) {
    const core::MemoryStats& memory = stats.memory;
    fill_memory_stat(memory.stat, to);
    to.set_usage(memory.current);
    to.set_usage_limit(memory.max);
    to.set_swap_usage(memory.swap_current);
    to.set_swap_limit(memory.swap_max);
    to.set_max_usage(memory.peak);
    to.set_swap_max_usage(memory.swap_peak);
    fill_pressure(stats.memory_pressure, to);
}

void fill_events(const core::MemoryEventCounts& events, metrics::MemoryEvents& to) {
    to.set_low(events.low);
    to.set_high(events.high);
    to.set_max(events.max);
    to.set_oom(events.oom);
    to.set_oom_kill(events.oom_kill);
    to.set_oom_group_kill(events.oom_group_kill);
}

uint32_t clamp32(uint64_t value) {
    return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX));
}

void fill_rdma(const core::RdmaEntry& from, metrics::RdmaEntry& to) {
    to.set_device(from.device);
    to.set_hca_handles(clamp32(from.hca_handles));
    to.set_hca_objects(clamp32(from.hca_objects));
}

void fill_io(const core::CgroupStats& stats, metrics::IOStat& to) {
    for (const core::IoDeviceStats& device : stats.io) {
        metrics::IOEntry& entry = *to.add_usage();
        entry.set_major(device.major);
        entry.set_minor(device.minor);
        entry.set_rbytes(device.rbytes);
        entry.set_wbytes(device.wbytes);
        entry.set_rios(device.rios);
        entry.set_wios(device.wios);
    }
    fill_pressure(stats.io_pressure, to);
}

void fill_network(std::string_view net_dev, metrics::Metrics& to) {
    for (const core::NetInterfaceStats& interface : core::parse_net_dev(net_dev)) {
        metrics::NetworkStat& entry = *to.add_network();
        entry.set_name(interface.name);
        entry.set_rx_bytes(interface.rx_bytes);
        entry.set_rx_packets(interface.rx_packets);
        entry.set_rx_errors(interface.rx_errors);
        entry.set_rx_dropped(interface.rx_dropped);
        entry.set_tx_bytes(interface.tx_bytes);
        entry.set_tx_packets(interface.tx_packets);
        entry.set_tx_errors(interface.tx_errors);
        entry.set_tx_dropped(interface.tx_dropped);
    }
}

void add_hugetlb(int cgroup, std::string_view page_size, std::span<char> buffer, metrics::Metrics& to) {
    std::string prefix = "hugetlb." + std::string(page_size);
    uint64_t current = core::parse_single_stat(read_text(cgroup, (prefix + ".current").c_str(), buffer));
    std::string max(read_text(cgroup, (prefix + ".max").c_str(), buffer));
    std::string_view events = read_text(cgroup, (prefix + ".events").c_str(), buffer);
    core::HugetlbStats stats = core::parse_hugetlb(page_size, {}, max, events);
    metrics::HugeTlbStat& entry = *to.add_hugetlb();
    entry.set_pagesize(stats.page_size);
    entry.set_current(current);
    entry.set_max(stats.max);
    entry.set_failcnt(stats.failures);
}

}  // namespace

std::string read_metrics(sys::FdRef cgroup, std::span<const std::string> files, std::string_view net_dev) {
    BERTH_UNINITIALIZED char buffer[kFileBytes];
    core::CgroupStats stats;
    for (size_t i = 0; i < static_cast<size_t>(core::StatFile::kCount); ++i) {
        auto file = static_cast<core::StatFile>(i);
        std::string_view text = read_text(cgroup.get(), core::stat_file_name(file), buffer);
        if (!text.empty()) core::parse_stat_file(file, text, stats);
    }
    metrics::Metrics message;
    message.mutable_pids()->set_current(stats.pids.current);
    message.mutable_pids()->set_limit(stats.pids.max);
    fill_cpu(stats, *message.mutable_cpu());
    fill_memory(stats, *message.mutable_memory());
    fill_events(stats.memory_events, *message.mutable_memory_events());
    fill_io(stats, *message.mutable_io());
    for (const core::RdmaEntry& entry : stats.rdma_current)
        fill_rdma(entry, *message.mutable_rdma()->add_current());
    for (const core::RdmaEntry& entry : stats.rdma_max)
        fill_rdma(entry, *message.mutable_rdma()->add_limit());
    for (const std::string& file : files) {
        std::string_view page_size = core::hugetlb_page_size(file);
        if (!page_size.empty()) add_hugetlb(cgroup.get(), page_size, buffer, message);
    }
    fill_network(net_dev, message);
    return message.SerializeAsString();
}

std::string container_metrics(const Container& container, std::span<const std::string> files) {
    const Process& init = container.init();
    const core::NamespaceSpec* network = container.spec.find_namespace(core::kNewNet);
    std::string net_dev;
    // Its own namespace only: a joined one belongs to somebody else, and is told there.
    if (network != nullptr && network->path.empty() && init.pidfd.valid() && init.pid > 0) {
        BERTH_UNINITIALIZED char buffer[kFileBytes];
        net_dev =
            read_text(AT_FDCWD, core::format("/proc/%d/net/dev", init.pid).c_str(), buffer, Records::kMany);
        // Its pid may be somebody else's by now.
        if (!init.signal(0).ok()) net_dev.clear();
    }
    return read_metrics(container.cgroup.outer, files, net_dev);
}

StatsSweep::StatsSweep(Runtime& runtime, std::vector<std::string> ids,
                       core::Callback<void(std::vector<Entry>)> done)
    : runtime_(runtime),
      ids_(std::move(ids)),
      done_(std::move(done)),
      task_(runtime.loop(), loop::Task::to<&StatsSweep::step, StatsSweep>(), this) {
    if (ids_.empty()) {
        for (const auto& [id, container] : runtime_.containers()) ids_.push_back(id);
    }
    task_.post();
}

void StatsSweep::step() {
    size_t end = std::min(ids_.size(), next_ + kPerTurn);
    for (; next_ < end; ++next_) {
        auto id = core::ContainerId::parse(ids_[next_]);
        if (!id.ok()) continue;
        auto found = runtime_.find(*id);
        if (!found.ok() || !(*found)->cgroup.valid()) continue;
        entries_.push_back({ids_[next_], container_metrics(**found, runtime_.guest().cgroup.files)});
    }
    if (next_ < ids_.size()) return task_.post();
    done_.take()(std::move(entries_));
}

}  // namespace berth::runtime
