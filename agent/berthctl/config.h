// From what people have on disk and on their command line to the agent's requests.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "agent/berthctl/arguments.h"
#include "agent/client/address.h"
#include "agent/core/result.h"
#include "proto/containerd/common.pb.h"
#include "proto/containerd/task.pb.h"

namespace berth::ctl {

// A whole file of at most limits::kSpecJsonBytes; "-" is standard input.
core::Result<std::string> read_file(const std::string& path);

// Fills bundle, options, rootfs and terminal of a Create from --bundle (default "."), --tty and
// --rootfs-mount.
// Over the local socket the agent reads BUNDLE/config.json itself, so that relative paths mean the bundle's;
// otherwise the text goes along.
core::Status fill_create(const Arguments& arguments, const client::Address& address,
                         pb::task::CreateTaskRequest& request);

// "TYPE:SOURCE:OPTION,OPTION": SOURCE may be "serial:X"; the option "target=PATH" is the mount's target.
core::Result<pb::Mount> parse_rootfs_mount(std::string_view text);

// The process of an exec as JSON, by the flags of the command `exec` over a base: --process FILE as it is;
// else the process of --bundle's config.json (or, in the guest, of the running container's); else root with
// PATH in "/". `words` is the command line; with --process it may be empty.
core::Result<std::string> build_process(const Arguments& arguments, std::span<const std::string_view> words,
                                        const std::string& base_config_path);
// Whether a Process or a Spec's process asks for a terminal.
core::Result<bool> wants_terminal(std::string_view process_json);

// LinuxResources as JSON from --resources FILE and the flags of `update`.
core::Result<std::string> build_resources(const Arguments& arguments);

}  // namespace berth::ctl
