// /run/berth/state/ID/: what a restarted agent reads. tmpfs: it has to survive a kill of ours between any two
// instructions, not the guest's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::runtime {

// Makes RUN_DIR/state and RUN_DIR/bundles (0700) where they are missing.
core::Status make_state_directories(const std::string& run_dir);

// Replaces RUN_DIR/state/ID/NAME by `content`, atomically for a reader that comes after a crash. Makes the
// directory.
core::Status write_state_file(const std::string& run_dir, const std::string& id, const char* name,
                              std::string_view content);

// The same where a crash in the middle does not matter: RUN_DIR/state/ID is there, NAME is not.
core::Status write_first_state_file(const std::string& run_dir, const std::string& id, const char* name,
                                    std::string_view content);

// The content of RUN_DIR/state/ID/NAME; NOT_FOUND when it is not there.
core::Result<std::string> read_state_file(const std::string& run_dir, const std::string& id,
                                          const char* name);

// The state file that was appended to last, kept open for the next record: most come in a row. One for all
// containers, so that none costs a descriptor.
class OpenStateFile {
 public:
    // Lets go of it, whoever's it is.
    void close() { fd_.reset(); }

 private:
    friend class StateLog;
    sys::UniqueFd fd_;
    uint64_t serial_ = 0;  // counts the openings: a log knows its own by it
};

// RUN_DIR/state/ID/state: records, each {magic, length, content}. The state is the content of the last whole
// one and of the changes after it, one behind the other: serialized messages, which are merged so. A write
// that was cut off leaves what was before it in force, as a rename that did not happen would, for a third of
// a rename's cost.
class StateLog {
 public:
    // Makes `content` the state. The file is written anew (beside, then renamed) when this object does not
    // know it, and when it has grown. `open`: where its descriptor is kept; null: nowhere.
    core::Status append(const std::string& run_dir, const std::string& id, std::string_view content,
                        OpenStateFile* open = nullptr);

    // Adds `content` to the state. False: it has to be written whole, by append().
    bool append_change(const std::string& run_dir, const std::string& id, std::string_view content,
                       OpenStateFile* open = nullptr);

    // The state. NOT_FOUND: no file, or no whole record in it: a creation of which not even the intent was
    // written.
    static core::Result<std::string> read(const std::string& run_dir, const std::string& id);

 private:
    core::Status write_anew(const std::string& run_dir, const std::string& id, std::string_view record);
    core::Status write_behind(const std::string& run_dir, const std::string& id, std::string_view record,
                              OpenStateFile* open);
    size_t bytes_ = 0;     // of whole records; 0: not known
    uint64_t serial_ = 0;  // OpenStateFile's, when it was opened for this one
};

// Removes RUN_DIR/state/ID and RUN_DIR/bundles/ID's own mount points, what of them exists.
void remove_state(const std::string& run_dir, const std::string& id);

// The ids that have a directory below RUN_DIR/state.
core::Result<std::vector<std::string>> list_states(const std::string& run_dir);

}  // namespace berth::runtime
