// Kernel modules.
#pragma once

#include "agent/core/result.h"

namespace berth::sys {

// finit_module; already loaded is fine, .ko.xz/.gz/.zst go to the kernel compressed. Messages: "open module
// PATH: ENOENT" when the file is missing, "load module PATH: ENOENT (...)" when a symbol is.
core::Status load_module(const char* path);

// delete_module; not loaded (or built in) is fine. Message: "unload module NAME: EBUSY".
core::Status unload_module(const char* name);

}  // namespace berth::sys
