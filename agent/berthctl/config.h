// From what people have on disk and on their command line to the agent's requests.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "agent/berthctl/arguments.h"
#include "agent/client/address.h"
#include "agent/core/result.h"
#include "proto/berth/guest.pb.h"
#include "proto/containerd/common.pb.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

// A whole file of at most limits::kSpecJsonBytes; "-" is standard input.
core::Result<std::string> read_file(const std::string& path);

// Fills bundle, rootfs and terminal of a Create from --bundle (default "."), --tty and --rootfs-mount, and
// returns the text of --config, or of the bundle's config.json.
core::Result<std::string> fill_create(const Arguments& arguments, pb::task::CreateTaskRequest& request);

// Options of a Create: the configuration alone, or what goes beside it where the agent is on the same system.
void set_spec(pb::task::CreateTaskRequest& request, std::string config);
void set_create_options(pb::task::CreateTaskRequest& request, const v1::CreateOptions& options);

// "TYPE:SOURCE:OPTION,OPTION": SOURCE may be "serial:X"; the option "target=PATH" is the mount's target.
core::Result<pb::Mount> parse_rootfs_mount(std::string_view text);

// The process of an exec as JSON, by the flags of the command `exec` over a base: --process FILE as it is;
// else the process of --bundle's config.json (or, in the guest, of the running container's); else root with
// PATH in "/". `words` is the command line; with --process it may be empty.
core::Result<std::string> build_process(const Arguments& arguments, std::span<const std::string_view> words,
                                        const std::string& base_config_path);
// Whether a Process or a Spec's process asks for a terminal.
core::Result<bool> wants_terminal(std::string_view process_json);

// The directory of a bundle's root file system; empty when it cannot be told.
std::string rootfs_of(const std::string& config_path, const std::string& bundle);

// A number of bytes, with a unit if any: "64M", "1.5GiB", "-1". INVALID_ARGUMENT names the flag.
core::Result<int64_t> parse_bytes(std::string_view flag, std::string_view text);

// LinuxResources as JSON from --resources FILE and the flags of `update`.
core::Result<std::string> build_resources(const Arguments& arguments);

}  // namespace berth::ctl
