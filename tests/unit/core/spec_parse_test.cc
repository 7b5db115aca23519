// Every refusal of the spec parser with its exact text, and that what is right is read as it is written.
#include <doctest/doctest.h>

#include "../../support/core/specs.h"
#include "agent/core/caps.h"
#include "agent/core/container_plan.h"
#include "agent/core/container_spec.h"

using namespace berth::core;
using namespace berth::test;

namespace {

struct Refusal {
    std::string_view patch;
    std::string_view error;
    Code code = Code::kInvalidArgument;
};

void check_refusals(std::span<const Refusal> rows) {
    for (const Refusal& row : rows) {
        CAPTURE(row.patch);
        std::string json = patched(base_spec(), row.patch);
        auto spec = parse_container_spec(json);
        Status status = spec.ok() ? refuse_owners_requests(*spec) : Status(spec.error());
        REQUIRE_FALSE(status.ok());
        CHECK(status.error().message == row.error);
        CHECK(status.error().code == row.code);
    }
}

ContainerSpec parse(std::string_view patch) {
    auto spec = parse_container_spec(patched(base_spec(), patch));
    if (!spec.ok()) FAIL(spec.error().message);
    return std::move(*spec);
}

}  // namespace

TEST_CASE("the base of these tests is right") {
    auto spec = parse_container_spec(base_spec());
    REQUIRE(spec.ok());
    CHECK(spec->ignored.empty());
    CHECK(spec->process.warnings.empty());
}

TEST_CASE("refused: the document and its top level") {
    const Refusal rows[] = {
        {R"({"ociVersion": null})", "ociVersion: missing"},
        {R"({"ociVersion": "2.0.0"})", "ociVersion: \"2.0.0\" is not a version 1.x"},
        {R"({"ociVersion": "1"})", "ociVersion: \"1\" is not a version 1.x"},
        {R"({"ociVersion": 1})", "ociVersion: must be a string"},
        {R"({"root": null})", "root: missing"},
        {R"({"root": {"path": null}})", "root.path: missing"},
        {R"({"root": {"path": "/a/../b"}})", "root.path: must not contain \"..\""},
        {R"({"root": {"path": "a\u0000b"}})", "root.path: contains a NUL byte"},
        {R"({"root": {"readonly": "yes"}})", "root.readonly: must be true or false"},
        {R"({"process": null})", "process: missing"},
        {R"({"process": []})", "process: must be an object"},
        {R"({"linux": "x"})", "linux: must be an object"},
        {R"({"linux": null})",
         "linux.namespaces: a container without its own mount namespace is not supported",
         Code::kUnimplemented},
        {R"({"windows": {"x": 1}})", "windows: not supported", Code::kUnimplemented},
        {R"({"vm": {"x": 1}})", "vm: not supported", Code::kUnimplemented},
        {R"({"hostname": "0123456789012345678901234567890123456789012345678901234567890123x"})",
         "hostname: longer than 64 bytes"},
        {R"({"hostname": "a", "linux": {"namespaces": [{"type": "mount"}]}})",
         "hostname: needs a uts namespace"},
        {R"({"domainname": "a", "linux": {"namespaces": [{"type": "mount"}]}})",
         "domainname: needs a uts namespace"},
        {R"({"annotations": {"berth.stdoi": "drop"}})",
         "annotations[\"berth.stdoi\"]: unknown annotation of ours"},
        {R"({"annotations": {"berth.vsock": "deny"}})",
         "annotations[\"berth.vsock\"]: unknown value \"deny\""},
        {R"({"annotations": {"a": 1}})", "annotations[\"a\"]: must be a string"},
    };
    check_refusals(rows);
}

