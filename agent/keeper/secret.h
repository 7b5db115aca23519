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

// Takes fw_cfg out of sysfs, whose file is readable by any uid 0 with a sysfs of its own: the module is
// unloaded (loading it again takes CAP_SYS_MODULE), a driver that is built in loses its device (to bind it
// again takes a sysfs that is writable). Not there at all is fine.
core::Status hide_fw_cfg();

// As a helper: `path` is the administrator's, and is left alone.
core::Status read_secret_file(const std::string& path, core::ClassKeys& keys);

}  // namespace berth::keeper
