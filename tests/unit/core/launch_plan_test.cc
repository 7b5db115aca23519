#include "agent/core/launch_plan.h"

#include <doctest/doctest.h>
#include <linux/sched.h>

#include <cstddef>
#include <cstring>

#include "agent/core/launch_plan_rules.h"
#include "agent/core/limits.h"
#include "tests/support/core/plan_walk.h"

using namespace berth::core;
using berth::test::walk_plan;

namespace {

namespace limits = berth::limits;

// Every kind of operand once.
LaunchPlanBuilder sample() {
    LaunchPlanBuilder builder(PlanKind::kContainer);
    builder.header().clone_flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWTIME;
    builder.header().uid_map = builder.string("0 1000 1\n");
    builder.header().gid_map = builder.string("0 1000 1\n");
    builder.header().timens_offsets = builder.string("boottime 1 0\n");
    int32_t slot = builder.slot(FdRequest{});
    PlanString path = builder.string("/run");
    PlanString key = builder.string("size");
    builder.step(PlanOp::kSetns, "linux.namespaces[0]").slot = slot;
    PlanStep& option = builder.step(PlanOp::kFsString, "mount 7 (tmpfs on /run)");
    option.s1 = key;
    option.s2 = path;
    PlanStep& tree = builder.step(PlanOp::kTreeRoot, "");
    tree.b = 1;
    tree.s1 = path;
    builder.step(PlanOp::kAttach, "");
    builder.land_here(2);
    const uint32_t groups[] = {1, 2, 3};
    PlanString list = builder.bytes(std::as_bytes(std::span(groups)));
    builder.step(PlanOp::kSetgroups, "").s1 = list;
    const uint64_t filter[] = {6, 7};
    PlanString program = builder.bytes(std::as_bytes(std::span(filter)));
    builder.step(PlanOp::kSeccomp, "").s1 = program;
    builder.step(PlanOp::kExec, "");
    const std::string arguments[] = {"/bin/sh", "-c", ""};
    const std::string variables[] = {"A=1"};
    builder.argv(arguments);
    builder.envp(variables);
    return builder;
}

LaunchPlan finished(LaunchPlanBuilder builder) {
    auto plan = std::move(builder).finish();
    if (!plan.ok()) MESSAGE(plan.error().message);
    REQUIRE(plan.ok());
    return std::move(plan).value();
}

PlanHeader& header_of(std::vector<std::byte>& blob) {
    return *reinterpret_cast<PlanHeader*>(blob.data());
}
PlanStep& step_of(std::vector<std::byte>& blob, size_t index) {
    return reinterpret_cast<PlanStep*>(blob.data() + header_of(blob).steps.offset)[index];
}
uint64_t& argv_of(std::vector<std::byte>& blob, size_t index) {
    return reinterpret_cast<uint64_t*>(blob.data() + header_of(blob).argv.offset)[index];
}

}  // namespace

TEST_CASE("a plan holds what was put in") {
    LaunchPlan plan = finished(sample());
    CHECK(validate_launch_plan(plan.blob, 3));
    CHECK(plan.header().total_bytes == plan.blob.size());
    CHECK(plan.header().fd_count == 3);
    REQUIRE(plan.fds.size() == 3);
    CHECK(plan.fds[kSlotSync].source == FdSource::kSync);
    CHECK(plan.fds[kSlotCgroup].source == FdSource::kCgroup);
    REQUIRE(plan.steps().size() == 7);
    CHECK(plan.text(plan.steps()[1].s1) == "size");
    CHECK(plan.text(plan.steps()[1].s2) == "/run");
    // The same text is there once.
    CHECK(plan.steps()[1].s2.offset == plan.steps()[2].s1.offset);
    CHECK(plan.header().uid_map.offset == plan.header().gid_map.offset);
    CHECK(plan.steps()[2].c == 4);
    CHECK(plan.steps()[4].s1.offset % 8 == 0);
    CHECK(plan.steps()[4].s1.length == 12);
    CHECK(plan.text({}).empty());
    CHECK(plan.step_label(1) == "mount 7 (tmpfs on /run)");
    CHECK(plan.step_label(3) == "move_mount");
    CHECK(plan.step_label(99) == "step 99");
    CHECK(walk_plan(plan.blob) > 0);
}

