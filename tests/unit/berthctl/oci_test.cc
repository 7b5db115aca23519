#include <doctest/doctest.h>

#include <vector>

#include "agent/berthctl/debug_notes.h"
#include "agent/berthctl/documents.h"
#include "agent/berthctl/error_report.h"
#include "agent/berthctl/process_table.h"
#include "agent/core/container_spec.h"
#include "agent/core/json.h"
#include "agent/core/mount_options.h"

using berth::core::Code;
using berth::core::make_error;

TEST_CASE("what spec writes is a configuration that we take") {
    for (bool user_namespace : {false, true}) {
        auto spec = berth::core::parse_container_spec(berth::ctl::spec_json(user_namespace, 1000, 100));
        REQUIRE(spec.ok());
        CHECK(spec->ignored.empty());
        CHECK(spec->process.terminal);
        CHECK((spec->find_namespace(berth::core::kNewUser) != nullptr) == user_namespace);
    }
}

TEST_CASE("every mount option that features lists is known") {
    for (std::string_view option : berth::ctl::mount_options()) {
        CAPTURE(option);
        const std::string words[] = {std::string(option)};
        auto parsed = berth::core::parse_mount_options(words);
        REQUIRE(parsed.ok());
        CHECK(parsed->data.empty());
    }
}

TEST_CASE("features say what the guest has") {
    berth::v1::InfoResponse info;
    for (const char* name : {"namespace.pid", "lsm.apparmor", "cgroup.rdma"}) {
        auto* feature = info.add_features();
        feature->set_name(name);
        feature->set_available(std::string_view(name) != "lsm.apparmor");
    }
    std::string text = berth::ctl::features_json(info);
    auto document = berth::core::parse_json(text);
    REQUIRE(document.ok());
    auto& system = (*document)["linux"];
    REQUIRE(system["namespaces"].Size() == 1);
    CHECK(std::string_view(system["namespaces"][0].GetString()) == "pid");
    CHECK_FALSE(system["apparmor"]["enabled"].GetBool());
    CHECK(system["cgroup"]["rdma"].GetBool());
    CHECK_FALSE(system["cgroup"]["v1"].GetBool());
    CHECK_FALSE(system["netDevices"]["enabled"].GetBool());
}