TEST_CASE("refused: process") {
    const Refusal rows[] = {
        {R"({"process": {"args": []}})", "process.args: must name a program"},
        {R"({"process": {"args": null}})", "process.args: must name a program"},
        {R"({"process": {"args": [""]}})", "process.args[0]: must not be empty"},
        {R"({"process": {"args": ["a", 1]}})", "process.args[1]: must be a string"},
        {R"({"process": {"args": ["a\u0000"]}})", "process.args[0]: contains a NUL byte"},
        {R"({"process": {"env": ["A=1", "B"]}})", "process.env[1]: must be NAME=value, is \"B\""},
        {R"({"process": {"env": ["=1"]}})", "process.env[0]: must be NAME=value, is \"=1\""},
        {R"({"process": {"cwd": "tmp"}})", "process.cwd: must be an absolute path, is \"tmp\""},
        {R"({"process": {"cwd": null}})", "process.cwd: missing"},
        {R"({"process": {"user": {"uid": -1}}})", "process.user.uid: must be a number from 0 to 4294967294"},
        {R"({"process": {"user": {"gid": 4294967295}}})",
         "process.user.gid: must be a number from 0 to 4294967294"},
        {R"({"process": {"user": {"uid": "0"}}})", "process.user.uid: must be a number from 0 to 4294967294"},
        {R"({"process": {"user": {"umask": 512}}})", "process.user.umask: must be a number from 0 to 511"},
        {R"({"process": {"user": {"username": "bob"}}})", "process.user.username: is for Windows only"},
        {R"({"process": {"user": {"additionalGids": [1, -2]}}})",
         "process.user.additionalGids[1]: must be a number from 0 to 4294967295"},
        {R"({"process": {"consoleSize": {"height": 70000, "width": 1}}})",
         "process.consoleSize.height: must be a number from 0 to 65535"},
        {R"({"process": {"commandLine": "a b"}})", "process.commandLine: is for Windows only"},
        {R"({"process": {"rlimits": [{"type": "RLIMIT_X", "soft": 1, "hard": 1}]}})",
         "process.rlimits[0].type: unknown resource limit \"RLIMIT_X\""},
        {R"({"process": {"rlimits": [{"type": "RLIMIT_CPU", "soft": 2, "hard": 1}]}})",
         "process.rlimits[0].soft: 2 is more than the hard limit 1"},
        {R"({"process": {"rlimits": [{"type": "RLIMIT_CPU", "soft": 1, "hard": 1},
                                     {"type": "RLIMIT_CPU", "soft": 1, "hard": 1}]}})",
         "process.rlimits[1].type: RLIMIT_CPU is given twice"},
        {R"({"process": {"oomScoreAdj": 1001}})", "process.oomScoreAdj: must be a number from -1000 to 1000"},
        {R"({"process": {"noNewPrivileges": 1}})", "process.noNewPrivileges: must be true or false"},
        {R"({"process": {"capabilities": {"bounding": "CAP_KILL"}}})",
         "process.capabilities.bounding: must be an array"},
        {R"({"process": {"capabilities": {"effective": ["CAP_KILL"]}}})",
         "process.capabilities.effective: CAP_KILL is not in the permitted set"},
        {R"({"process": {"capabilities": {"inheritable": ["CAP_CHOWN"]}}})",
         "process.capabilities.inheritable: CAP_CHOWN is not in the bounding set"},
        {R"({"process": {"execCPUAffinity": {"initial": "0-x"}}})",
         "process.execCPUAffinity.initial: \"0-x\" is not a list of CPUs"},
        {R"({"process": {"execCPUAffinity": {"final": "3-1"}}})",
         "process.execCPUAffinity.final: \"3-1\" is not a list of CPUs"},
        {R"({"process": {"execCPUAffinity": {"final": "8192"}}})",
         "process.execCPUAffinity.final: \"8192\" is not a list of CPUs"},
        {R"({"process": {"scheduler": {"policy": "SCHED_FAST"}}})",
         "process.scheduler.policy: unknown policy \"SCHED_FAST\""},
        {R"({"process": {"scheduler": {"policy": "SCHED_OTHER", "nice": 20}}})",
         "process.scheduler.nice: must be a number from -20 to 19"},
        {R"({"process": {"scheduler": {"policy": "SCHED_OTHER", "priority": 1}}})",
         "process.scheduler.priority: is for SCHED_FIFO and SCHED_RR only"},
        {R"({"process": {"scheduler": {"policy": "SCHED_RR", "period": 1}}})",
         "process.scheduler.runtime: deadline and period are for SCHED_DEADLINE only"},
        {R"({"process": {"scheduler": {"policy": "SCHED_OTHER", "flags": ["X"]}}})",
         "process.scheduler.flags[0]: unknown flag \"X\""},
        {R"({"process": {"ioPriority": {"class": "IOPRIO_CLASS_X", "priority": 1}}})",
         "process.ioPriority.class: unknown class \"IOPRIO_CLASS_X\""},
        {R"({"process": {"ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 8}}})",
         "process.ioPriority.priority: must be a number from 0 to 7"},
    };
    check_refusals(rows);
}

