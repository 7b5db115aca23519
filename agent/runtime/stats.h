// Statistics of cgroups as containerd's message (io.containerd.cgroups.v2.Metrics).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/core/callback.h"
#include "agent/core/cgroup_stats.h"
#include "agent/loop/loop.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

class Container;
class Runtime;

inline constexpr const char* kMetricsType = "io.containerd.cgroups.v2.Metrics";

// The message, encoded, from the files of one cgroup. What is absent, or cannot be read, is zero: a cgroup
// that is being removed is no error. `files` are the names in a cgroup's directory (for hugetlb's page
// sizes); `net_dev` is the text of /proc/PID/net/dev, empty: no network statistics. The kernel makes these
// files up on the spot, without waiting for anybody's disk: read inline.
std::string read_metrics(sys::FdRef cgroup, std::span<const std::string> files,
                         std::string_view net_dev = {});

// The same of one container, with the interfaces of its own network namespace, if it has one and its init
// lives.
std::string container_metrics(const Container& container, std::span<const std::string> files);

// Stats of many containers, a few in each turn of the loop, so that other calls are answered meanwhile.
class StatsSweep {
 public:
    struct Entry {
        std::string id;
        std::string metrics;
    };
    // `ids` empty: all. Containers that are gone by their turn are left out. `done` runs later from the loop;
    // the object may be destroyed inside it, or earlier to end the sweep.
    StatsSweep(Runtime& runtime, std::vector<std::string> ids, core::Callback<void(std::vector<Entry>)> done);

 private:
    void step();

    Runtime& runtime_;
    std::vector<std::string> ids_;
    size_t next_ = 0;
    std::vector<Entry> entries_;
    core::Callback<void(std::vector<Entry>)> done_;
    loop::Task task_;
};

}  // namespace berth::runtime
