# Requests that are refused: each by its name, and the guest afterwards as it was.
# suite: main
# limit: 300
from boxes import WORK, changed, expect, script, spec
from harness import Failure

BIND = {"destination": "/mnt", "type": "bind", "source": "/run/test", "options": ["bind"]}


def _with_mount(**fields):
    value = spec()
    value["mounts"].append({**{"destination": "/mnt", "type": "tmpfs", "source": "tmpfs"}, **fields})
    return value


def _with_device(**fields):
    return changed(spec(), linux__devices=[{**{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}, **fields}])


def _without_namespace(kind):
    value = spec()
    value["linux"]["namespaces"] = [entry for entry in value["linux"]["namespaces"] if entry["type"] != kind]
    return value


def _with_namespace(**entry):
    value = _without_namespace(entry["type"])
    value["linux"]["namespaces"].append(entry)
    return value


# name: (spec, what the error says)
REFUSED = {
    # What is no config.json.
    "cut": ('{"ociVersion": "1.0.2", "process": {', "config.json"),
    "doubled": ('{"ociVersion": "1.0.2", "ociVersion": "1.0.2"}', "ociVersion"),
    "version": (spec(ociVersion="2.0.0"), 'ociVersion: "2.0.0"'),
    "no-root": (changed(spec(), root=None), "root: missing"),
    "no-process": (changed(spec(), process=None), "process: missing"),
    "type": (changed(spec(), process__args="true"), "process.args"),
    # process
    "args": (changed(spec(), process__args=[]), "process.args: must name a program"),
    "cwd": (changed(spec(), process__cwd="relative"), "process.cwd: must be an absolute path"),
    "env": (changed(spec(), process__env=["NOVALUE"]), "process.env[0]"),
    "uid": (changed(spec(), process__user={"uid": 4294967295, "gid": 0}), "process.user.uid"),
    "uid-text": (changed(spec(), process__user={"uid": "1000:x", "gid": 0}), "process.user.uid"),
    "negative-uid": (changed(spec(), process__user={"uid": -1, "gid": 0}), "process.user.uid"),
    "umask": (changed(spec(), process__user={"uid": 0, "gid": 0, "umask": 512}), "process.user.umask"),
    "rlimit": (changed(spec(), process__rlimits=[{"type": "RLIMIT_X", "soft": 1, "hard": 1}]), "process.rlimits[0].type"),
    "rlimit-order": (changed(spec(), process__rlimits=[{"type": "RLIMIT_CORE", "soft": 2, "hard": 1}]),
                     "process.rlimits[0].soft"),
    "rlimit-twice": (changed(spec(), process__rlimits=[{"type": "RLIMIT_CORE", "soft": 1, "hard": 1}] * 2), "given twice"),
    "caps": (changed(spec(), process__capabilities={"effective": ["CAP_KILL"]}), "process.capabilities.effective"),
    "oom": (changed(spec(), process__oomScoreAdj=1001), "process.oomScoreAdj"),
    "scheduler": (changed(spec(), process__scheduler={"policy": "SCHED_NEVER"}), "process.scheduler.policy"),
    "io-priority": (changed(spec(), process__ioPriority={"class": "IOPRIO_CLASS_BE", "priority": 8}),
                    "process.ioPriority.priority"),
    "no-binary": (changed(spec(), process__args=["/nothing"]), 'process.args[0] "/nothing": find executable: ENOENT'),
    "cwd-is-a-file": (changed(spec(), process__cwd="/etc/passwd"), "process.cwd"),
    "affinity": (changed(spec(), process__execCPUAffinity={"initial": "x"}), "process.execCPUAffinity.initial: \"x\" is not a list of CPUs"),
    # root and mounts
    "root-missing": (changed(spec(), root__path="/run/nowhere"), 'root.path: open_tree "/run/nowhere": ENOENT'),
    "root-dots": (changed(spec(), root__path="../x"), 'root.path: must not contain ".."'),
    "root-of-the-agent": (changed(spec(), root__path="/run/berth"), "root.path: \"/run/berth\" would show the agent's"),
    "root-of-the-guest": (changed(spec(), root__path="/"), "would show the agent's"),
    "mount-type": (_with_mount(type="nofs"), 'the guest\'s kernel has no filesystem "nofs"'),
    "mount-option": (_with_mount(options=["nonsense=1"]), "(tmpfs on /mnt)"),
    "mount-bind-data": (_with_mount(**{**BIND, "options": ["bind", "size=1"]}), 'a bind mount cannot take "size=1"'),
    "mount-on-root": (_with_mount(destination="/"), 'destination: must not be "/"'),
    "mount-dots": (_with_mount(destination="/a/../b"), 'must not contain ".."'),
    "mount-over-proc": (_with_mount(destination="/proc"), '"/proc" takes only a proc filesystem'),
    "mount-in-proc": (_with_mount(destination="/proc/sys/kernel"), "no mounts inside /proc"),
    "mount-source": (_with_mount(**{**BIND, "source": "/run/nowhere"}), '(bind on /mnt): open_tree "/run/nowhere": ENOENT'),
    "mount-agent": (_with_mount(**{**BIND, "source": "/run/berth"}), "leads into the agent's /run/berth"),
    "mount-above-agent": (_with_mount(**{**BIND, "source": "/run", "options": ["rbind"]}), "would show the agent's"),
    "mount-agent-link": (_with_mount(**{**BIND, "source": "/run/test/link-to-agent"}), "leads into the agent's"),
    "mount-firmware": (_with_mount(**{**BIND, "source": "/sys/firmware"}), "would show /sys/firmware"),
    "mount-disk": (_with_mount(type="ext4", source="/dev/vda"), "is not a block device that the host attached"),
    "mount-idmap": (_with_mount(**{**BIND, "uidMappings": [{"containerID": 0, "hostID": 1, "size": 1}]}),
                    "gidMappings: missing: the other kind is given"),
    "mount-copy-symlink": (_with_mount(options=["copy-symlink"]), '"copy-symlink" is for bind mounts only'),
    "mount-idmap-tmpfs": (_with_mount(options=["idmap"]), "only a bind mount can be id-mapped"),
    "mount-long": (_with_mount(**{**BIND, "source": "/" + "x" * 70000}), "longer than 4095 bytes"),
    "mount-nul": (_with_mount(destination="/a\0b"), "destination"),
    "mounts": (changed(spec(), mounts=[{"destination": f"/m{i}", "type": "tmpfs", "source": "t"} for i in range(5000)]),
               "mounts"),
    # linux
    "namespace": (_with_namespace(type="space"), 'unknown namespace type "space"'),
    "namespace-twice": (changed(spec(), linux__namespaces=spec()["linux"]["namespaces"] + [{"type": "pid"}]), "given twice"),
    "namespace-path": (_with_namespace(type="pid", path="/proc/1/ns/uts"), "linux.namespaces["),
    "namespace-missing": (_with_namespace(type="ipc", path="/proc/1/ns/nothing"), "ENOENT"),
    "namespace-file": (_with_namespace(type="ipc", path="/etc/passwd"), "linux.namespaces["),
    "no-mount-namespace": (_without_namespace("mount"), "linux.maskedPaths: needs a mount namespace"),
    "no-mount-namespace-at-all": (changed(_without_namespace("mount"), linux__maskedPaths=[], linux__readonlyPaths=[]),
                                  "linux.namespaces: a container without its own mount namespace is not supported"),
    "hostname": (_without_namespace("uts"), "hostname: needs a uts namespace"),
    "hostname-long": (spec(hostname="x" * 65), "hostname: longer than 64 bytes"),
    "id-mappings": (changed(spec(), linux__uidMappings=[{"containerID": 0, "hostID": 1, "size": 1}]), "linux.gidMappings: missing"),
    "sysctl": (changed(spec(), linux__sysctl={"kernel.panic": "1"}), "is not a sysctl of a container's namespaces"),
    "sysctl-value": (changed(spec(), linux__sysctl={"net.ipv4.ip_forward": "x"}), "linux.sysctl net/ipv4/ip_forward"),
    "sysctl-dots": (changed(spec(), linux__sysctl={"net/../kernel/panic": "1"}), "not a sysctl name"),
    "device-block": (_with_device(type="b"), "block devices are not given to containers"),
    "device-absent": (_with_device(major=200, minor=77), "/dev/x"),
    "device-type": (_with_device(type="z"), 'unknown device type "z"'),
    "device-in-the-way": (changed(spec(), mounts=[m for m in spec()["mounts"] if m["destination"] == "/proc"],
                                  linux__maskedPaths=[], linux__readonlyPaths=[],
                                  linux__devices=[{"path": "/etc/passwd", "type": "c", "major": 1, "minor": 3}]), "EEXIST"),
    "personality": (changed(spec(), linux__personality={"domain": "VMS"}), "linux.personality.domain"),
    "propagation": (changed(spec(), linux__rootfsPropagation="sideways"), "linux.rootfsPropagation"),
    "intel-rdt": (changed(spec(), linux__intelRdt={"closID": "x"}), "linux.intelRdt: not supported"),
    "seccomp-action": (changed(spec(), linux__seccomp={"defaultAction": "SCMP_ACT_MAYBE"}), "linux.seccomp.defaultAction"),
    "hooks": (spec(hooks={"poststop": [{"path": "bin/true"}]}), "hooks.poststop[0].path: must be an absolute path"),
    "annotation": (spec(annotations={"berth.future": "1"}), "unknown annotation of ours"),
    # resources
    "unified-key": (changed(spec(), linux__resources={"unified": {"cpu.weight": "1"}}), "cpu.weight"),
    "unified-procs": (changed(spec(), linux__resources={"unified": {"cgroup.procs": "1"}}), "cgroup.procs"),
    "swap": (changed(spec(), linux__resources={"memory": {"limit": 2 << 20, "swap": 1 << 20}}), "memory.swap"),
    "cpu-period": (changed(spec(), linux__resources={"cpu": {"quota": 5000, "period": 7}}), "cpu.period: 7 is outside"),
    "cgroup-path": (changed(spec(), linux__cgroupsPath="/../up"), "cgroupsPath"),
    "cgroup-nested": (changed(spec(), linux__cgroupsPath="/other/below"), "cgroup"),
}
# In the way of the last ones: a container whose cgroup is /other.
OTHER = changed(spec(), process__args=["sleep", "100000"], linux__cgroupsPath="/other")