TEST_CASE("refused: mounts") {
    const Refusal rows[] = {
        {R"({"mounts": {}})", "mounts: must be an array"},
        {R"({"mounts": ["x"]})", "mounts[0]: must be an object"},
        {R"({"mounts": [{"type": "tmpfs"}]})", "mounts[0].destination: missing"},
        {R"({"mounts": [{"destination": "/", "type": "tmpfs"}]})",
         "mounts[0].destination: must not be \"/\""},
        {R"({"mounts": [{"destination": "//./", "type": "tmpfs"}]})",
         "mounts[0].destination: must not be \"/\""},
        {R"({"mounts": [{"destination": "/a/../b", "type": "tmpfs"}]})",
         "mounts[0].destination: must not contain \"..\""},
        {R"({"mounts": [{"destination": "/a\u0000b", "type": "tmpfs"}]})",
         "mounts[0].destination: contains a NUL byte"},
        {R"({"mounts": [{"destination": "/a"}]})", "mounts[0].type: missing"},
        {R"({"mounts": [{"destination": "/a", "type": "bind"}]})",
         "mounts[0].source: missing for a bind mount"},
        {R"({"mounts": [{"destination": "/a", "source": "/b/../c", "options": ["bind"]}]})",
         "mounts[0].source: must not contain \"..\""},
        {R"({"mounts": [{"destination": "/a", "source": "/b", "options": ["rbind", "mode=755"]}]})",
         "mounts[0].options: a bind mount cannot take \"mode=755\", which only a filesystem could"},
        {R"({"mounts": [{"destination": "/a", "source": "/b", "options": ["bind", "sync"]}]})",
         "mounts[0].options: a bind mount cannot take \"sync\", which only a filesystem could"},
        {R"({"mounts": [{"destination": "/a", "type": "tmpfs", "options": ["remount"]}]})",
         "mounts[0].options: \"remount\" is not supported", Code::kUnimplemented},
        {R"({"mounts": [{"destination": "/a", "source": "/b", "options": ["bind", "idmap"]}]})",
         "mounts[0].options: \"idmap\" needs uidMappings and gidMappings of the mount, or a user namespace"},
        {R"({"mounts": [{"destination": "/a", "source": "/b", "options": ["bind"], "uidMappings": [{"size": 1}]}]})",
         "mounts[0].gidMappings: missing: the other kind is given"},
        {R"({"mounts": [{"destination": "/a", "type": "tmpfs", "options": ["idmap"]}]})",
         "mounts[0].options: only a bind mount can be id-mapped"},
        {R"({"mounts": [{"destination": "/a", "type": "tmpfs", "uidMappings": [{"size": 1}], "gidMappings": [{"size": 1}]}]})",
         "mounts[0].uidMappings: only a bind mount can be id-mapped"},
        {R"({"mounts": [{"destination": "/a", "type": "tmpfs", "options": ["copy-symlink"]}]})",
         "mounts[0].options: \"copy-symlink\" is for bind mounts only"},
        {R"({"mounts": [{"destination": "/a", "type": "proc", "options": ["tmpcopyup"]}]})",
         "mounts[0].options: \"tmpcopyup\" is for tmpfs only"},
        {R"({"mounts": [{"destination": "/proc", "type": "tmpfs"}]})",
         "mounts[0].destination: \"/proc\" takes only a proc filesystem", Code::kPermissionDenied},
        {R"({"mounts": [{"destination": "proc/", "type": "bind", "source": "/srv"}]})",
         "mounts[0].destination: \"/proc\" takes only a proc filesystem", Code::kPermissionDenied},
        {R"({"mounts": [{"destination": "/proc/sys", "type": "bind", "source": "/srv"}]})",
         "mounts[0].destination: \"/proc/sys\": no mounts inside /proc", Code::kPermissionDenied},
        {R"({"mounts": [{"destination": "/proc/self/attr", "type": "tmpfs"}]})",
         "mounts[0].destination: \"/proc/self/attr\": no mounts inside /proc", Code::kPermissionDenied},
        {R"({"mounts": [{"destination": "/a", "type": "tmpfs", "options": "ro"}]})",
         "mounts[0].options: must be an array"},
    };
    check_refusals(rows);
}

