# The specs that other tools wrote (data/specs, README.md there says which and how), unmodified. data/specs/outcomes says
# what becomes of each: with its root file system where the spec names it, and with what else the tool would have made.
# suite: main
# limit: 600
import json
import os
import shlex

from boxes import HERE, WORK, Probe, expect_eq, mask_of
from harness import Failure

SPECS = os.path.join(HERE, "data/specs")

# Read by the container's own shell from its standard input, a terminal or not. One word a line is enough to see that the
# spec was followed; what each field does has its own tests.
SCRIPT = r"""f() { awk -v k=$1: '$1 == k { print $2 }' /proc/self/status; }
w=no; touch /.touched 2>/dev/null && { w=yes; rm /.touched; }; echo; echo @writable $w
t=no; [ -t 0 ] && t=yes; echo @terminal $t
echo @uid $(id -u); echo @gid $(id -g)
echo @caps $(f CapEff); echo @bounding $(f CapBnd); echo @new_privs $(f NoNewPrivs); echo @seccomp $(f Seccomp_filters)
echo @map $(head -n 1 /proc/self/uid_map); echo @cwd $(pwd); echo @hostname $(hostname); echo @pid $$
for m in $(cut -d ' ' -f 5 /proc/self/mountinfo); do echo @mount $m; done
exit 7
"""
# Files that engines mount; every other missing source is a directory.
FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv", "/.containerenv", "/dev/termination-log",
         "/run/secrets/rhsm", "/sbin/docker-init")


def _outcomes():
    """{name: [alone, completed]}; each None when it runs, else the error's text."""
    out = {}
    with open(os.path.join(SPECS, "outcomes"), encoding="utf-8") as source:
        for line in source:
            if line.strip() and not line.startswith("#"):
                name, *rest = [word.strip() for word in line.split(" | ")]
                rest += rest[:1] if len(rest) == 1 else []
                out[name] = [None if text == "runs" else text for text in rest]
    return out


def _spec(name):
    with open(os.path.join(SPECS, name + ".json"), encoding="utf-8") as source:
        text = source.read()
    return text, json.loads(text)


def _is_shell(spec):
    return spec["process"]["args"] in (["sh"], ["/bin/sh"])


def _root_owner(spec):
    """Where the container's root lies outside, in a user namespace."""
    linux = spec["linux"]
    if not any(space["type"] == "user" for space in linux.get("namespaces", [])):
        return None
    owner = [next((each["hostID"] for each in linux.get(kind, []) if each["containerID"] == 0), 0)
             for kind in ("uidMappings", "gidMappings")]
    return f"{owner[0]}:{owner[1]}"


def _prepare(name, text, spec, complete):
    """A shell script that makes the bundle: the spec as it is, and a root where it says."""
    bundle = f"{WORK}/specs/{name}"
    root = os.path.join(bundle, spec["root"]["path"])
    lines = [". /tests/lib.sh; make_rootfs", f"rm -rf {bundle}; mkdir -p {bundle} {shlex.quote(os.path.dirname(root))}",
             f"cat >{bundle}/config.json <<'END_OF_SPEC'\n{text}\nEND_OF_SPEC", f"root={shlex.quote(root)}",
             'rm -rf "$root"; cp -a $rootfs "$root"; made=$root']
    if _root_owner(spec):
        lines.append(f'chown -R {_root_owner(spec)} "$root"')
    if complete:
        for mount in spec.get("mounts", []):
            source = mount.get("source", "")
            if not source.startswith("/") or not {"bind", "rbind"} & set(mount.get("options", [])):
                continue
            source, folder = shlex.quote(source), shlex.quote(os.path.dirname(source))
            make = f": >{source}" if mount["destination"] in FILES else f"mkdir -p {source}"
            lines.append(f"[ -e {source} ] || {{ mkdir -p {folder}; {make}; made=\"$made \"{source}; }}")
        lines += _make_namespaces(spec)
    return "\n".join(lines) + "\n"


def _make_namespaces(spec):
    """What a path of a namespace names: a file of the network's, or a process (of a CRI's sandbox) by its number."""
    lines, processes = [], set()
    for space in spec["linux"].get("namespaces", []):
        path = space.get("path", "")
        if path.startswith("/proc/"):
            processes.add(path.split("/")[2])
        elif path:
            lines.append(f"netns={shlex.quote(path)}; mkdir -p $(dirname $netns); : >$netns; "
                         "unshare -n mount --bind /proc/self/ns/net $netns")
    for process in processes:
        lines.append(f"tries=20; until [ $tries = 0 ] || {{ echo {int(process) - 1} >/proc/sys/kernel/ns_last_pid; "
                     f"unshare -n -i -u sleep 1000 </dev/null >/dev/null 2>&1 & sandbox=$!; [ $sandbox = {process} ]; }}; do\n"
                     "kill -KILL $sandbox; tries=$((tries - 1)); done; usleep 300000")
    return lines


