// Hooks of a spec, by kind, and what they are told.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace berth::core {

// In the order of a container's life.
enum class HookKind : uint8_t {
    kPrestart,         // guest's namespaces; the container's exist, its root is not switched to yet
    kCreateRuntime,    // likewise, after them
    kCreateContainer,  // container's namespaces, the guest's root; the last ones before the switch
    kStartContainer,   // all of the container's, as the program would run; after Start, before the program
    kPoststart,        // guest's namespaces; after the program began, before Start is answered
    kPoststop,         // guest's namespaces; after the container is gone, before Delete is answered
};
inline constexpr size_t kHookKinds = 6;

std::string_view hook_kind_name(HookKind kind);  // "createRuntime"

struct HookSpec {
    std::string path;               // absolute
    std::vector<std::string> args;  // not empty: what the spec leaves out is {path}
    // Not given: of startContainer the process's, else the agent's own PATH and nothing more.
    std::optional<std::vector<std::string>> env;
    uint32_t timeout_s = 0;  // 0: none
};

struct Hooks {
    std::array<std::vector<HookSpec>, kHookKinds> kinds;

    const std::vector<HookSpec>& of(HookKind kind) const { return kinds[static_cast<size_t>(kind)]; }
    std::vector<HookSpec>& of(HookKind kind) { return kinds[static_cast<size_t>(kind)]; }
    bool has(HookKind kind) const { return !of(kind).empty(); }
    // Any that run while the container is created.
    bool has_create() const {
        return has(HookKind::kPrestart) || has(HookKind::kCreateRuntime) || has(HookKind::kCreateContainer);
    }
};

// Points at which the child waits for hooks: operand of PlanOp::kHookPoint.
inline constexpr uint32_t kHookPointCreate = 1;  // prestart, createRuntime, createContainer
inline constexpr uint32_t kHookPointStart = 2;   // startContainer

// The state of a container as a hook reads it on stdin (OCI runtime spec, "State").
struct HookState {
    std::string oci_version;
    std::string id;
    std::string_view status;  // "created", "running", "stopped"
    int64_t pid = 0;          // 0: none, left out
    std::string bundle;
    const std::vector<std::pair<std::string, std::string>>* annotations = nullptr;
};
std::string hook_state_json(const HookState& state);

// What a seccomp agent gets with the listener's descriptor (OCI runtime spec,
// "The Container Process State"). `pid` is that of the process whose filter it
// is.
std::string seccomp_agent_json(const HookState& state, int64_t pid, std::string_view metadata);

// Up to spec 1.2 a poststart hook that fails is worth a warning; from 1.3 on
// the container is stopped.
bool poststart_failure_is_fatal(std::string_view oci_version);

}  // namespace berth::core
