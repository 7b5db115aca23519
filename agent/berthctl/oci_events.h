// events as runc has them: what a container uses, and its OOM kills, one JSON object a line.
#pragma once

#include <string>
#include <string_view>

#include "agent/berthctl/command.h"
#include "agent/core/result.h"
#include "proto/containerd/metrics.pb.h"

namespace berth::ctl {

// {"type":"stats","id":...,"data":{...}} without a line's end.
std::string oci_stats_json(std::string_view id, const pb::metrics::Metrics& metrics);

// "5s", "100ms", "1m30s", "1.5s", or seconds without a unit, in milliseconds. INVALID_ARGUMENT names the
// text.
core::Result<int64_t> parse_interval_ms(std::string_view text);

// Once with `once`, else every `interval_ms` until the container's init has ended.
core::Result<int> oci_events(Context& context, bool once, int64_t interval_ms);

}  // namespace berth::ctl