TEST_CASE("refused: linux") {
    const Refusal rows[] = {
        {R"({"linux": {"namespaces": [{"type": "pidns"}]}})",
         "linux.namespaces[0].type: unknown namespace type \"pidns\""},
        {R"({"linux": {"namespaces": [{"type": "mount"}, {"type": "mount"}]}})",
         "linux.namespaces[1].type: \"mount\" is given twice"},
        {R"({"linux": {"namespaces": [{"type": "user"}, {"type": "mount"}]}})",
         "linux.uidMappings: missing for a new user namespace"},
        {R"({"linux": {"namespaces": [{"type": "ipc", "path": "proc/1/ns/ipc"}]}})",
         "linux.namespaces[0].path: must be an absolute path, is \"proc/1/ns/ipc\""},
        {R"({"linux": {"namespaces": [{"type": "mount", "path": "/proc/1/ns/mnt"}]}})",
         "linux.namespaces[0].path: joining a mount namespace is not supported", Code::kUnimplemented},
        {R"({"linux": {"namespaces": [], "maskedPaths": ["/proc/kcore"]}})",
         "linux.maskedPaths: needs a mount namespace"},
        {R"({"linux": {"namespaces": [{"type": "user"}], "uidMappings": [{"containerID": 0, "hostID": 9, "size": 9}],
             "gidMappings": [{"containerID": 0, "hostID": 9, "size": 9}]}})",
         "linux.namespaces: a user namespace needs a mount namespace"},
        {R"({"linux": {"namespaces": [], "readonlyPaths": ["/proc/sys"]}})",
         "linux.readonlyPaths: needs a mount namespace"},
        {R"({"linux": {"uidMappings": [{"containerID": 0, "hostID": 0, "size": 1}]}})",
         "linux.gidMappings: missing: the other kind is given"},
        {R"({"linux": {"uidMappings": [{"size": 1}], "gidMappings": [{"size": 1}]}})",
         "linux.uidMappings: needs a user namespace"},
        {R"({"linux": {"timeOffsets": {"boottime": {"secs": 1}}}})",
         "linux.timeOffsets: needs a time namespace"},
        {R"({"linux": {"timeOffsets": {"realtime": {"secs": 1}}}})",
         "linux.timeOffsets[\"realtime\"]: only \"monotonic\" and \"boottime\" have an offset"},
        {R"({"linux": {"timeOffsets": {"boottime": {"nanosecs": 1000000000}}}})",
         "linux.timeOffsets[\"boottime\"].nanosecs: must be a number from 0 to 999999999"},
        {R"({"linux": {"timeOffsets": {"boottime": {"secs": 1}}, "namespaces": [{"type": "mount"}, {"type": "time", "path": "/t"}]}})",
         "linux.timeOffsets: a time namespace that is joined has its own"},
        {R"({"linux": {"intelRdt": {"closID": "x"}}})", "linux.intelRdt: not supported",
         Code::kUnimplemented},
        {R"({"linux": {"namespaces": [{"type": "mount"}], "netDevices": {"eth0": {}}}})",
         "linux.netDevices: needs a network namespace"},
        {R"({"linux": {"netDevices": {"eth/0": {}}}})",
         "linux.netDevices[\"eth/0\"]: not the name of a network interface"},
        {R"({"linux": {"netDevices": {"eth0": {"name": "0123456789012345"}}}})",
         "linux.netDevices[\"eth0\"].name: not the name of a network interface"},
        {R"({"linux": {"netDevices": {"eth0": {"name": "a%d%d"}}}})",
         "linux.netDevices[\"eth0\"].name: not the name of a network interface"},
        {R"({"linux": {"netDevices": {"a": {"name": "c"}, "b": {"name": "c"}}}})",
         "linux.netDevices[\"b\"].name: \"c\" is given twice"},
        {R"({"linux": {"memoryPolicy": {"mode": "x"}}})", "linux.memoryPolicy.mode: unknown mode \"x\""},
        {R"({"linux": {"memoryPolicy": {"nodes": "0"}}})", "linux.memoryPolicy.mode: missing"},
        {R"({"linux": {"memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0,"}}})",
         "linux.memoryPolicy.nodes: \"0,\" is not a list of memory nodes"},
        {R"({"linux": {"memoryPolicy": {"mode": "MPOL_BIND", "flags": ["MPOL_F_X"]}}})",
         "linux.memoryPolicy.flags[0]: unknown flag \"MPOL_F_X\""},
        {R"({"linux": {"devices": [{"path": "/dev/sda", "type": "b", "major": 8, "minor": 0}]}})",
         "linux.devices[0].type: block devices are not given to containers", Code::kPermissionDenied},
        {R"({"linux": {"devices": [{"path": "/dev/sda", "type": "b", "major": 8}]}})",
         "linux.devices[0].major: and minor are needed for a block device"},
        {R"({"linux": {"devices": [{"path": "/dev/x", "type": "q"}]}})",
         "linux.devices[0].type: unknown device type \"q\""},
        {R"({"linux": {"devices": [{"path": "/dev/x", "type": "c", "major": 1}]}})",
         "linux.devices[0].major: and minor are needed for a character device"},
        {R"({"linux": {"devices": [{"path": "/dev/x", "type": "c", "major": 4096, "minor": 0}]}})",
         "linux.devices[0].major: must be a number from 0 to 4095"},
        {R"({"linux": {"devices": [{"path": "dev/x", "type": "p"}]}})",
         "linux.devices[0].path: must be an absolute path, is \"dev/x\""},
        {R"({"linux": {"devices": [{"path": "/proc/x", "type": "p"}]}})",
         "linux.devices[0].path: must not lie in /proc"},
        {R"({"linux": {"devices": [{"path": "/x", "type": "p"}, {"path": "//x", "type": "p"}]}})",
         "linux.devices[1].path: \"//x\" is given twice"},
        {R"({"linux": {"maskedPaths": ["proc"]}})",
         "linux.maskedPaths[0]: must be an absolute path, is \"proc\""},
        {R"({"linux": {"readonlyPaths": ["/a/../b"]}})", "linux.readonlyPaths[0]: must not contain \"..\""},
        {R"({"linux": {"rootfsPropagation": "everywhere"}})",
         "linux.rootfsPropagation: unknown propagation \"everywhere\""},
        {R"({"linux": {"rootfsPropagation": "ro"}})", "linux.rootfsPropagation: unknown propagation \"ro\""},
        {R"({"linux": {"personality": {"domain": "BSD"}}})",
         "linux.personality.domain: unknown domain \"BSD\""},
        {R"({"linux": {"personality": {"domain": "LINUX", "flags": ["X"]}}})",
         "linux.personality.flags: not supported", Code::kUnimplemented},
        {R"({"linux": {"resources": {"memory": {"limit": "x"}}}})",
         "linux.resources.memory.limit: must be a number from -9223372036854775808 to 9223372036854775807"},
    };
    check_refusals(rows);
}