def _clean():
    return ('kill -KILL "${sandbox:-}" 2>/dev/null\numount "${netns:-/nothing}" 2>/dev/null\n'
            "rm -rf $made $bundle ${netns:-}\n")


def _run(guest, name, complete):
    text, spec = _spec(name)
    bundle = f"{WORK}/specs/{name}"
    script = _prepare(name, text, spec, complete)
    if _is_shell(spec):
        script += f"printf %s {shlex.quote(SCRIPT)} | berthctl run -b {bundle} box; status=$?\n"
    else:  # what sleeps: the same is asked of a process beside it
        script += (f"printf %s {shlex.quote(SCRIPT)} >{bundle}/script; berthctl run -d -b {bundle} box && "
                   f"{{ berthctl exec box sh <{bundle}/script; }}; status=$?\nberthctl delete -f box 2>/dev/null\n")
    return spec, guest.sh(script + f"bundle={bundle}\n" + _clean() + "exit $status", 100)


def _check(spec, out):
    """What the container saw against its spec."""
    seen, process, linux = Probe(out), spec["process"], spec["linux"]
    spaces = {space["type"] for space in linux["namespaces"]}
    yes = {True: "yes", False: "no"}
    user = process.get("user", {})
    expect_eq("uid", seen.one("uid"), str(user.get("uid", 0)))
    expect_eq("gid", seen.one("gid"), str(user.get("gid", 0)))
    if not user.get("uid"):
        expect_eq("writable root", seen.one("writable"), yes[not spec["root"].get("readonly", False)])
        expect_eq("capabilities", seen.one("caps"), mask_of(process.get("capabilities", {}).get("effective", [])))
    expect_eq("bounding set", seen.one("bounding"), mask_of(process.get("capabilities", {}).get("bounding", [])))
    expect_eq("terminal", seen.one("terminal"), yes[process.get("terminal", False)])
    expect_eq("no_new_privs", seen.one("new_privs"), "1" if process.get("noNewPrivileges") else "0")
    expect_eq("filters", seen.one("seccomp"), str(1 + ("seccomp" in linux)))
    expect_eq("cwd", seen.one("cwd"), process.get("cwd", "/"))
    mapping = next((each for each in linux.get("uidMappings", []) if each["containerID"] == 0), None)
    if "user" in spaces:
        # Without any, berthctl maps the caller and what /etc/subuid gives to it: nothing, here.
        expect_eq("user namespace", seen.one("map"), f"0 {mapping['hostID']} {mapping['size']}" if mapping else "0 0 1")
    if "hostname" in spec:
        expect_eq("host name", seen.one("hostname"), spec["hostname"])
    if "pid" in spaces and _is_shell(spec):
        expect_eq("pid", seen.one("pid"), "1")
    mounts = set(seen.all("mount"))
    missing = [mount["destination"] for mount in spec["mounts"]
               if (os.path.normpath(mount["destination"]).replace("/var/run/", "/run/")) not in mounts]
    expect_eq("mounts that are not there", missing, [])


def _judge(guest, name, wanted, complete):
    """None, or what is wrong."""
    spec, done = _run(guest, name, complete)
    if wanted is not None:
        if done.status == 0 or done.status == 7:
            return f"runs, instead of {wanted!r}"
        return None if done.err == f'berthctl: create "box": {wanted}\n' else f"{done!r} instead of {wanted!r}"
    if done.status != 7:
        return repr(done)
    try:
        _check(spec, done.out)
    except Failure as failure:
        return str(failure)
    return None


def _all(guest, complete, names):
    outcomes = _outcomes()
    there = {name[:-5] for name in os.listdir(SPECS) if name.endswith(".json")}
    expect_eq("specs and outcomes", sorted(outcomes), sorted(there))
    wrong = []
    for name in names(outcomes):
        if os.environ.get("BERTH_SPECS", "") not in name:
            continue  # a person looks at one of them
        why = _judge(guest, name, outcomes[name][complete], complete)
        if why:
            wrong.append(f"{name}: {why}")
            print(f"    {name}: {why}", flush=True)
    if wrong:
        raise Failure(f"{len(wrong)} of {len(outcomes)}: " + " | ".join(wrong)[:2000])


def case_each_runs_or_is_refused(guest):
    _all(guest, 1, list)


def long_what_is_not_there_is_named(guest):
    """Only the root file system is there: the specs that name more are refused for it."""
    _all(guest, 0, lambda outcomes: [name for name, (alone, completed) in outcomes.items() if alone != completed])
