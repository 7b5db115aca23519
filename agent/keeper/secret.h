// Where the secret comes from. It is turned into the class keys at once, and every copy that we hold is
// wiped.
#pragma once

#include <string>

#include "agent/core/keeper_protocol.h"
#include "agent/core/result.h"

namespace berth::keeper {

enum class SecretSource { kNone, kImageFile, kFwCfg, kSmbios, kFile };
const char* secret_source_name(SecretSource source);

// As PID 1, in this order: the file /berth/secret of the image (overwritten and unlinked, also when a
// malformed one stops the boot), QEMU fw_cfg opt/berth/secret, the SMBIOS type 11 string berth.secret=HEX.
// `root` goes before each path ("" in the product, a directory in tests). kNone: `keys` is untouched. An
// unreadable or malformed secret is an error that names its source and nothing of its content.
core::Result<SecretSource> read_boot_secret(const std::string& root, core::ClassKeys& keys);

// As a helper: `path` is the administrator's, and is left alone.
core::Status read_secret_file(const std::string& path, core::ClassKeys& keys);

}  // namespace berth::keeper