TEST_CASE("refused: sysctls of namespaces that are not the container's") {
    constexpr std::string_view kOnlyMount = R"({"linux": {"namespaces": [{"type": "mount"}], "sysctl": {)";
    const Refusal rows[] = {
        {"\"net.ipv4.ip_forward\": \"1\"",
         "linux.sysctl[\"net.ipv4.ip_forward\"]: needs a network namespace of the container's own"},
        {"\"kernel.msgmax\": \"1\"",
         "linux.sysctl[\"kernel.msgmax\"]: needs a ipc namespace of the container's own"},
        {"\"fs.mqueue.msg_max\": \"1\"",
         "linux.sysctl[\"fs.mqueue.msg_max\"]: needs a ipc namespace of the container's own"},
        {"\"kernel.domainname\": \"x\"",
         "linux.sysctl[\"kernel.domainname\"]: needs a uts namespace of the container's own"},
        {"\"kernel.hostname\": \"x\"", "linux.sysctl[\"kernel.hostname\"]: use hostname"},
        {"\"kernel.panic\": \"1\"",
         "linux.sysctl[\"kernel.panic\"]: is not a sysctl of a container's namespaces",
         Code::kPermissionDenied},
        {"\"net/../kernel/panic\": \"1\"", "linux.sysctl[\"net/../kernel/panic\"]: not a sysctl name"},
        {"\"net..x\": \"1\"", "linux.sysctl[\"net..x\"]: not a sysctl name"},
        {"\"\": \"1\"", "linux.sysctl[\"\"]: not a sysctl name"},
        {"\"net.x\": 1", "linux.sysctl[\"net.x\"]: must be a string"},
    };
    for (const Refusal& row : rows) {
        std::string patch = std::string(kOnlyMount) + std::string(row.patch) + "}}}";
        const Refusal whole[] = {{patch, row.error, row.code}};
        check_refusals(whole);
    }
}