TEST_CASE("every op has a name of its own kind") {
    for (uint16_t op = 1; op <= static_cast<uint16_t>(PlanOp::kLast); ++op) {
        CAPTURE(op);
        CHECK(std::strcmp(plan_op_name(static_cast<PlanOp>(op)), "unknown op") != 0);
    }
    CHECK(std::strcmp(plan_op_name(PlanOp::kInvalid), "unknown op") == 0);
    CHECK(std::strcmp(plan_op_name(static_cast<PlanOp>(9999)), "unknown op") == 0);
}

TEST_CASE("what the builder refuses") {
    LaunchPlanBuilder with_nul = sample();
    const std::string arguments[] = {std::string("a\0b", 3)};
    with_nul.argv(arguments);
    auto nul = std::move(with_nul).finish();
    REQUIRE_FALSE(nul.ok());
    CHECK(nul.error().code == Code::kInvalidArgument);
    CHECK(nul.error().message == "\"a\\x00b\" contains a NUL byte");

    LaunchPlanBuilder crowded = sample();
    for (size_t i = 3; i <= limits::kLaunchPlanFds; ++i) crowded.slot(FdRequest{});
    auto fds = std::move(crowded).finish();
    REQUIRE_FALSE(fds.ok());
    CHECK(fds.error().code == Code::kResourceExhausted);
    CHECK(fds.error().message == "launch plan: 201 descriptors; at most 200 fit");

    LaunchPlanBuilder large = sample();
    for (int i = 0; i < 3; ++i)
        large.string(std::string(limits::kLaunchPlanBytes / 2, static_cast<char>('a' + i)));
    auto bytes = std::move(large).finish();
    REQUIRE_FALSE(bytes.ok());
    CHECK(bytes.error().code == Code::kResourceExhausted);

    LaunchPlanBuilder endless(PlanKind::kExec);
    endless.step(PlanOp::kSetsid, "");
    auto no_exec = std::move(endless).finish();
    REQUIRE_FALSE(no_exec.ok());
    CHECK(no_exec.error().message == "launch plan: the last step is not execve");

    LaunchPlanBuilder lacking(PlanKind::kHelper);
    lacking.step(PlanOp::kHostname, "");
    auto lacks = std::move(lacking).finish();
    REQUIRE_FALSE(lacks.ok());
    CHECK(lacks.error().code == Code::kInternal);
    CHECK(lacks.error().message == "launch plan: step 0 (sethostname): s1 is missing or out of bounds");
}

