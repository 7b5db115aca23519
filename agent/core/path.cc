#include "agent/core/path.h"

#include <algorithm>
#include <vector>

#include "agent/core/text.h"

namespace berth::core {

std::string clean_path(std::string_view path) {
    std::vector<std::string_view> kept;
    for (std::string_view part : split(path, '/')) {
        if (part.empty() || part == ".") continue;
        if (part != "..")
            kept.push_back(part);
        else if (!kept.empty())
            kept.pop_back();
    }
    std::string clean;
    for (std::string_view part : kept) clean.append("/").append(part);
    return clean.empty() ? "/" : clean;
}

bool is_at_or_below(std::string_view path, std::string_view directory) {
    if (directory == "/") return true;
    return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

bool has_dot_dot(std::string_view path) {
    std::vector<std::string_view> parts = split(path, '/');
    return std::find(parts.begin(), parts.end(), "..") != parts.end();
}

std::string parent_path(std::string_view path) {
    size_t slash = path.rfind('/');
    return slash == 0 || slash == std::string_view::npos ? "/" : std::string(path.substr(0, slash));
}

}  // namespace berth::core
