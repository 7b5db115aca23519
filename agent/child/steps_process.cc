// The process: namespaces, identity, limits, capabilities.
#include <linux/capability.h>
#include <linux/sched.h>
#include <net/if.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "agent/child/child.h"

namespace berth::child {

namespace {

constexpr int kIoprioWhoProcess = 1;
constexpr int kKeyctlJoinSessionKeyring = 1;
constexpr long kSiocGetFlags = 0x8913;  // SIOCGIFFLAGS
constexpr long kSiocSetFlags = 0x8914;  // SIOCSIFFLAGS
constexpr int kCapabilitiesMax = 64;

int setresgid(uint64_t gid) {
    return raw::number(raw::syscall(SYS_setresgid, raw::word(gid), raw::word(gid), raw::word(gid)));
}
int setresuid(uint64_t uid) {
    return raw::number(raw::syscall(SYS_setresuid, raw::word(uid), raw::word(uid), raw::word(uid)));
}

}  // namespace

int step_setns(Child& child, const PlanStep& step) {
    int err = raw::number(raw::syscall(SYS_setns, child.slot(step), raw::word(step.a)));
    if (err < 0) return err;
    if ((step.a & CLONE_NEWNS) != 0 || step.a == 0) {
        // What these named belongs to the namespace that was left.
        raw::drop(child.root);
        raw::drop(child.proc);
        child.root_switched = true;
        // The kernel leads both to the root of the namespace that was joined.
        child.at_root = child.header->kind == core::PlanKind::kExec && (step.a & CLONE_NEWNS) != 0;
    }
    return 0;
}

int step_unshare(Child&, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_unshare, raw::word(step.a)));
}

int step_setsid(Child&, const PlanStep&) {
    long sid = raw::syscall(SYS_setsid);
    return sid < 0 ? raw::number(sid) : 0;
}

int step_loopback_up(Child&, const PlanStep&) {
    // Any socket leads to the interfaces of the network namespace; AF_UNIX exists where AF_INET does not.
    int fd = raw::number(raw::syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd < 0) return fd;
    ifreq request{};
    copy_bytes(request.ifr_name, "lo", 3);
    int err = raw::number(raw::syscall(SYS_ioctl, fd, kSiocGetFlags, raw::word(&request)));
    if (err == 0) {
        request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
        err = raw::number(raw::syscall(SYS_ioctl, fd, kSiocSetFlags, raw::word(&request)));
    }
    raw::close(fd);
    return err;
}

int step_hostname(Child& child, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_sethostname, raw::word(child.text(step.s1)), step.s1.length));
}

int step_domainname(Child& child, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_setdomainname, raw::word(child.text(step.s1)), step.s1.length));
}

int step_become_ns_root(Child& child, const PlanStep&) {
    // A procfs of the stage's shows the guest's processes.
    raw::drop(child.proc);
    int err = setresgid(0);
    if (err == 0) err = setresuid(0);
    if (err < 0) return err;
    err = raw::number(raw::syscall(SYS_setgroups, 0, 0));
    // A namespace whose setgroups is denied keeps the groups that it has.
    return err == -EPERM ? 0 : err;
}

int step_rlimit(Child& child, const PlanStep& step) {
    if (step.a == RLIMIT_NOFILE) {
        // A low limit would fail the steps that still open something.
        child.nofile_set = true;
        child.nofile_soft = step.b;
        child.nofile_hard = step.c;
        return 0;
    }
    const uint64_t limit[2] = {step.b, step.c};
    return raw::number(raw::syscall(SYS_prlimit64, 0, raw::word(step.a), raw::word(limit), 0));
}

int step_setgroups(Child& child, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_setgroups, step.s1.length / 4, raw::word(child.bytes(step.s1))));
}

