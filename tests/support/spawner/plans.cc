#include "tests/support/spawner/plans.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sys/stat.h>

namespace berth::test {

using enum core::PlanOp;

void PlanWriter::add(core::PlanOp op, const StepOperands& operands) {
    core::PlanString s1, s2;
    if (operands.s1.data() != nullptr) s1 = builder.string(operands.s1);
    if (operands.s2.data() != nullptr) s2 = builder.string(operands.s2);
    core::PlanStep& step = builder.step(op, operands.label);
    step.a = operands.a;
    step.b = operands.b;
    step.c = operands.c;
    step.s1 = s1;
    step.s2 = s2;
    step.slot = operands.slot;
    step.flags = operands.flags;
}

int32_t PlanWriter::slot() {
    return builder.slot(core::FdRequest{});
}

core::LaunchPlan PlanWriter::finish(const std::vector<std::string>& argv,
                                    const std::vector<std::string>& envp) {
    builder.argv(argv);
    builder.envp(envp);
    auto plan = std::move(builder).finish();
    if (!plan.ok()) MESSAGE(plan.error().message);
    REQUIRE(plan.ok());
    return std::move(plan).value();
}

void PlanWriter::container_begin(const std::string& root, uint64_t extra_clone_flags) {
    builder.header().clone_flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET |
                                   CLONE_NEWCGROUP | extra_clone_flags;
    if ((extra_clone_flags & CLONE_NEWUSER) != 0) add(kBecomeNsRoot);
    add(kSetsid);
    add(kGuestPropagation, {.a = MS_REC | MS_PRIVATE});
    // Recursive: a user namespace may not take a mount apart from what is mounted on it.
    add(kTreeGuest, {.a = AT_RECURSIVE, .s1 = root});
    add(kTargetGuest, {.s1 = root});
    add(kAttach, {.label = "root"});
    add(kEnterRoot);
    add(kFsOpen, {.s1 = "proc"});
    add(kFsMount, {.a = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC});
    add(kTargetDir, {.a = 0755, .b = 1, .s1 = "/proc"});
    add(kAttach, {.label = "mount 0 (proc on /proc)"});
    add(kFsOpen, {.s1 = "tmpfs"});
    add(kFsString, {.s1 = "mode", .s2 = "755"});
    add(kFsString, {.s1 = "size", .s2 = "65536k"});
    add(kFsMount, {.a = MOUNT_ATTR_NOSUID});
    add(kTargetDir, {.a = 0755, .s1 = "/dev"});
    add(kAttach, {.label = "mount 1 (tmpfs on /dev)"});
    add(kFsOpen, {.s1 = "devpts"});
    add(kFsString, {.s1 = "ptmxmode", .s2 = "0666"});
    add(kFsString, {.s1 = "mode", .s2 = "0620"});
    add(kFsMount, {.a = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC});
    add(kTargetDir, {.a = 0755, .s1 = "/dev/pts"});
    add(kAttach, {.label = "mount 2 (devpts on /dev/pts)"});
}

void PlanWriter::devices() {
    add(kNode, {.a = S_IFCHR | 0666, .b = 0x103, .s1 = "/dev/null", .label = "/dev/null"});
    add(kNode, {.a = S_IFCHR | 0666, .b = 0x105, .s1 = "/dev/zero", .label = "/dev/zero"});
    add(kSymlink, {.s1 = "/dev/ptmx", .s2 = "pts/ptmx"});
    add(kSymlink, {.s1 = "/dev/fd", .s2 = "/proc/self/fd"});
}

void PlanWriter::pivot() {
    add(kPivotRoot);
}

}  // namespace berth::test