TEST_CASE("refused: hostile documents") {
    CHECK(parse_container_spec("").error().message == "JSON: The document is empty. (at offset 0)");
    CHECK(parse_container_spec("[]").error().message == "JSON: must be an object");
    std::string whole = base_spec();
    for (size_t cut = 0; cut + 1 < whole.size(); ++cut) {
        auto spec = parse_container_spec(std::string_view(whole).substr(0, cut));
        bool complete =
            std::string_view(whole).substr(cut).find_first_not_of(" \n") == std::string_view::npos;
        CHECK(spec.ok() == complete);
    }
    CHECK(parse_container_spec(R"({"ociVersion": "1.0.0", "ociVersion": "1.1.0"})").error().message ==
          "JSON: the key \"ociVersion\" occurs twice in one object");
    std::string mounts = R"({"mounts": [)";
    for (int i = 0; i < 5000; ++i) mounts += R"({"destination": "/a", "type": "tmpfs"},)";
    mounts.back() = ']';
    auto many = parse_container_spec(patched(base_spec(), mounts + "}"));
    CHECK(many.error().message == "mounts: has 5000 elements, more than the limit of 4096");
    CHECK(many.error().code == Code::kResourceExhausted);
    std::string source =
        R"({"mounts": [{"destination": "/a", "type": "bind", "source": "/)" + std::string(71680, 'a');
    CHECK(parse_container_spec(patched(base_spec(), source + R"("}]})")).error().message ==
          "mounts[0].source: longer than 4095 bytes");
    std::string argument = R"({"process": {"args": [")" + std::string(2'200'000, 'a') + R"("]}})";
    auto big = parse_container_spec(patched(base_spec(), argument));
    CHECK(big.error().message == "process.args: and env take 2200027 bytes, more than the limit of 2097152");
    CHECK(big.error().code == Code::kResourceExhausted);
}

