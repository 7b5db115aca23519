// Documents of the OCI that berthctl writes itself: the configuration of `spec`, the features of `features`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "agent/core/result.h"
#include "proto/berth/guest.pb.h"

namespace berth::ctl {

// Of the runtime spec, as `spec` and `state` name it.
#define BERTH_SPEC_VERSION "1.2.0"

// A config.json that runs /bin/sh on the bundle's "rootfs". `user_namespace`: with the caller's ids mapped to
// root in it (spec --rootless).
std::string spec_json(bool user_namespace, uint32_t uid, uint32_t gid);

// Every option of a mount that is known by name.
std::span<const std::string_view> mount_options();

// The OCI's features document, with what the guest's Info says is there.
std::string features_json(const v1::InfoResponse& info);

}  // namespace berth::ctl
