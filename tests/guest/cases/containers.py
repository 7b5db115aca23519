# Containers from what the tools write, changed field by field: what the kernel says inside and outside.
# suite: main
# limit: 120
# kernel: both
import json

from boxes import (ALL_CAPABILITIES, PROBE, TOOLS, WORK, Probe, captured, changed, check_run, expect, expect_eq, mask_of,
                   run, script, spec, with_capabilities)
from harness import Failure

MASKED_FILES = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats",
                "/proc/timer_stats")
DEVICES = {"/dev/null": "1:3", "/dev/zero": "1:5", "/dev/full": "1:7", "/dev/random": "1:8", "/dev/urandom": "1:9",
           "/dev/tty": "5:0"}
LINKS = {"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
         "/dev/stderr": "/proc/self/fd/2", "/dev/core": "/proc/kcore", "/dev/ptmx": "pts/ptmx"}
NAMESPACES = {"pid": "pid", "network": "net", "ipc": "ipc", "uts": "uts", "mount": "mnt", "cgroup": "cgroup"}


def _guest_side(guest):
    """The guest's own namespaces, kernel and paths, as the probe says them."""
    return Probe(guest.check("for n in pid net ipc uts mnt cgroup user time; do echo @ns_$n $(readlink /proc/1/ns/$n); done\n"
                             "for p in " + " ".join({p for t in TOOLS for p in json.loads(captured(t))["linux"]["maskedPaths"] +
                                                     json.loads(captured(t))["linux"]["readonlyPaths"]}) + "; do\n"
                             "[ -d $p ] && echo @exists $p d || { [ -e $p ] && echo @exists $p f; }; done; :"))


def _check_mounts(seen, wanted, here):
    mounts = seen.mounts()
    expected = {"/"} | {mount["destination"] for mount in wanted["mounts"]}
    if wanted["process"].get("terminal"):
        expected.add("/dev/console")
    for mount in wanted["mounts"]:
        options, kind, _, data = mounts.get(mount["destination"]) or _no(f"no mount on {mount['destination']}")
        expect_eq(f"type of {mount['destination']}", kind, {"cgroup": "cgroup2"}.get(mount["type"], mount["type"]))
        for word in mount.get("options", ()):
            if word in ("nosuid", "noexec", "nodev", "ro", "relatime"):
                expect(word in options, f"{mount['destination']} is not {word}: {options}")
            if word in ("mode=0620", "gid=5", "ptmxmode=0666", "size=65536k"):
                shown = {"mode=0620": "mode=620", "ptmxmode=0666": "ptmxmode=666"}.get(word, word)
                expect(shown in data, f"{mount['destination']} has not {word}: {data}")
        if "strictatime" in mount.get("options", ()):
            expect("relatime" not in options and "noatime" not in options, f"atime of {mount['destination']}: {options}")
        if "ro" not in mount.get("options", ()):
            expect("rw" in options, f"{mount['destination']} is read-only")
    expect_eq("root.readonly", "ro" in mounts["/"][0], wanted["root"].get("readonly", False))
    expect_eq("the root can be written", seen.one("root_writable"), "no" if wanted["root"].get("readonly") else "yes")
    exists = dict(line.rsplit(" ", 1) for line in here.all("exists"))
    for path in wanted["linux"]["maskedPaths"]:
        if path not in exists or path == "/sys/firmware" and path not in mounts:
            continue
        expected.add(path)
        options, kind, root, _ = mounts.get(path) or _no(f"{path} is not masked")
        if exists[path] == "d":
            expect(kind == "tmpfs" and "ro" in options, f"{path} is not an empty tmpfs: {kind} {options}")
        else:
            expect(root == "/null", f"{path} is not /dev/null: {root}")
    for path in wanted["linux"]["readonlyPaths"]:
        if path in exists:
            expected.add(path)
            expect("ro" in (mounts.get(path) or _no(f"{path} is not read-only"))[0], f"{path} is writable")
    expect(set(mounts) <= expected, f"mounts that nobody asked for: {sorted(set(mounts) - expected)}")
    expect_eq("how many mounts", len(seen.all("mount")), len(mounts))


def _no(text):
    raise Failure(text)


