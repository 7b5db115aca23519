#include "agent/core/kernel_features.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "agent/core/limits.h"
#include "agent/core/text.h"

namespace berth::core {
namespace {

using Value = KernelConfig::Value;
using State = FeatureVerdict::State;

// A config in which every feature is built in.
std::string full_config() {
    std::string text;
    for (const KernelFeature& feature : kernel_features()) {
        for (std::string_view option : split(feature.options, ' ')) {
            bool off = option.starts_with('!');
            if (off) option.remove_prefix(1);
            std::string name = "CONFIG_" + std::string(split(option, '|')[0]);
            text += off ? "# " + name + " is not set\n" : name + "=y\n";
        }
    }
    return text;
}

KernelConfig parsed(std::string_view text) {
    Result<KernelConfig> config = KernelConfig::parse(text);
    REQUIRE(config.ok());
    return *config;
}

std::vector<std::string> lines_of(std::string_view text) {
    KernelConfig config = parsed(text);
    std::string report = print_kernel_check(check_kernel_config(config)).text;
    std::vector<std::string> lines;
    for (std::string_view line : split_lines(report)) lines.emplace_back(line);
    return lines;
}

TEST_CASE("kernel config: values") {
    std::string text =
        "#\n# Automatically generated file; DO NOT EDIT.\n#\nCONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\n"
        "CONFIG_D=\"text\"\nCONFIG_E=0x10\nCONFIG_F=n\n\nCONFIG_TWICE=y\n# CONFIG_TWICE is not set\n"
        "CONFIG_AGAIN=m\nCONFIG_AGAIN=y\n# CONFIG_NOTE says something\n#CONFIG_Z=y\nCONFIG_LAST=y";
    KernelConfig config = parsed(text);
    struct {
        const char* name;
        Value value;
    } rows[] = {{"A", Value::kOn},         {"B", Value::kModule}, {"C", Value::kOff},  {"D", Value::kOn},
                {"E", Value::kOn},         {"F", Value::kOff},    {"G", Value::kOff},  {"TWICE", Value::kOff},
                {"AGAIN", Value::kOn},     {"NOTE", Value::kOff}, {"Z", Value::kOff},  {"LAST", Value::kOn},
                {"CONFIG_A", Value::kOff}, {"", Value::kOff},     {"AA", Value::kOff}, {"~", Value::kOff}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        CHECK(config.value(row.name) == row.value);
    }
}

TEST_CASE("kernel config: refused") {
    struct {
        std::string text;
        const char* message;
    } rows[] = {
        {"", "kernel config: holds no CONFIG_ line"},
        {"# nothing\n", "kernel config: holds no CONFIG_ line"},
        {"CONFIG_A=y\nA=y\n", "kernel config: line 2: neither CONFIG_NAME=VALUE nor a comment: \"A=y\""},
        {"CONFIG_A\n", "kernel config: line 1: neither CONFIG_NAME=VALUE nor a comment: \"CONFIG_A\""},
        {"CONFIG_A=\n", "kernel config: line 1: neither CONFIG_NAME=VALUE nor a comment: \"CONFIG_A=\""},
        {"CONFIG_=y\n", "kernel config: line 1: neither CONFIG_NAME=VALUE nor a comment: \"CONFIG_=y\""},
        {" CONFIG_A=y\n", "kernel config: line 1: neither CONFIG_NAME=VALUE nor a comment: \" CONFIG_A=y\""},
        {"CONFIG_A B=y\n",
         "kernel config: line 1: neither CONFIG_NAME=VALUE nor a comment: \"CONFIG_A B=y\""},
        {"\x1f\x8b\x08", "kernel config: compressed by gzip; read it through zcat"},
        {std::string(limits::kKernelConfigBytes + 1, '#'),
         "kernel config: 1048577 bytes, more than the limit of 1048576"},
    };
    for (const auto& row : rows) {
        Result<KernelConfig> config = KernelConfig::parse(row.text);
        REQUIRE(!config.ok());
        CHECK(config.error().message == row.message);
    }
}

TEST_CASE("kernel features: the table is sound") {
    std::set<std::string_view> names;
    for (const KernelFeature& feature : kernel_features()) {
        CAPTURE(feature.name);
        CHECK(names.insert(feature.name).second);
        CHECK(feature.name.size() <= 24);
        CHECK(std::string_view(feature.refused) != "");
        for (std::string_view option : split(feature.options, ' ')) CHECK(!option.empty());
        bool has_subject = std::string_view(feature.subject) != "";
        bool wants_subject = feature.probe == FeatureProbe::kCgroupFile ||
                             feature.probe == FeatureProbe::kFilesystem ||
                             feature.probe == FeatureProbe::kPath;
        CHECK((!wants_subject || has_subject));
    }
}

TEST_CASE("kernel features: nothing is missing from a full config") {
    std::string text = full_config();
    KernelCheck check = print_kernel_check(check_kernel_config(parsed(text)));
    CHECK(check.serves);
    size_t count = kernel_features().size();
    CHECK(check.text ==
          format("%zu features: %zu built in, 0 modules, 0 missing, 0 of them required\n", count, count));
}

TEST_CASE("kernel features: each option counts") {
    std::string full = full_config();
    for (const KernelFeature& feature : kernel_features()) {
        CAPTURE(feature.name);
        for (std::string_view option : split(feature.options, ' ')) {
            bool off = option.starts_with('!');
            if (off) option.remove_prefix(1);
            std::string text = full;
            for (std::string_view name : split(option, '|'))
                text += "CONFIG_" + std::string(name) + (off ? "=y\n" : "=n\n");
            for (const FeatureVerdict& verdict : check_kernel_config(parsed(text))) {
                if (verdict.feature != &feature) continue;
                CHECK(verdict.state == State::kMissing);
                CHECK(verdict.options.find("CONFIG_" + std::string(split(option, '|')[0])) !=
                      std::string::npos);
            }
            if (feature.need == FeatureNeed::kRequired)
                CHECK(!print_kernel_check(check_kernel_config(parsed(text))).serves);
        }
    }
}

TEST_CASE("kernel features: what people read") {
    std::string full = full_config();
    struct {
        const char* change;
        const char* line;
    } rows[] = {
        {"CONFIG_UCLAMP_TASK_GROUP=n\n",
         "missing   cgroup.cpu.uclamp         CONFIG_UCLAMP_TASK_GROUP: refused without it: unified "
         "cpu.uclamp.min "
         "and cpu.uclamp.max"},
        {"# CONFIG_BLK_CGROUP is not set\n# CONFIG_BLK_DEV_THROTTLING is not set\n",
         "missing   cgroup.io                 CONFIG_BLK_CGROUP, CONFIG_BLK_DEV_THROTTLING: refused without "
         "it: "
         "linux.resources.blockIO throttles"},
        {"CONFIG_PSI_DEFAULT_DISABLED=y\n",
         "missing   cgroup.psi                CONFIG_PSI_DEFAULT_DISABLED (has to be off): refused without "
         "it: "
         "pressure in Stats, pressure watches"},
        {"CONFIG_SERIAL_8250_CONSOLE=n\n",
         "missing   boot.console              CONFIG_SERIAL_8250_CONSOLE or CONFIG_VIRTIO_CONSOLE or "
         "CONFIG_SERIAL_AMBA_PL011_CONSOLE: refused without it: the console, with the reason when a boot "
         "stops"},
        {"CONFIG_VSOCKETS=n\nCONFIG_VIRTIO_VSOCKETS=m\n",
         "REQUIRED  vsock                     CONFIG_VSOCKETS: refused without it: every connection from the "
         "host"},
        {"CONFIG_OVERLAY_FS=m\n",
         "module    fs.overlay                CONFIG_OVERLAY_FS: has to be in the image, and in its list of "
         "modules"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.change);
        std::vector<std::string> lines = lines_of(full + row.change);
        REQUIRE(lines.size() == 2);
        CHECK(lines[0] == row.line);
    }
    // Either of the alternatives does.
    CHECK(lines_of(full + "CONFIG_SERIAL_8250_CONSOLE=n\nCONFIG_VIRTIO_CONSOLE=y\n").size() == 1);
    size_t count = kernel_features().size();
    CHECK(lines_of(full + "CONFIG_OVERLAY_FS=m\nCONFIG_EXT4_FS=n\nCONFIG_VSOCKETS=n\n").back() ==
          format("%zu features: %zu built in, 1 modules, 2 missing, 1 of them required", count, count - 3));
}

}  // namespace
}  // namespace berth::core