TEST_CASE("read: process") {
    ContainerSpec spec = parse(R"({"process": {
        "terminal": true, "consoleSize": {"height": 24, "width": 80},
        "user": {"uid": 1000, "gid": 100, "umask": 63, "additionalGids": [5, 6]},
        "args": ["a", "b c"], "env": ["A=1", "B=2", "A=3", "N=x\ny", "E="], "cwd": "/work",
        "capabilities": {"bounding": ["CAP_KILL", "CAP_CHOWN", "CAP_FUTURE"], "permitted": ["CAP_KILL"],
                         "effective": ["CAP_KILL"], "inheritable": ["CAP_CHOWN"], "ambient": ["CAP_KILL"]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 18446744073709551615}],
        "noNewPrivileges": true, "oomScoreAdj": 0, "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 4},
        "scheduler": {"policy": "SCHED_BATCH", "nice": -5, "flags": ["SCHED_FLAG_RESET_ON_FORK"]},
        "apparmorProfile": "web", "selinuxLabel": "x", "future": {"a": 1}}})");
    const ProcessSpec& process = spec.process;
    CHECK(process.terminal);
    CHECK(process.console_size.height == 24);
    CHECK(process.console_size.width == 80);
    CHECK(process.user.uid == 1000);
    CHECK(process.user.gid == 100);
    CHECK(process.user.umask == 077);
    CHECK(process.user.additional_gids == std::vector<uint32_t>{5, 6});
    CHECK(process.args == std::vector<std::string>{"a", "b c"});
    CHECK(process.env == std::vector<std::string>{"B=2", "A=3", "N=x\ny", "E="});
    CHECK(process.cwd == "/work");
    REQUIRE(process.capabilities);
    CHECK(process.capabilities->bounding == (capability_bit(5) | capability_bit(0)));
    CHECK(process.capabilities->permitted == capability_bit(5));
    CHECK(process.capabilities->ambient == capability_bit(5));
    CHECK(process.warnings ==
          std::vector<std::string>{"process.capabilities.bounding[2]: unknown capability \"CAP_FUTURE\""});
    REQUIRE(process.rlimits.size() == 1);
    CHECK(process.rlimits[0].hard == UINT64_MAX);
    CHECK(process.no_new_privileges);
    CHECK(process.oom_score_adj == 0);
    CHECK(process.io_priority == (2u << 13 | 4u));
    REQUIRE(process.scheduler);
    CHECK(process.scheduler->policy == 3);
    CHECK(process.scheduler->nice == -5);
    CHECK(process.scheduler->flags == 1);
    CHECK(spec.ignored == std::vector<std::string>{"process.future"});
}

