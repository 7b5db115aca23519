// /run/berth/state/ID/: what a restarted agent reads. tmpfs; written beside and renamed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"

namespace berth::runtime {

// Makes RUN_DIR/state and RUN_DIR/bundles (0700) where they are missing.
core::Status make_state_directories(const std::string& run_dir);

// Replaces RUN_DIR/state/ID/NAME by `content`, atomically for a reader that comes after a crash. Makes the
// directory.
core::Status write_state_file(const std::string& run_dir, const std::string& id, const char* name,
                              std::string_view content);

// The content of RUN_DIR/state/ID/NAME; NOT_FOUND when it is not there.
core::Result<std::string> read_state_file(const std::string& run_dir, const std::string& id,
                                          const char* name);

// Removes RUN_DIR/state/ID and RUN_DIR/bundles/ID's own mount points, what of them exists.
void remove_state(const std::string& run_dir, const std::string& id);

// The ids that have a directory below RUN_DIR/state.
core::Result<std::vector<std::string>> list_states(const std::string& run_dir);

}  // namespace berth::runtime