int step_user(Child&, const PlanStep& step) {
    int err = step.c == 1 ? raw::prctl(PR_SET_KEEPCAPS, 1) : 0;
    if (err == 0) err = setresgid(step.b);
    if (err == 0) err = setresuid(step.a);
    return err;
}

int step_umask(Child& child, const PlanStep& step) {
    raw::syscall(SYS_umask, raw::word(step.a));
    child.umask_set = true;
    return 0;
}

int step_bounding_caps(Child&, const PlanStep& step) {
    for (int cap = 0; cap < kCapabilitiesMax; ++cap) {
        if ((step.a >> cap & 1) != 0) continue;
        int err = raw::prctl(PR_CAPBSET_DROP, static_cast<uint64_t>(cap));
        // The kernel's last capability is known at run time only.
        if (err == -EINVAL || (err < 0 && raw::prctl(PR_CAPBSET_READ, static_cast<uint64_t>(cap)) < 0)) break;
        if (err < 0) return err;
    }
    return 0;
}

int step_capset(Child&, const PlanStep& step) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2];
    for (int i = 0; i < 2; ++i) {
        data[i].effective = static_cast<uint32_t>(step.a >> (32 * i));
        data[i].permitted = static_cast<uint32_t>(step.b >> (32 * i));
        data[i].inheritable = static_cast<uint32_t>(step.c >> (32 * i));
    }
    return raw::number(raw::syscall(SYS_capset, raw::word(&header), raw::word(data)));
}

int step_ambient_caps(Child&, const PlanStep& step) {
    int err = raw::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL);
    for (int cap = 0; err == 0 && cap < kCapabilitiesMax; ++cap) {
        if ((step.a >> cap & 1) != 0) {
            err = raw::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, static_cast<uint64_t>(cap));
        }
    }
    return err;
}

int step_no_new_privs(Child&, const PlanStep&) {
    return raw::prctl(PR_SET_NO_NEW_PRIVS, 1);
}

int step_personality(Child&, const PlanStep& step) {
    long old = raw::syscall(SYS_personality, raw::word(step.a));
    return old < 0 ? raw::number(old) : 0;
}

int step_scheduler(Child& child, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_sched_setattr, 0, raw::word(child.bytes(step.s1)), 0));
}

int step_io_priority(Child&, const PlanStep& step) {
    return raw::number(raw::syscall(SYS_ioprio_set, kIoprioWhoProcess, 0, raw::word(step.a)));
}

int step_affinity(Child& child, const PlanStep& step) {
    if (step.s1.length > 0) {
        return raw::number(
            raw::syscall(SYS_sched_setaffinity, 0, step.s1.length, raw::word(child.bytes(step.s1))));
    }
    uint64_t all[128];
    for (uint64_t& part : all) part = ~uint64_t{0};
    return raw::number(raw::syscall(SYS_sched_setaffinity, 0, sizeof(all), raw::word(all)));
}

int step_memory_policy(Child& child, const PlanStep& step) {
    // The kernel takes the number of bits and one more.
    const bool has_nodes = step.s1.length > 0;
    return raw::number(raw::syscall(SYS_set_mempolicy, raw::word(step.a),
                                    has_nodes ? raw::word(child.bytes(step.s1)) : 0,
                                    has_nodes ? step.s1.length * 8l + 1 : 0));
}

int step_session_keyring(Child& child, const PlanStep& step) {
    const char* name = step.s1.offset == 0 ? nullptr : child.text(step.s1);
    long err = raw::syscall(SYS_keyctl, kKeyctlJoinSessionKeyring, raw::word(name));
    // A kernel without keys, a quota that is used up (about 200 keyrings a user), a policy: none is worth a
    // failed container.
    if (err == -ENOSYS || err == -EDQUOT || err == -EACCES) return 0;
    return err < 0 ? raw::number(err) : 0;
}

int step_pdeathsig(Child&, const PlanStep& step) {
    return raw::prctl(PR_SET_PDEATHSIG, step.a);
}

}  // namespace berth::child