TEST_CASE("errors are told in the words that people look for") {
    struct Case {
        Code code;
        std::string_view message;
        std::string_view told;
    };
    const Case cases[] = {
        {Code::kNotFound, R"(kill "x": container "x": not found)",
         R"(kill "web": container "web": not found (container does not exist))"},
        {Code::kNotFound, R"(exec "e" in "x": not found)", R"(exec "e" in "web": not found)"},
        {Code::kAlreadyExists, R"(create "x": a container of that id exists)",
         R"(create "web": a container of that id exists (already exists))"},
        {Code::kNotFound, R"(start "x": exec "sh": execve: ENOENT)",
         R"(start "web": exec "sh": execve: ENOENT (exec sh: no such file or directory))"},
        {Code::kNotFound, R"(start "e" in "x": cgroup "/a": ENOENT)",
         R"(start "e" in "web": cgroup "/a": ENOENT (no such file or directory; runc: adding pid of it to )"
         R"(cgroups /a/cgroup.procs: no such file or directory))"},
        {Code::kFailedPrecondition, R"(start "e" in "x": clone3: EBUSY)",
         R"(start "e" in "web": clone3: EBUSY (device or resource busy; runc: adding pid of it to )"
         R"(cgroups /cgroup.procs: device or resource busy))"},
        {Code::kFailedPrecondition, R"(create "x": mount 0 (proc on /proc): open mount target: ELOOP)",
         R"(create "web": mount 0 (proc on /proc): open mount target: ELOOP (too many levels of symbolic links) )"
         R"((must be mounted on ordinary directory))"},
        {Code::kPermissionDenied, R"(create "x": process.scheduler: sched_setattr: EPERM)",
         R"(create "web": process.scheduler: sched_setattr: EPERM (operation not permitted) )"
         R"((process scheduler can't be used together with AllowedCPUs))"},
        {Code::kAlreadyExists, R"(create "x": cgroup "/a/b": is another container's)",
         R"(create "web": cgroup "/a/b": is another container's (container's cgroup is not empty))"},
        {Code::kFailedPrecondition, R"(create "x": cgroup "a/b": not empty)",
         R"(create "web": cgroup "a/b": not empty (container's cgroup is not empty))"},
        {Code::kFailedPrecondition, R"(create "x": cgroup "a/b": frozen)",
         R"(create "web": cgroup "a/b": frozen (container's cgroup unexpectedly frozen))"},
        {Code::kFailedPrecondition, R"(create "x": linux.seccomp.listenerPath "/s": connect: ENOENT)",
         R"(create "web": linux.seccomp.listenerPath "/s": connect: ENOENT (no such file or directory) (failed to connect with seccomp agent))"},
        {Code::kInvalidArgument, R"(linux.seccomp.syscalls[0].action: SCMP_ACT_NOTIFY on "write" would)",
         R"(linux.seccomp.syscalls[0].action: SCMP_ACT_NOTIFY on "write" would (SCMP_ACT_NOTIFY cannot be used for the write syscall))"},
        {Code::kFailedPrecondition, R"(start "x": hooks.poststart[0]: killed by signal 31: "a")",
         R"(start "web": hooks.poststart[0]: killed by signal 31: "a" (bad system call))"},
        {Code::kFailedPrecondition, R"(start "x": hooks.poststart[0]: killed by signal 9)",
         R"(start "web": hooks.poststart[0]: killed by signal 9 (killed))"},
        {Code::kInvalidArgument, R"(exec "e" in "x": cgroup: bad sub cgroup path "..")",
         R"(exec "e" in "web": cgroup: bad sub cgroup path ".." (path .. is not a sub cgroup path))"},
        {Code::kInternal, "EPERM", "EPERM (operation not permitted)"},
        {Code::kInvalidArgument, R"(a.unified["foo.bar"]: unknown; allowed are x)",
         R"(a.unified["foo.bar"]: unknown; allowed are x (the requested cgroup controller `foo` is not available))"},
        {Code::kInvalidArgument, R"(a.unified["KEY"]: unknown; allowed are x)",
         R"(a.unified["KEY"]: unknown; allowed are x (the specified key has not the form CONTROLLER.VALUE `KEY`))"},
        {Code::kInvalidArgument, R"(a.unified["memory.x"]: unknown; allowed are x)",
         R"(a.unified["memory.x"]: unknown; allowed are x (no such file or directory for a container))"},
        {Code::kInternal, "mount 7: fsmount: EINVAL (tmpfs: Unknown parameter 'x')",
         "mount 7: fsmount: EINVAL (tmpfs: Unknown parameter 'x')"},
    };
    for (const Case& each : cases) {
        CHECK(berth::ctl::told_message(make_error(each.code, std::string(each.message)), "x", "web") ==
              each.told);
    }
}

TEST_CASE("lines of a log") {
    CHECK(berth::ctl::log_line(true, "error", "a \"b\"", 1'500'000'000) ==
          "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\",\"time\":\"1970-01-01T00:00:01.500000000Z\"}\n");
    CHECK(berth::ctl::log_line(false, "debug", "x", 0) ==
          "time=\"1970-01-01T00:00:00.000000000Z\" level=debug msg=\"x\"\n");
}

TEST_CASE("the lines of ps that belong to a container") {
    const uint32_t pids[] = {12, 7};
    auto kept = berth::ctl::filter_table("  PID TTY\n    7 a\n   71 b\n   12 c\n", pids);
    REQUIRE(kept.ok());
    CHECK(*kept == "  PID TTY\n    7 a\n   12 c\n");
    CHECK_FALSE(berth::ctl::filter_table("USER\n7\n", pids).ok());
    CHECK_FALSE(berth::ctl::filter_table("", pids).ok());
}

TEST_CASE("a program that cannot be executed: the line that a runtime without an agent leaves") {
    auto told = berth::ctl::told_message(
        make_error(Code::kNotFound, "start \"x\": exec \"/run.sh\": execve: ENOENT"), "x", "web");
    CHECK(berth::ctl::exec_failure_line(told) == "exec /run.sh: no such file or directory");
    told = berth::ctl::told_message(make_error(Code::kNotFound, "start \"x\": chdir \"/a\": ENOENT"), "x",
                                    "web");
    CHECK(berth::ctl::exec_failure_line(told).empty());
    CHECK(berth::ctl::exec_failure_line("").empty());
}

TEST_CASE("CPUs as a mask") {
    CHECK(berth::ctl::cpu_mask_of("0,2") == "0x5");
    CHECK(berth::ctl::cpu_mask_of("0-1") == "0x3");
    CHECK(berth::ctl::cpu_mask_of("64") == "0x10000000000000000");
    for (const char* none : {"", "a", "1024", "3-1"}) CHECK(berth::ctl::cpu_mask_of(none).empty());
}
