#include "agent/core/cgroup_stats.h"

#include <doctest/doctest.h>

using namespace berth::core;

namespace {

CgroupStats read(StatFile file, std::string_view text) {
    CgroupStats stats;
    parse_stat_file(file, text, stats);
    return stats;
}

// Captured on Linux 6.1.
constexpr const char* kMemoryStat =
    "anon 8192\nfile 4096\nkernel 90112\nkernel_stack 16384\npagetables 12288\nsec_pagetables 0\npercpu "
    "60\nsock 1\n"
    "vmalloc 2\nshmem 3\nzswap 4\nzswapped 5\nfile_mapped 6\nfile_dirty 7\nfile_writeback 8\nswapcached 9\n"
    "anon_thp 10\nfile_thp 11\nshmem_thp 12\ninactive_anon 13\nactive_anon 14\ninactive_file 15\nactive_file "
    "16\n"
    "unevictable 17\nslab_reclaimable 18\nslab_unreclaimable 19\nslab 37\nworkingset_refault_anon 20\n"
    "workingset_refault_file 21\nworkingset_activate_anon 22\nworkingset_activate_file 23\n"
    "workingset_restore_anon 24\nworkingset_restore_file 25\nworkingset_nodereclaim 26\npgscan 27\npgsteal "
    "28\n"
    "pgscan_kswapd 29\npgscan_direct 30\npgsteal_kswapd 31\npgsteal_direct 32\npgfault 33\npgmajfault 34\n"
    "pgrefill 35\npgactivate 36\npgdeactivate 37\npglazyfree 38\npglazyfreed 39\nzswpin 40\nzswpout 41\n"
    "thp_fault_alloc 42\nthp_collapse_alloc 43\n";

}  // namespace

TEST_CASE("memory.stat: each key in its place") {
    MemoryStatFile m = read(StatFile::kMemoryStat, kMemoryStat).memory.stat;
    const uint64_t got[] = {m.anon,
                            m.file,
                            m.kernel,
                            m.kernel_stack,
                            m.pagetables,
                            m.percpu,
                            m.sock,
                            m.vmalloc,
                            m.shmem,
                            m.zswap,
                            m.zswapped,
                            m.file_mapped,
                            m.file_dirty,
                            m.file_writeback,
                            m.swapcached,
                            m.anon_thp,
                            m.file_thp,
                            m.shmem_thp,
                            m.inactive_anon,
                            m.active_anon,
                            m.inactive_file,
                            m.active_file,
                            m.unevictable,
                            m.slab_reclaimable,
                            m.slab_unreclaimable,
                            m.slab,
                            m.workingset_refault,
                            m.workingset_activate,
                            m.workingset_nodereclaim,
                            m.pgscan,
                            m.pgsteal,
                            m.pgfault,
                            m.pgmajfault,
                            m.pgrefill,
                            m.pgactivate,
                            m.pgdeactivate,
                            m.pglazyfree,
                            m.pglazyfreed,
                            m.thp_fault_alloc,
                            m.thp_collapse_alloc};
    const uint64_t expected[] = {8192, 4096, 90112, 16384, 12288, 60, 1,  2,  3,  4,  5,  6,  7,  8,
                                 9,    10,   11,    12,    13,    14, 15, 16, 17, 18, 19, 37, 41, 45,
                                 26,   27,   28,    33,    34,    35, 36, 37, 38, 39, 42, 43};
    static_assert(std::size(got) == std::size(expected));
    for (size_t i = 0; i < std::size(got); ++i) {
        CAPTURE(i);
        CHECK(got[i] == expected[i]);
    }
    // Any order, an old kernel's plain workingset keys, lines that say nothing.
    MemoryStatFile odd = read(StatFile::kMemoryStat,
                              "thp_collapse_alloc 1\nanon 2\nworkingset_refault 3\nfile x\n\nslab\nnew 9\n")
                             .memory.stat;
    CHECK(odd.thp_collapse_alloc == 1);
    CHECK(odd.anon == 2);
    CHECK(odd.workingset_refault == 3);
    CHECK(odd.file == 0);
    CHECK(odd.slab == 0);
}

TEST_CASE("reading again replaces, never adds") {
    CgroupStats stats;
    for (int i = 0; i < 2; ++i) {
        parse_stat_file(StatFile::kMemoryStat, "anon 5\n", stats);
        parse_stat_file(StatFile::kCpuStat, "usage_usec 6\n", stats);
        parse_stat_file(StatFile::kMemoryEvents, "oom 7\n", stats);
        parse_stat_file(StatFile::kIoStat, "8:0 rbytes=8\n", stats);
        parse_stat_file(StatFile::kRdmaMax, "a hca_handle=9\n", stats);
    }
    CHECK(stats.memory.stat.anon == 5);
    CHECK(stats.cpu.usage_usec == 6);
    CHECK(stats.memory_events.oom == 7);
    CHECK(stats.io.size() == 1);
    CHECK(stats.rdma_max.size() == 1);
}