def case_every_refusal_leaves_nothing(guest):
    """One spec for each way to be refused."""
    prepare = f"ln -sfn /run/berth {WORK}/link-to-agent\nberthctl run -d -b {WORK}/other other || fail other\nprograms_too=1 snapshot refused\n"
    end = f"berthctl delete -f other\nrm {WORK}/link-to-agent\n"
    names = list(REFUSED)
    guest.check(script(prepare, other=OTHER))
    wrong = []
    try:
        for at in range(0, len(names), 12):
            body = ""
            for name in names[at:at + 12]:
                body += (f"berthctl create -b {WORK}/r-{name} r >$work/o 2>&1; echo \"@{name} $? $(cat $work/o)\"\n"
                         f"(programs_too=1; expect_unchanged refused) 2>&1 | sed 's/^/@{name} changed /'\nberthctl delete -f r\n")
            done = guest.sh(script(body, **{"r-" + name: REFUSED[name][0] for name in names[at:at + 12]}), 150)
            for name in names[at:at + 12]:
                said = [line for line in done.out.splitlines() if line.startswith(f"@{name} ")]
                wanted = REFUSED[name][1]
                if len(said) != 1:
                    wrong.append(f"{name}: {said} ({done!r})")
                elif said[0].split(" ")[1] == "0":
                    wrong.append(f"{name}: was not refused")
                elif wanted not in said[0]:
                    wrong.append(f"{name}: {said[0]!r} does not say {wanted!r}")
    finally:
        guest.sh(script(end))
    if wrong:
        raise Failure(f"{len(wrong)} of {len(names)}: " + " | ".join(wrong))
    expect(len(names) >= 60, f"only {len(names)} refusals")
