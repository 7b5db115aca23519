// hooks: what is run at the turns of a container's life.
#include "agent/core/limits.h"
#include "agent/core/spec_parse.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

void parse_hook(JsonObject& in, std::vector<HookSpec>& out) {
    HookSpec hook;
    in.read("path", hook.path);
    in.read("args", hook.args, limits::kArgvEnvpEntries);
    if (in.find("env")) {
        hook.env.emplace();
        in.read("env", *hook.env, limits::kArgvEnvpEntries);
    }
    if (in.report().failed()) return;
    if (hook.path.empty()) return in.fail("path", "missing");
    check_absolute(in.report(), in.path_of("path"), hook.path);
    if (in.find("timeout")) {
        constexpr uint32_t kMost = 2'147'483'647;
        in.read_between("timeout", hook.timeout_s, 1u, kMost);
    }
    if (hook.args.empty()) hook.args.push_back(hook.path);
    size_t bytes = 0;
    for (const std::string& argument : hook.args) bytes += argument.size() + 1 + sizeof(char*);
    for (size_t i = 0; hook.env && i < hook.env->size(); ++i) {
        const std::string& variable = (*hook.env)[i];
        bytes += variable.size() + 1 + sizeof(char*);
        size_t equals = variable.find('=');
        if (equals == std::string::npos || equals == 0)
            return in.fail(format("env[%zu]", i), "must be NAME=value, is " + quoted(variable));
    }
    if (bytes > limits::kArgvEnvpBytes)
        in.fail("args",
                format("and env take %zu bytes, more than the limit of %zu", bytes, limits::kArgvEnvpBytes),
                Code::kResourceExhausted);
    out.push_back(std::move(hook));
}

}  // namespace

void parse_hooks(JsonObject& config, ContainerSpec& out) {
    JsonReport& report = config.report();
    JsonObject hooks(report, config.find("hooks"), "hooks");
    for (size_t i = 0; i < kHookKinds; ++i) {
        auto kind = static_cast<HookKind>(i);
        hooks.each(hook_kind_name(kind), limits::kHooks,
                   [&](const JsonValue& value, const std::string& path) {
                       JsonObject in(report, &value, path);
                       parse_hook(in, out.hooks.of(kind));
                   });
    }
    // runc's and crun's way: what runs as the program would sees what the program sees.
    for (HookSpec& hook : out.hooks.of(HookKind::kStartContainer))
        if (!hook.env) hook.env = out.process.env;
}

}  // namespace berth::core