TEST_CASE("hostile plans") {
    using Blob = std::vector<std::byte>;
    struct Row {
        const char* flaw;
        void (*change)(Blob&);
    };
    const Row rows[] = {
        {"shorter than its header", [](Blob& b) { b.resize(sizeof(PlanHeader) - 1); }},
        {"total_bytes is not the size", [](Blob& b) { b.pop_back(); }},
        {"total_bytes is not the size", [](Blob& b) { b.push_back({}); }},
        {"too large", [](Blob& b) { b.resize(limits::kLaunchPlanBytes + 1); }},
        {"wrong magic", [](Blob& b) { header_of(b).magic ^= 1; }},
        {"unknown kind", [](Blob& b) { header_of(b).kind = static_cast<PlanKind>(4); }},
        {"wrong number of descriptors", [](Blob& b) { header_of(b).fd_count = 2; }},
        {"clone_flags hold more than CLONE_NEW*", [](Blob& b) { header_of(b).clone_flags |= CLONE_VM; }},
        {"clone_flags hold more than CLONE_NEW*", [](Blob& b) { header_of(b).clone_flags |= 1ull << 40; }},
        {"namespace slot out of range", [](Blob& b) { header_of(b).pid_namespace_slot = 3; }},
        {"namespace slot out of range", [](Blob& b) { header_of(b).time_namespace_slot = -2; }},
        {"a time namespace both joined and new", [](Blob& b) { header_of(b).time_namespace_slot = 2; }},
        {"a pid namespace both joined and new",
         [](Blob& b) {
             header_of(b).pid_namespace_slot = 2;
             header_of(b).clone_flags |= CLONE_NEWPID;
         }},
        {"map or offsets out of bounds", [](Blob& b) { header_of(b).uid_map.length = 0xFFFFFFFF; }},
        {"map or offsets out of bounds", [](Blob& b) { header_of(b).gid_map.offset = 4; }},
        {"map or offsets out of bounds",
         [](Blob& b) {
             header_of(b).timens_offsets = {0, 5};
         }},
        {"mappings without CLONE_NEWUSER",
         [](Blob& b) { header_of(b).clone_flags &= ~uint64_t{CLONE_NEWUSER}; }},
        {"time offsets without CLONE_NEWTIME",
         [](Blob& b) { header_of(b).clone_flags &= ~uint64_t{CLONE_NEWTIME}; }},
        {"flag is neither 0 nor 1", [](Blob& b) { header_of(b).use_intermediate = 2; }},
        {"an intermediate with new namespaces and no stage",
         [](Blob& b) { header_of(b).use_intermediate = 1; }},
        {"a stage without an intermediate, or without a rest", [](Blob& b) { header_of(b).stage_steps = 1; }},
        {"a stage without an intermediate, or without a rest",
         [](Blob& b) {
             header_of(b).use_intermediate = 1;
             header_of(b).stage_steps = header_of(b).steps.count;
         }},
        {"stage_flags hold more than CLONE_NEWNS", [](Blob& b) { header_of(b).stage_flags = 1; }},
        {"stage_flags without a stage", [](Blob& b) { header_of(b).stage_flags = 0x20000; }},
        {"id maps out of bounds", [](Blob& b) { header_of(b).id_maps.count = 17; }},
        {"id maps out of bounds", [](Blob& b) { header_of(b).id_maps.offset = 4; }},
        {"nofile_soft above nofile_hard", [](Blob& b) { header_of(b).nofile_soft = 5000; }},
        {"steps out of bounds", [](Blob& b) { header_of(b).steps.count = 0xFFFFFFFF; }},
        {"steps out of bounds", [](Blob& b) { header_of(b).steps.offset += 4; }},
        {"steps out of bounds", [](Blob& b) { header_of(b).steps.offset = 0; }},
        {"steps out of bounds", [](Blob& b) { header_of(b).steps.offset = 0xFFFFFFF8; }},
        {"argv out of bounds", [](Blob& b) { header_of(b).argv.count = 0xFFFFFFFF; }},
        {"envp out of bounds", [](Blob& b) { header_of(b).envp.count += 1; }},
        {"argv names a string out of bounds", [](Blob& b) { argv_of(b, 0) = b.size(); }},
        {"argv names a string out of bounds", [](Blob& b) { argv_of(b, 1) = ~uint64_t{0}; }},
        {"argv names a string out of bounds", [](Blob& b) { argv_of(b, 2) = 0; }},
        {"argv names a string out of bounds", [](Blob& b) { argv_of(b, 3) = sizeof(PlanHeader); }},
        {"arrays overlap",
         [](Blob& b) {
             header_of(b).envp = {header_of(b).argv.offset + 16, 0};
             argv_of(b, 2) = argv_of(b, 3) = 0;
             header_of(b).argv.count = 2;
         }},
        {"the last step is not execve", [](Blob& b) { header_of(b).steps.count -= 1; }},
        {"step 3 (unknown op): unknown op", [](Blob& b) { step_of(b, 3).op = PlanOp::kInvalid; }},
        {"step 3 (unknown op): unknown op", [](Blob& b) { step_of(b, 3).op = static_cast<PlanOp>(5000); }},
        {"step 3 (move_mount): unknown flags", [](Blob& b) { step_of(b, 3).flags = 4; }},
        {"step 0 (setns): slot is missing", [](Blob& b) { step_of(b, 0).slot = kNoSlot; }},
        {"step 0 (setns): slot out of range", [](Blob& b) { step_of(b, 0).slot = 3; }},
        {"step 0 (setns): slot out of range", [](Blob& b) { step_of(b, 0).slot = -2; }},
        {"step 0 (setns): label out of bounds", [](Blob& b) { step_of(b, 0).label.offset = 0xFFFFFF00; }},
        {"step 1 (fsconfig): s1 is missing or out of bounds", [](Blob& b) { step_of(b, 1).s1 = {}; }},
        {"step 1 (fsconfig): s1 is missing or out of bounds", [](Blob& b) { step_of(b, 1).s1.length -= 1; }},
        {"step 1 (fsconfig): s2 is missing or out of bounds", [](Blob& b) { step_of(b, 1).s2.length += 2; }},
        {"step 2 (open_tree): jump is not forward", [](Blob& b) { step_of(b, 2).c = 2; }},
        {"step 2 (open_tree): jump is not forward", [](Blob& b) { step_of(b, 2).c = 0; }},
        {"step 2 (open_tree): jump is not forward", [](Blob& b) { step_of(b, 2).c = 8; }},
        {"step 2 (open_tree): jump is not forward", [](Blob& b) { step_of(b, 2).c = uint64_t{1} << 32 | 4; }},
        {"step 4 (setgroups): group list of the wrong size",
         [](Blob& b) {
             step_of(b, 4).s1.length = 9;  // a zero byte of the list ends it
         }},
        {"step 5 (seccomp): filter of the wrong size", [](Blob& b) { step_of(b, 5).s1.length = 9; }},
        {"step 5 (seccomp): filter of the wrong size", [](Blob& b) { step_of(b, 5).s1 = {}; }},
        {"step 5 (seccomp): s1 is missing or out of bounds", [](Blob& b) { step_of(b, 5).s1.offset += 1; }},
        {"step 6 (execve): no arguments",
         [](Blob& b) {
             header_of(b).argv.count = 0;
             argv_of(b, 0) = 0;
         }},
    };
    const LaunchPlan plan = finished(sample());
    for (const Row& row : rows) {
        CAPTURE(row.flaw);
        Blob blob = plan.blob;
        row.change(blob);
        CHECK(launch_plan_flaw(blob, 3) == row.flaw);
        CHECK_FALSE(validate_launch_plan(blob, 3));
    }
    CHECK(launch_plan_flaw(plan.blob, 2) == "wrong number of descriptors");
}

