#include "agent/core/hooks.h"

#include "agent/core/text.h"

namespace berth::core {
namespace {

constexpr std::string_view kNames[kHookKinds] = {"prestart",       "createRuntime", "createContainer",
                                                 "startContainer", "poststart",     "poststop"};

// Slashes stay as they are: shell hooks cut paths out of the text.
void append_json_string(std::string& out, std::string_view text) {
    out.push_back('"');
    for (char c : text) {
        if (c == '"' || c == '\\')
            out.append({'\\', c});
        else if (static_cast<unsigned char>(c) < 0x20)
            out.append(format("\\u%04x", static_cast<unsigned>(c)));
        else
            out.push_back(c);
    }
    out.push_back('"');
}

}  // namespace

std::string_view hook_kind_name(HookKind kind) {
    return kNames[static_cast<size_t>(kind)];
}

std::string hook_state_json(const HookState& state) {
    std::string json = "{\"ociVersion\":";
    append_json_string(json, state.oci_version);
    json.append(",\"id\":");
    append_json_string(json, state.id);
    json.append(",\"status\":");
    append_json_string(json, state.status);
    if (state.pid != 0) json.append(format(",\"pid\":%lld", static_cast<long long>(state.pid)));
    json.append(",\"bundle\":");
    append_json_string(json, state.bundle);
    if (state.annotations && !state.annotations->empty()) {
        json.append(",\"annotations\":");
        char before = '{';
        for (const auto& [name, value] : *state.annotations) {
            json.push_back(before);
            append_json_string(json, name);
            json.push_back(':');
            append_json_string(json, value);
            before = ',';
        }
        json.push_back('}');
    }
    json.push_back('}');
    return json;
}

std::string seccomp_agent_json(const HookState& state, int64_t pid, std::string_view metadata) {
    std::string json = "{\"ociVersion\":";
    append_json_string(json, state.oci_version);
    json.append(",\"fds\":[\"seccompFd\"]");
    json.append(format(",\"pid\":%lld,\"metadata\":", static_cast<long long>(pid)));
    append_json_string(json, metadata);
    json.append(",\"state\":");
    json.append(hook_state_json(state));
    json.push_back('}');
    return json;
}

bool poststart_failure_is_fatal(std::string_view oci_version) {
    // "1.x.y": the parser takes no other major version.
    if (oci_version.size() < 3) return false;
    std::string_view minor = oci_version.substr(2);
    size_t digits = 0;
    while (digits < minor.size() && minor[digits] >= '0' && minor[digits] <= '9') ++digits;
    constexpr unsigned kChanged = 3;
    return parse_number<unsigned>(minor.substr(0, digits)).value_or(0) >= kChanged;
}

}  // namespace berth::core
