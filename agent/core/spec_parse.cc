#include "agent/core/spec_parse.h"

#include "agent/core/limits.h"
#include "agent/core/path.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

bool is_empty(const JsonValue& value) {
    if (value.IsString()) return value.GetStringLength() == 0;
    if (value.IsArray()) return value.Empty();
    if (value.IsObject()) return value.MemberCount() == 0;
    if (value.IsBool()) return !value.GetBool();
    return value.IsNumber() && value.GetDouble() == 0;
}

void parse_version(JsonObject& config, ContainerSpec& out) {
    config.read("ociVersion", out.oci_version);
    if (config.report().failed()) return;
    // Newer minor versions only add; a runtime that refuses them breaks its users for nothing.
    if (out.oci_version.starts_with("1.")) return;
    config.fail("ociVersion",
                out.oci_version.empty() ? "missing" : quoted(out.oci_version) + " is not a version 1.x");
}

void parse_root(JsonObject& config, ContainerSpec& out) {
    JsonObject root(config.report(), config.find("root"), "root");
    if (!root.present()) return config.fail("root", "missing");
    root.read("path", out.root_path);
    root.read("readonly", out.root_readonly);
    if (out.root_path.empty()) return root.fail("path", "missing");
    if (out.root_path.size() > limits::kPathBytes) root.fail("path", "longer than 4095 bytes");
    if (has_dot_dot(out.root_path)) root.fail("path", "must not contain \"..\"");
}

void parse_names(JsonObject& config, ContainerSpec& out) {
    constexpr size_t kUtsNameBytes = 64;  // __NEW_UTS_LEN
    config.read("hostname", out.hostname);
    config.read("domainname", out.domainname);
    if (out.hostname.size() > kUtsNameBytes) config.fail("hostname", "longer than 64 bytes");
    if (out.domainname.size() > kUtsNameBytes) config.fail("domainname", "longer than 64 bytes");
}

}  // namespace

void refuse_if_set(JsonObject& in, std::string_view key) {
    const JsonValue* value = in.find(key);
    if (value && !is_empty(*value)) in.fail(key, "not supported", Code::kUnimplemented);
}

void check_absolute(JsonReport& report, const std::string& path, const std::string& value) {
    if (report.failed()) return;
    if (!value.starts_with('/'))
        report.fail(invalid(path + ": must be an absolute path, is " + quoted(value)));
    if (value.size() > limits::kPathBytes) report.fail(invalid(path + ": longer than 4095 bytes"));
}

void parse_annotations(JsonObject& config, ContainerSpec& out) {
    JsonReport& report = config.report();
    config.each_member("annotations", limits::kAnnotations,
                       [&](std::string name, const JsonValue& value, const std::string& path) {
                           std::string text = json_string(report, value, path);
                           if (name.starts_with("berth.") && !report.failed()) {
                               if (name == "berth.vsock" && text == "allow")
                                   out.berth.allow_vsock = true;
                               else if (name == "berth.stdio" && text == "drop")
                                   out.berth.drop_stdio = true;
                               else if (name == "berth.vsock" || name == "berth.stdio")
                                   report.fail(invalid(path + ": unknown value " + quoted(text)));
                               else
                                   report.fail(invalid(path + ": unknown annotation of ours"));
                           }
                           out.annotations.emplace_back(std::move(name), std::move(text));
                       });
}

Result<ContainerSpec> parse_container_spec(std::string_view config_json) {
    BERTH_ASSIGN(rapidjson::Document document, parse_json(config_json));
    ContainerSpec spec;
    JsonReport report;
    {
        JsonObject config(report, &document, "");
        parse_version(config, spec);
        {
            JsonObject process(report, config.find("process"), "process");
            if (!process.present()) config.fail("process", "missing");
            parse_process(process, spec.process);
        }
        parse_root(config, spec);
        parse_names(config, spec);
        parse_mounts(config, spec);
        parse_hooks(config, spec);
        parse_annotations(config, spec);
        for (std::string_view platform : {"windows", "solaris", "vm", "zos", "freebsd"})
            refuse_if_set(config, platform);
        JsonObject linux_object(report, config.find("linux"), "linux");
        parse_linux(linux_object, spec);
    }
    BERTH_TRY(report.status());
    spec.ignored = std::move(report.ignored());
    BERTH_TRY(check_spec(spec));
    return spec;
}

Result<ProcessSpec> parse_process_spec(std::string_view process_json) {
    BERTH_ASSIGN(rapidjson::Document document, parse_json(process_json));
    ProcessSpec spec;
    JsonReport report;
    {
        JsonObject process(report, &document, "process");
        if (!process.present()) report.fail(invalid("process: must be an object"));
        parse_process(process, spec);
    }
    BERTH_TRY(report.status());
    spec.ignored = std::move(report.ignored());
    return spec;
}

Result<Resources> parse_resources_json(std::string_view resources_json) {
    return parse_resources_text(resources_json, "resources");
}

std::vector<std::string> bind_sources_to_check(const ContainerSpec& spec, std::string_view bundle_dir) {
    std::vector<std::string> sources;
    for (const MountSpec& mount : spec.mounts) {
        if (!mount.options.bind) continue;
        bool relative = !mount.source.starts_with('/');
        sources.push_back(clean_path(relative ? std::string(bundle_dir) + "/" + mount.source : mount.source));
    }
    return sources;
}

}  // namespace berth::core