TEST_CASE("op values that the child relies on") {
    struct Row {
        PlanOp op;
        uint64_t a, b, c;
        const char* flaw;
    };
    const Row rows[] = {
        {PlanOp::kStdio, 3, 0, 0, "step 0 (stdio): not a stdio descriptor"},
        {PlanOp::kRlimit, 16, 0, 0, "step 0 (prlimit): limit out of range"},
        {PlanOp::kRlimit, 7, 2, 1, "step 0 (prlimit): limit out of range"},
        {PlanOp::kPtyOpen, 65536, 1, 0, "step 0 (open pty): size out of range"},
        {PlanOp::kScheduler, 0, 0, 0, "step 0 (sched_setattr): sched_attr of the wrong size"},
        {PlanOp::kMountGuest, 0, 0, 0, "step 0 (mount): s1 is missing or out of bounds"},
        {PlanOp::kExec, 0, 0, 0, "step 0 (execve): no arguments"},
        {PlanOp::kStdio, 2, 0, 0, ""},
        {PlanOp::kRlimit, 15, 1, 1, ""},
        {PlanOp::kAffinity, 0, 0, 0, ""},
        {PlanOp::kSessionKeyring, 0, 0, 0, ""},
    };
    for (const Row& row : rows) {
        CAPTURE(row.flaw);
        LaunchPlanBuilder builder(PlanKind::kHelper);
        PlanStep& step = builder.step(row.op, "");
        step.a = row.a;
        step.b = row.b;
        step.c = row.c;
        auto plan = std::move(builder).finish();
        if (row.flaw[0] == '\0') {
            CHECK(plan.ok());
        } else {
            REQUIRE_FALSE(plan.ok());
            CHECK(plan.error().message == std::string("launch plan: ") + row.flaw);
        }
    }
    // mount(2)'s three texts.
    for (std::string_view text : {std::string_view("a\0b", 3), std::string_view("a\0b\0c\0d", 7)}) {
        LaunchPlanBuilder builder(PlanKind::kHelper);
        PlanString path = builder.string("/x");
        PlanString packed = builder.bytes(std::as_bytes(std::span(text.data(), text.size())));
        PlanStep& step = builder.step(PlanOp::kMountGuest, "");
        step.s1 = path;
        step.s2 = packed;
        auto plan = std::move(builder).finish();
        REQUIRE_FALSE(plan.ok());
        CHECK(plan.error().message == "launch plan: step 0 (mount): s2 is not three strings");
    }
}

TEST_CASE("whatever byte is changed, what passes the check can be walked") {
    const LaunchPlan plan = finished(sample());
    size_t passed = 0;
    for (size_t at = 0; at < plan.blob.size(); ++at) {
        for (uint8_t value : {0, 1, 8, 127, 128, 255}) {
            std::vector<std::byte> blob = plan.blob;
            blob[at] = std::byte{value};
            if (!validate_launch_plan(blob, 3)) continue;
            walk_plan(blob);
            ++passed;
        }
    }
    CHECK(passed > 100);
    for (size_t size = 0; size < plan.blob.size(); ++size) {
        std::vector<std::byte> blob(plan.blob.begin(), plan.blob.begin() + static_cast<std::ptrdiff_t>(size));
        CHECK_FALSE(validate_launch_plan(blob, 3));
        if (size < sizeof(PlanHeader)) continue;
        header_of(blob).total_bytes = static_cast<uint32_t>(size);
        if (validate_launch_plan(blob, 3)) walk_plan(blob);
    }
}