def _check_process(seen, wanted):
    process = wanted["process"]
    sets = process["capabilities"]
    for key, name in (("CapBnd", "bounding"), ("CapEff", "effective"), ("CapPrm", "permitted"), ("CapInh", "inheritable")):
        expect_eq(key, seen.one(key), mask_of(sets.get(name)))
    ambient = set(sets.get("ambient", ())) & set(sets.get("inheritable", ()))
    expect_eq("CapAmb", seen.one("CapAmb"), mask_of(sorted(ambient)))
    expect_eq("no_new_privs", seen.one("NoNewPrivs"), "1" if process.get("noNewPrivileges") else "0")
    expect_eq("the seccomp mode", seen.one("Seccomp"), "2")
    expect_eq("filters", seen.one("Seccomp_filters"), "1")
    expect_eq("Uid", seen.one("Uid").split(), ["0"] * 4)
    expect_eq("Gid", seen.one("Gid").split(), ["0"] * 4)
    expect_eq("Groups", seen.one("Groups").split(), [])
    expect_eq("the umask", seen.one("Umask"), "0022")
    expect_eq("cwd", seen.one("cwd"), process["cwd"])
    expect_eq("HOME", seen.one("home"), "/root")
    expect_eq("oom_score_adj", seen.one("oom"), "0")
    expect_eq("the session", seen.one("session"), "1")
    limits = [line.split() for line in seen.all("limit")]
    files = [words for words in limits if words[:3] == ["Max", "open", "files"]][0]
    expect_eq("RLIMIT_NOFILE", files[3:5], ["1024", "1024"])


def case_what_four_tools_write(guest):
    """config.json untouched, a root file system beside it: everything in it is what the kernel says afterwards."""
    here = _guest_side(guest)
    for tool in TOOLS:
        text = captured(tool)
        wanted = json.loads(text)
        terminal = wanted["process"].get("terminal", False)
        put = f"ln -sfn /run/rootfs {WORK}/tool/rootfs\ncat >/run/rootfs/probe <<'END_PROBE'\n{PROBE}\nEND_PROBE\n"
        if terminal:  # the shell of the spec reads what a person would type
            body = "printf '. /probe\\nexit 7\\n' | berthctl run -b %s/tool tool" % WORK
        else:  # its example's command is replaced by the probe
            body = "berthctl run --no-stdin -b %s/tool tool" % WORK
            text = text.replace('"echo hi"', '". /probe; exit 7"')
        done = guest.sh(script(put + body, tool=text), limit_s=100)
        expect_eq(f"{tool}: its exit status ({done!r})", done.status, 7)
        seen = Probe(done.out)
        try:
            asked = {NAMESPACES[entry["type"]] for entry in wanted["linux"]["namespaces"]}
            for name in ("pid", "net", "ipc", "uts", "mnt", "cgroup", "user", "time"):
                own = seen.one("ns_" + name) != here.one("ns_" + name)
                expect_eq(f"{name} namespace of its own", own, name in asked)
            _check_mounts(seen, wanted, here)
            _check_process(seen, wanted)
            if "hostname" in wanted:
                expect_eq("hostname", seen.one("hostname"), wanted["hostname"])
            expect_eq("interfaces", seen.one("nets").split(), ["lo"])
            expect_eq("lo is up", int(seen.one("lo"), 16) & 1, 1)
            nodes = dict(line.split(" ", 1) for line in seen.all("node"))
            for path, number in DEVICES.items():
                expect_eq(path, nodes.pop(path, None), f"{number} 666 0:0")
            console = nodes.pop("/dev/console", None)
            expect_eq("/dev/console", console is not None, terminal)
            expect_eq("further nodes", nodes, {})
            expect_eq("links", dict(line.split(" ") for line in seen.all("link")), LINKS)
        except Failure as failure:
            raise Failure(f"{tool}: {failure}") from None


