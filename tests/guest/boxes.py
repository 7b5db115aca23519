"""What cases that make containers from changed specs share: the captured specs, scripts for the guest, and checks of
what a probe inside a container saw."""

import copy
import json
import os

from harness import Failure

HERE = os.path.dirname(os.path.realpath(__file__))
SPECS = os.path.join(os.path.dirname(HERE), "data/specs")
TOOLS = ("runc-1.1.5", "crun-1.8.1", "umoci-0.4.7", "containerd-2.1.4")
WORK = "/run/test"


def captured(tool):
    """The config.json that a tool wrote, as text."""
    with open(os.path.join(SPECS, tool + ".json"), encoding="utf-8") as source:
        return source.read()


def spec(script=None, tool="runc-1.1.5", **top):
    """A spec without a terminal on the shared root file system that runs a shell script."""
    out = json.loads(captured(tool))
    out["process"]["terminal"] = False
    out["root"]["path"] = "/run/rootfs"
    out["process"]["args"] = ["/bin/sh", "-c", script or "exit 0"]
    out.update(copy.deepcopy(top))
    return out


def changed(base, **paths):
    """A copy with values set at paths: linux__resources={...}; None removes. Numbers index lists."""
    out = copy.deepcopy(base)
    for path, value in paths.items():
        *parents, last = [int(word) if word.isdigit() else word for word in path.split("__")]
        at = out
        for word in parents:
            at = at[word]
        if value is None:
            del at[last]
        else:
            at[last] = copy.deepcopy(value)
    return out


def write_files(files):
    """A shell script that writes {path: text} in the guest."""
    lines = []
    for path, text in files.items():
        lines.append(f"mkdir -p '{os.path.dirname(path)}'\ncat >'{path}' <<'END_OF_FILE'\n{text}\nEND_OF_FILE")
    return "\n".join(lines) + "\n"


def script(body, **specs):
    """A shell script for the guest: lib.sh, a bundle /run/test/NAME for each spec (an object, or text), then body."""
    files = {f"{WORK}/{name}/config.json": value if isinstance(value, str) else json.dumps(value)
             for name, value in specs.items()}
    clean = "".join(f"rm -rf {WORK}/{name}\n" for name in specs)
    return "set -u\n. /tests/lib.sh\nmake_rootfs\n" + clean + write_files(files) + body


def run(guest, value, limit_s=60, name="box", before=""):
    """Runs one container; its Output."""
    return guest.sh(script(f"{before}\nexec berthctl run --no-stdin -b {WORK}/{name} {name}", **{name: value}), limit_s)


def check_run(guest, value, limit_s=60, name="box", before=""):
    """Its standard output; a status other than 0 is a failure."""
    done = run(guest, value, limit_s, name, before)
    if done.status != 0:
        raise Failure(f"the container: {done!r}")
    return done.out


def expect(condition, text):
    if not condition:
        raise Failure(text)


def expect_eq(what, seen, wanted):
    if seen != wanted:
        raise Failure(f"{what}: {seen!r} instead of {wanted!r}")


# ---- a probe ----

# Prints `@key value` lines; runs in any container with busybox.
PROBE = r"""
say() { printf '@%s %s\n' "$1" "$2"; }
for n in pid net ipc uts mnt cgroup user time; do say ns_$n "$(readlink /proc/self/ns/$n)"; done
while read -r line; do say mount "$line"; done </proc/self/mountinfo
for key in Uid Gid Groups Umask NoNewPrivs Seccomp Seccomp_filters CapInh CapPrm CapEff CapBnd CapAmb; do
    say $key "$(awk -v k=$key: '$1 == k { $1 = ""; sub(/^ /, ""); print }' /proc/self/status)"
done
say hostname "$(hostname)"
say cwd "$(readlink /proc/self/cwd)"
say home "${HOME-unset}"
say path "${PATH-unset}"
say env "$(tr '\0' ' ' </proc/self/environ)"
say oom "$(cat /proc/self/oom_score_adj)"
say personality "$(cat /proc/self/personality)"
say fds "$(ls /proc/1/fd | tr '\n' ' ')"
say pid $$
say root "$(ls / | tr '\n' ' ')"
say session "$(awk '{ print $6 }' /proc/1/stat)"
while read -r line; do say limit "$line"; done </proc/1/limits
for path in /dev/*; do
    if [ -L $path ]; then say link "$path $(readlink $path)"; continue; fi
    [ -c $path ] && say node "$(stat -c '%n %t:%T %a %u:%g' $path)"
done
say size "$(stty size 2>/dev/null)"
touch /touched 2>/dev/null && { say root_writable yes; rm /touched; } || say root_writable no
say lo "$(cat /sys/class/net/lo/flags 2>/dev/null)"
say nets "$(ls /sys/class/net 2>/dev/null | tr '\n' ' ')"
"""


class Probe:
    """What the probe said: one(key), all(key)."""

    def __init__(self, text):
        self._lines = [line.strip().split(" ", 1) for line in text.replace("\r", "").split("\n") if line.startswith("@")]
        if not self._lines:
            raise Failure(f"the probe said nothing: {text[-400:]!r}")

    def all(self, key):
        return [rest[0] if rest else "" for word, *rest in self._lines if word == "@" + key]

    def one(self, key):
        found = self.all(key)
        if len(found) != 1:
            raise Failure(f"the probe said {key} {len(found)} times")
        return found[0]

    def mounts(self):
        """{mount point: (set of its options, filesystem type, root of it, superblock options)}; the last one wins."""
        out = {}
        for line in self.all("mount"):
            words = line.split(" ")
            dash = words.index("-")
            out[words[4]] = (set(words[5].split(",")), words[dash + 1], words[3], set(words[dash + 3].split(",")))
        return out


_CAPABILITIES = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE""".split()
ALL_CAPABILITIES = ["CAP_" + name for name in _CAPABILITIES]


def mask_of(names):
    """As /proc/PID/status shows a set."""
    return f"{sum(1 << ALL_CAPABILITIES.index(name) for name in names or ()):016x}"


def with_capabilities(value, names, ambient=False):
    """The spec with these in every set but inheritable (and ambient)."""
    sets = {key: list(names) for key in ("bounding", "effective", "permitted")}
    if ambient:
        sets["inheritable"] = sets["ambient"] = list(names)
    return changed(value, process__capabilities=sets)
