// Paths as text. What a path leads to is the kernel's to say (openat2); these only decide on spelling.
#pragma once

#include <string>
#include <string_view>

namespace berth::core {

// `path` as an absolute path without "//", "." and "..": a ".." at the top stays at the top, and a relative
// path is taken from "/".
std::string clean_path(std::string_view path);

// True when `path` is `directory` or lies below it. Both cleaned.
bool is_at_or_below(std::string_view path, std::string_view directory);

// True when one of its components is "..".
bool has_dot_dot(std::string_view path);

// The path without its last component: "/" for "/a". Cleaned.
std::string parent_path(std::string_view path);

}  // namespace berth::core