def case_what_a_process_may_ask_for(guest):
    """Users, groups, environment, working directory, limits, capabilities, scheduling: the kernel's own words."""
    value = changed(
        spec(PROBE + "\nsay policy $(awk '{print $41}' /proc/self/stat)\nsay ionice \"$(ionice -p $$)\"\n"
             "say nice \"$(awk '{print $19}' /proc/self/stat)\"\nsay newline \"$(printf %s \"$TWO\" | wc -l)\"\nsay twice $SAME\n"
             "say machine $(uname -m)\nsay sysctl \"$(cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax | tr '\\n' ' ')\"\n"
             "say made \"$(stat -c '%a %u:%g' /srv/a /srv/a/b | tr '\\n' ' ')\"\nsay domain \"$(cat /proc/sys/kernel/domainname)\""),
        process__user={"uid": 1000, "gid": 1001, "additionalGids": [5, 2000], "umask": 0o27},
        process__env=["PATH=/bin", "SAME=first", "TWO=a\nb", "SAME=last"],
        process__cwd="/srv/a/b", process__oomScoreAdj=500, process__noNewPrivileges=False,
        process__rlimits=[{"type": "RLIMIT_NOFILE", "soft": 5000, "hard": 6000}, {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
                          {"type": "RLIMIT_NPROC", "soft": 100, "hard": 200}, {"type": "RLIMIT_MEMLOCK", "soft": 4096,
                                                                               "hard": 18446744073709551615}],
        process__capabilities={"bounding": ["CAP_KILL", "CAP_CHOWN", "CAP_NET_RAW"], "effective": ["CAP_KILL"],
                               "permitted": ["CAP_KILL", "CAP_CHOWN"], "inheritable": ["CAP_KILL", "CAP_NET_RAW"],
                               "ambient": ["CAP_KILL"]},
        process__scheduler={"policy": "SCHED_BATCH", "nice": 7}, process__ioPriority={"class": "IOPRIO_CLASS_IDLE", "priority": 0},
        linux__personality={"domain": "LINUX32"}, linux__sysctl={"net.ipv4.ip_forward": "1", "kernel/msgmax": "9000"},
        root__readonly=False, hostname="other", domainname="example.org",
        linux__seccomp={"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]})
    value["process"]["args"][2] += "\nsay mkdir \"$(mkdir /tmp/x 2>&1)\""
    seen = Probe(check_run(guest, value, before="rm -rf /run/rootfs/srv"))
    # A uid other than 0 keeps at execve what is ambient.
    for key, wanted in {
            "Uid": "1000\t1000\t1000\t1000", "Gid": "1001\t1001\t1001\t1001", "Groups": "5 2000", "Umask": "0027",
            "cwd": "/srv/a/b", "made": "755 0:0 755 0:0", "home": "/", "oom": "500", "NoNewPrivs": "0", "Seccomp": "2",
            "Seccomp_filters": "2", "twice": "last", "newline": "1", "path": "/bin", "machine": "i686", "sysctl": "1 9000",
            "CapBnd": mask_of(["CAP_KILL", "CAP_CHOWN", "CAP_NET_RAW"]), "CapPrm": mask_of(["CAP_KILL"]),
            "CapEff": mask_of(["CAP_KILL"]), "CapInh": mask_of(["CAP_KILL", "CAP_NET_RAW"]), "CapAmb": mask_of(["CAP_KILL"]),
            "hostname": "other", "domain": "example.org", "nice": "7", "policy": "3", "ionice": "idle"}.items():
        expect_eq(key, seen.one(key).split() if "\t" in wanted else seen.one(key), wanted.split() if "\t" in wanted else wanted)
    expect("not supported" in seen.one("mkdir"), f"the profile's errnoRet: {seen.one('mkdir')}")
    limits = {" ".join(words[:-3]): words[-3:-1] for words in (line.split() for line in seen.all("limit")) if len(words) > 3}
    for name, wanted in {"Max open files": ["5000", "6000"], "Max core file size": ["0", "0"],
                         "Max locked memory": ["4096", "unlimited"], "Max processes": ["100", "200"]}.items():
        expect_eq(name, limits.get(name), wanted)


def case_capabilities_of_root(guest):
    """All of them, none of them, and names that nobody knows."""
    everything = with_capabilities(spec("cat /proc/self/status"), ALL_CAPABILITIES, ambient=True)
    out = check_run(guest, everything)
    last = int(guest.check("cat /proc/sys/kernel/cap_last_cap"))
    for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        expect(f"{key}:\t{(1 << (last + 1)) - 1:016x}" in out, f"{key} is not full: {out}")
    nothing = check_run(guest, changed(spec("cat /proc/self/status"), process__capabilities=None))
    for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        expect(f"{key}:\t{0:016x}" in nothing, f"{key} is not empty: {nothing}")
    out = check_run(guest, changed(spec("cat /proc/self/status"), process__capabilities={
        "bounding": ["CAP_KILL", "CAP_OF_TOMORROW"], "permitted": ["CAP_KILL"], "effective": ["CAP_KILL"]}))
    expect(f"CapEff:\t{mask_of(['CAP_KILL'])}" in out, "an unknown capability spoils the known ones")


def case_schedulers(guest):
    """Each policy, as the kernel shows it; what it refuses is refused by the field's name."""
    for attributes, shown in (({"policy": "SCHED_OTHER", "nice": -5}, "SCHED_OTHER"),
                              ({"policy": "SCHED_IDLE"}, "SCHED_IDLE"),
                              ({"policy": "SCHED_RR", "priority": 7}, "SCHED_RR"),
                              ({"policy": "SCHED_FIFO", "priority": 3, "flags": ["SCHED_FLAG_RESET_ON_FORK"]}, "SCHED_FIFO"),
                              ({"policy": "SCHED_DEADLINE", "runtime": 10000000, "deadline": 30000000, "period": 30000000}, "6")):
        policies = {"SCHED_OTHER": 0, "SCHED_FIFO": 1, "SCHED_RR": 2, "SCHED_IDLE": 5, "6": 6}
        value = changed(spec(), process__scheduler=attributes)
        value["process"]["args"] = ["/bin/busybox", "cat", "/proc/self/stat"]
        done = run(guest, value)
        if attributes["policy"] in ("SCHED_RR", "SCHED_FIFO", "SCHED_DEADLINE") and done.status != 0:
            # A kernel with CONFIG_RT_GROUP_SCHED gives cgroups no real time; else it must work.
            expect("process.scheduler" in done.err and "EPERM" in done.err, f"{attributes}: {done!r}")
            continue
        expect_eq(f"{attributes}: status ({done!r})", done.status, 0)
        expect_eq(f"{attributes}: policy", int(done.out.split()[40]), policies[shown])
        if "nice" in attributes:
            expect_eq("nice", int(done.out.split()[18]), attributes["nice"])
        if "priority" in attributes:
            expect_eq("rt_priority", int(done.out.split()[39]), attributes["priority"])


def case_session_keyring(guest):
    """Each container has its own, by name; 250 of them for one uid use up no quota that would fail one."""
    value = changed(spec("cat /proc/keys"), linux__maskedPaths=[])
    out = check_run(guest, value, name="keys")
    expect("_ses.keys" in out, f"no session keyring of its own: {out}")
    value = changed(spec("exit 0"), process__user={"uid": 1000, "gid": 1000})
    done = guest.sh(script("old=$(cat /proc/sys/kernel/keys/maxkeys)\necho 3 >/proc/sys/kernel/keys/maxkeys\n"
                           f"for i in 1 2 3 4 5; do berthctl run -d -b {WORK}/quota q$i || bad=1; done\n"
                           "for i in 1 2 3 4 5; do berthctl delete -f q$i; done\n"
                           "echo $old >/proc/sys/kernel/keys/maxkeys\n[ -z \"${bad-}\" ]",
                           quota=changed(value, process__args=["sleep", "100000"])), 100)
    expect_eq(f"a used up quota ({done!r})", done.status, 0)


def case_labels_without_their_module(guest):
    """AppArmor and SELinux: absent means refused by name; present and not loaded, by the step's name."""
    modules = guest.sh("cat /sys/kernel/security/lsm 2>/dev/null || { mount -t securityfs s /sys/kernel/security; "
                       "cat /sys/kernel/security/lsm; umount /sys/kernel/security; }").out
    for field, module in (("process__apparmorProfile", "apparmor"), ("process__selinuxLabel", "selinux")):
        done = run(guest, changed(spec(), **{field: "nobody_loaded_this"}))
        expect(done.status != 0, f"{field} was not refused")
        name = field.replace("__", ".")
        expect(name in done.err, f"{name} is not named: {done!r}")
        if module not in modules:
            expect("the guest has no " in done.err, f"{done!r}")
    done = run(guest, changed(spec(), linux__mountLabel="system_u:object_r:x:s0"))
    expect("linux.mountLabel" in done.err and done.status != 0, f"{done!r}")
    expect_eq("unconfined is no profile", run(guest, changed(spec(), process__apparmorProfile="unconfined")).status, 0)