TEST_CASE("single numbers") {
    CHECK(read(StatFile::kPidsCurrent, "3\n").pids.current == 3);
    CHECK(read(StatFile::kPidsMax, "max\n").pids.max == UINT64_MAX);
    CHECK(read(StatFile::kPidsMax, "20\n").pids.max == 20);
    CHECK(read(StatFile::kMemoryCurrent, "4096\n").memory.current == 4096);
    CHECK(read(StatFile::kMemoryMax, "max\n").memory.max == UINT64_MAX);
    CHECK(read(StatFile::kMemoryPeak, "9223372036854771712\n").memory.peak == 9223372036854771712u);
    CHECK(read(StatFile::kMemorySwapCurrent, "1\n").memory.swap_current == 1);
    CHECK(read(StatFile::kMemorySwapMax, "2\n").memory.swap_max == 2);
    CHECK(read(StatFile::kMemorySwapPeak, "3\n").memory.swap_peak == 3);
    for (const char* bad : {"", "\n", "x", "-1", "1 2", "18446744073709551616", "0x5", "maximum"}) {
        CAPTURE(bad);
        CHECK(parse_single_stat(bad) == 0);
    }
}

TEST_CASE("cpu.stat, memory.events, pressure") {
    CpuStats cpu =
        read(StatFile::kCpuStat,
             "usage_usec 1\nuser_usec 2\nsystem_usec 3\ncore_sched.force_idle_usec 9\nnr_periods 4\n"
             "nr_throttled 5\nthrottled_usec 6\nnr_bursts 7\nburst_usec 8\n")
            .cpu;
    CHECK(cpu.usage_usec == 1);
    CHECK(cpu.user_usec == 2);
    CHECK(cpu.system_usec == 3);
    CHECK(cpu.nr_periods == 4);
    CHECK(cpu.nr_throttled == 5);
    CHECK(cpu.throttled_usec == 6);
    CHECK(cpu.nr_bursts == 7);
    CHECK(cpu.burst_usec == 8);
    MemoryEventCounts events =
        read(StatFile::kMemoryEvents, "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\nx 7\n")
            .memory_events;
    CHECK(events.low == 1);
    CHECK(events.oom_group_kill == 6);
    CHECK(events.oom_kill == 5);

    constexpr const char* kPressure =
        "some avg10=0.22 avg60=12.50 avg300=100.00 total=171\nfull avg10=0.00 avg60=0.01 avg300=7 total=55\n";
    CgroupStats stats;
    parse_stat_file(StatFile::kCpuPressure, kPressure, stats);
    parse_stat_file(StatFile::kMemoryPressure, "some avg10=1.00 total=x\nnone avg10=5.00\n", stats);
    CHECK(stats.cpu_pressure.present);
    CHECK(stats.cpu_pressure.some.avg10 == doctest::Approx(0.22));
    CHECK(stats.cpu_pressure.some.avg60 == doctest::Approx(12.5));
    CHECK(stats.cpu_pressure.some.avg300 == doctest::Approx(100));
    CHECK(stats.cpu_pressure.some.total == 171);
    CHECK(stats.cpu_pressure.full.avg60 == doctest::Approx(0.01));
    CHECK(stats.cpu_pressure.full.avg300 == doctest::Approx(7));
    CHECK(stats.cpu_pressure.full.total == 55);
    CHECK(stats.memory_pressure.some.avg10 == doctest::Approx(1));
    CHECK(stats.memory_pressure.some.total == 0);
    CHECK(!stats.io_pressure.present);
    parse_stat_file(StatFile::kIoPressure, "some avg10=1e9 avg60=. avg300=-1 total=1\n", stats);
    CHECK(stats.io_pressure.some.avg10 == 0);
    CHECK(stats.io_pressure.some.total == 1);
}