TEST_CASE("read: the rest") {
    ContainerSpec spec = parse(R"({
        "ociVersion": "1.99.0", "hostname": "web", "domainname": "lan", "root": {"path": "rootfs", "readonly": true},
        "mounts": [{"destination": "dev//shm/", "type": "tmpfs", "source": "shm", "options": ["nosuid", "size=1k"]},
                   {"destination": "/data", "source": "/srv/data", "options": ["rbind", "ro"]},
                   {"destination": "/proc/meminfo", "source": "rel/meminfo", "type": "bind"},
                   {"destination": "/proc", "source": "/proc", "type": "bind"}],
        "annotations": {"berth.vsock": "allow", "berth.stdio": "drop", "org.example": "x"},
        "linux": {"namespaces": [{"type": "mount"}, {"type": "uts", "path": "/proc/7/ns/uts"}, {"type": "network"},
                                 {"type": "cgroup"}, {"type": "ipc"}],
                  "devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 8630, "uid": 1, "gid": 2},
                              {"path": "/run/fifo", "type": "p"}],
                  "sysctl": {"net.ipv4.conf.eth0/1.forwarding": "1", "net/ipv4/conf/a.b/x": "2", "kernel.sem": "1 2 3 4"},
                  "cgroupsPath": "/pod/web", "rootfsPropagation": "rslave",
                  "maskedPaths": ["/proc/kcore", "/proc//kcore", "/sys/firmware"], "readonlyPaths": ["/proc/sys"],
                  "personality": {"domain": "LINUX32"},
                  "resources": {"memory": {"limit": 1048576}, "network": null, "devices": [{"allow": false, "access": "rwm"}]},
                  "future": 1},
        "new": [1]})");
    CHECK(spec.hostname == "web");
    CHECK(spec.domainname == "lan");
    CHECK(spec.root_path == "rootfs");
    CHECK(spec.root_readonly);
    REQUIRE(spec.mounts.size() == 4);
    CHECK(spec.mounts[0].destination == "/dev/shm");
    CHECK(spec.mounts[0].options.data == std::vector<std::string>{"size=1k"});
    CHECK(spec.mounts[1].options.bind_recursive);
    CHECK(spec.mounts[2].options.bind);
    CHECK(bind_sources_to_check(spec, "/b") ==
          std::vector<std::string>{"/srv/data", "/b/rel/meminfo", "/proc"});
    CHECK(spec.berth.allow_vsock);
    CHECK(spec.berth.drop_stdio);
    CHECK(spec.annotations.size() == 3);
    REQUIRE(spec.find_namespace(kNewUts));
    CHECK(spec.find_namespace(kNewUts)->path == "/proc/7/ns/uts");
    CHECK_FALSE(spec.find_namespace(kNewPid));
    REQUIRE(spec.devices.size() == 2);
    CHECK(spec.devices[0].mode == 0666);
    CHECK(spec.devices[0].gid == 2);
    CHECK(spec.devices[1].type == 'p');
    REQUIRE(spec.sysctls.size() == 3);
    CHECK(spec.sysctls[0].first == "net/ipv4/conf/eth0.1/forwarding");
    CHECK(spec.sysctls[1].first == "net/ipv4/conf/a.b/x");
    CHECK(spec.sysctls[2].first == "kernel/sem");
    CHECK(spec.cgroups_path == "/pod/web");
    CHECK(spec.rootfs_propagation == (1u << 19 | 0x4000u));
    CHECK(spec.masked_paths == std::vector<std::string>{"/proc/kcore", "/sys/firmware"});
    CHECK(spec.personality == 8);
    CHECK(spec.resources.memory.limit == 1048576);
    CHECK(spec.ignored == std::vector<std::string>{"linux.future", "new"});
}

TEST_CASE("read: a process alone, and resources alone") {
    auto process = parse_process_spec(R"({"args": ["ls"], "cwd": "/", "env": ["A=b"], "x": 1})");
    REQUIRE(process.ok());
    CHECK(process->args == std::vector<std::string>{"ls"});
    CHECK(process->ignored == std::vector<std::string>{"process.x"});
    CHECK(parse_process_spec(R"({"args": ["ls"], "cwd": "tmp"})").error().message ==
          "process.cwd: must be an absolute path, is \"tmp\"");
    CHECK(parse_process_spec("null").error().message == "process: must be an object");
    auto resources = parse_resources_json(R"({"pids": {"limit": 7}})");
    REQUIRE(resources.ok());
    CHECK(resources->pids_limit == 7);
    CHECK_FALSE(parse_resources_json(R"({"pids": {"limit": "7"}})").ok());
}

TEST_CASE("specs that tools write are read whole") {
    for (std::string_view name :
         {"runc-1.1.5.json", "crun-1.8.1.json", "umoci-0.4.7.json", "containerd-2.1.4.json"}) {
        CAPTURE(name);
        std::string json = read_spec(name);
        REQUIRE_FALSE(json.empty());
        auto spec = parse_container_spec(json);
        if (!spec.ok()) FAIL(spec.error().message);
        CHECK(spec->ignored.empty());
        CHECK(spec->process.warnings.empty());
        CHECK(spec->mounts.size() >= 7);
        CHECK(spec->namespaces.size() >= 5);
    }
}

TEST_CASE(
    "a nice value beside a policy that takes none is as the kernel has it: of no effect, and no error") {
    auto process = parse_process_spec(
        R"({"args": ["x"], "cwd": "/", "scheduler": {"policy": "SCHED_DEADLINE", "nice": 19, "runtime": 42000}})");
    REQUIRE(process.ok());
    REQUIRE(process->scheduler.has_value());
    CHECK(process->scheduler->nice == 19);
}