TEST_CASE("io.stat and rdma") {
    auto io = read(StatFile::kIoStat,
                   "8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=4096 dios=1\n"
                   "254:0\n7:0 7:1 rbytes=5 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\nbad rbytes=1\n259:1 "
                   "cost.usage=7\n")
                  .io;
    REQUIRE(io.size() == 2);
    CHECK(io[0].major == 8);
    CHECK(io[0].minor == 16);
    CHECK(io[0].rbytes == 1459200);
    CHECK(io[0].wbytes == 314773504);
    CHECK(io[0].rios == 192);
    CHECK(io[0].wios == 353);
    CHECK(io[0].dbytes == 4096);
    CHECK(io[0].dios == 1);
    CHECK(io[1].major == 7);
    CHECK(io[1].minor == 1);

    auto rdma =
        read(StatFile::kRdmaMax, "mlx4_0 hca_handle=2 hca_object=2000\nocrdma1 hca_handle=3 hca_object=max\n")
            .rdma_max;
    REQUIRE(rdma.size() == 2);
    CHECK(rdma[0].device == "mlx4_0");
    CHECK(rdma[0].hca_handles == 2);
    CHECK(rdma[0].hca_objects == 2000);
    CHECK(rdma[1].hca_objects == UINT64_MAX);
    CHECK(read(StatFile::kRdmaCurrent, "a hca_handle=1\n").rdma_current.size() == 1);
}

TEST_CASE("hugetlb and cgroup.events") {
    CHECK(hugetlb_page_size("hugetlb.2MB.current") == "2MB");
    for (const char* other : {"hugetlb.2MB.max", "hugetlb.2MB.rsvd.current", "hugetlb..current",
                              "memory.current", "hugetlb.current"}) {
        CAPTURE(other);
        CHECK(hugetlb_page_size(other).empty());
    }
    HugetlbStats huge = parse_hugetlb("2MB", "4194304\n", "max\n", "max 3\n");
    CHECK(huge.page_size == "2MB");
    CHECK(huge.current == 4194304);
    CHECK(huge.max == UINT64_MAX);
    CHECK(huge.failures == 3);
    CHECK(parse_hugetlb("1GB", "", "", "").max == 0);

    CHECK(parse_cgroup_events("populated 1\nfrozen 0\n").populated);
    CHECK(!parse_cgroup_events("populated 1\nfrozen 0\n").frozen);
    CHECK(parse_cgroup_events("frozen 1\npopulated 0\n").frozen);
    CHECK(!parse_cgroup_events("populated 10\nfrozen 11\n").populated);
    CHECK(!parse_cgroup_events("").frozen);
}

TEST_CASE("every file has a name, and truncated text is no harm") {
    for (uint8_t i = 0; i < static_cast<uint8_t>(StatFile::kCount); ++i) {
        auto file = static_cast<StatFile>(i);
        CHECK(std::string_view(stat_file_name(file)).find('.') != std::string_view::npos);
        std::string text(kMemoryStat);
        text += "8:0 rbytes=1 wbytes=2\nsome avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        CgroupStats stats;
        for (size_t length = 0; length <= text.size(); ++length)
            parse_stat_file(file, text.substr(0, length), stats);
        CHECK(stats.io.size() <= 1);
    }
    CHECK(std::string_view(stat_file_name(StatFile::kMemorySwapPeak)) == "memory.swap.peak");
    CHECK(std::string_view(stat_file_name(StatFile::kRdmaMax)) == "rdma.max");
    CHECK(std::string_view(stat_file_name(StatFile::kCount)).empty());
}

TEST_CASE("/proc/PID/net/dev") {
    constexpr std::string_view kText =
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo "
        "colls "
        "carrier compressed\n"
        "    lo:    9       9    9    9    0     0          0         0      9       9    9    9    0     0  "
        "   "
        "  0          0\n"
        "  eth0: 1 2 3 4 90 91 92 93 5 6 7 8 94 95 96 97\n"
        "eth0:1:18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1\n";
    std::vector<NetInterfaceStats> found = parse_net_dev(kText);
    REQUIRE(found.size() == 2);
    CHECK(found[0] == NetInterfaceStats{"eth0", 1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(found[1].name == "eth0:1");
    CHECK(found[1].rx_bytes == UINT64_MAX);
    CHECK(parse_net_dev("").empty());
    CHECK(parse_net_dev("eth0: 1 2 3\n").empty());
    CHECK(parse_net_dev("no colon 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n").empty());
    for (size_t length = 0; length <= kText.size(); ++length)
        CHECK(parse_net_dev(kText.substr(0, length)).size() <= 2);
}

TEST_CASE("a pressure file alone") {
    Pressure pressure = parse_pressure(
        "some avg10=1.50 avg60=0.25 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.01 total=5\n");
    CHECK(pressure.present);
    CHECK(pressure.some.avg10 == doctest::Approx(1.5));
    CHECK(pressure.some.total == 77);
    CHECK(pressure.full.avg300 == doctest::Approx(0.01));
    CHECK(pressure.full.total == 5);
    CHECK(!parse_pressure("").present);
}
