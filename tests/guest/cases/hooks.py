# Hooks: each kind at its moment, in its namespaces, with the state on stdin; timeouts and failures.
# suite: main
# limit: 240
import json

from boxes import WORK, changed, expect, expect_eq, script, spec

OUT = "/run/test/hooks"
KINDS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
RECORD = (f"cat >{OUT}/$0; readlink /proc/self/ns/mnt >{OUT}/$0.mnt; readlink /proc/self/ns/net >{OUT}/$0.net; pwd >{OUT}/$0.pwd; "
          f"readlink /proc/self/ns/pid >{OUT}/$0.pid; tr '\\0' ' ' </proc/self/environ >{OUT}/$0.env; "
          f"cat /proc/self/cgroup >{OUT}/$0.cgroup; echo $0 >>{OUT}/order; ls /proc/self/fd >{OUT}/$0.fds")


def recorder(kind):
    """Writes what it sees to OUT/KIND*; inside the container, OUT is a bind mount."""
    return {"path": "/bin/sh", "args": ["sh", "-c", RECORD, kind], "timeout": 60}


def with_hooks(script_text="sleep 100000", **hooks):
    value = spec(script_text, hooks=hooks, annotations={"com.example": 'quote " slash /'})
    value["mounts"].append({"destination": OUT, "type": "bind", "source": OUT, "options": ["rbind", "rw"]})
    return value


def case_every_kind_at_its_moment(guest):
    value = with_hooks(f"echo program >>{OUT}/order; sleep 100000", **{kind: [recorder(kind)] for kind in KINDS})
    out = guest.check(script(f"""
        rm -rf {OUT}; mkdir -p {OUT}
        snapshot hooks
        cd {WORK}/h
        berthctl create -b {WORK}/h h || fail create
        echo "@created $(tr '\\n' ' ' <{OUT}/order)"
        pid=$(berthctl --json state h | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
        echo "@pid $pid"
        echo "@mnt $(readlink /proc/$pid/ns/mnt)"
        echo "@net $(readlink /proc/$pid/ns/net)"
        echo "@pidns $(readlink /proc/$pid/ns/pid)"
        echo "@guestmnt $(readlink /proc/self/ns/mnt)"
        berthctl start h || fail start
        wait_for 10 grep -q program {OUT}/order || fail "the program does not run"
        echo "@started $(tr '\\n' ' ' <{OUT}/order)"
        berthctl delete -f h || fail delete
        echo "@deleted $(tr '\\n' ' ' <{OUT}/order)"
        for kind in {' '.join(KINDS)}; do
            echo "@state.$kind $(cat {OUT}/$kind)"
            for what in mnt net pid pwd env cgroup fds; do echo "@$kind.$what $(tr '\\n' ' ' <{OUT}/$kind.$what)"; done
        done
        expect_unchanged hooks
        """, h=value))
    seen = dict(line[1:].split(" ", 1) for line in out.splitlines() if line.startswith("@"))
    seen = {key: text.strip() for key, text in seen.items()}
    expect_eq("after create", seen["created"], "prestart createRuntime createContainer")
    started = seen["started"].split(" ")
    expect_eq("before the program", started[:4], ["prestart", "createRuntime", "createContainer", "startContainer"])
    expect_eq("after start", sorted(started[4:]), ["poststart", "program"])
    expect_eq("after delete", seen["deleted"].split(" ")[-1], "poststop")
    for kind in KINDS:
        state = json.loads(seen["state." + kind])
        inside = kind in ("createContainer", "startContainer")
        wanted = {"prestart": "created", "createRuntime": "created", "createContainer": "created",
                  "startContainer": "created", "poststart": "running", "poststop": "stopped"}[kind]
        expect_eq(f"{kind}: status", state["status"], wanted)
        expect_eq(f"{kind}: id", state["id"], "h")
        expect_eq(f"{kind}: bundle", state["bundle"], f"{WORK}/h")
        expect_eq(f"{kind}: annotations", state["annotations"], {"com.example": 'quote " slash /'})
        expect_eq(f"{kind}: ociVersion", state["ociVersion"], value["ociVersion"])
        expect_eq(f"{kind}: pid", state.get("pid", 0), 0 if kind == "poststop" else 1 if inside else int(seen["pid"]))
        expect("slash /" in seen["state." + kind], f"{kind}: a slash was escaped")
        expect_eq(f"{kind}: mount namespace", seen[kind + ".mnt"], seen["mnt"] if inside else seen["guestmnt"])
        expect_eq(f"{kind}: is in the network namespace", seen[kind + ".net"] == seen["net"], inside)
        expect_eq(f"{kind}: is in the pid namespace", seen[kind + ".pid"] == seen["pidns"], inside)
        expect_eq(f"{kind}: descriptors", seen[kind + ".fds"].split()[:3], ["0", "1", "2"])
        expect(len(seen[kind + ".fds"].split()) <= 4, f"{kind}: descriptors {seen[kind + '.fds']}")
        expect("berth" in seen[kind + ".cgroup"] or inside, f"{kind}: {seen[kind + '.cgroup']}")
        if kind != "startContainer":
            # As runc: inside, the container's root, so that "./lib" is the container's.
            expect_eq(f"{kind}: directory", seen[kind + ".pwd"], "/run/rootfs" if inside else f"{WORK}/h")
            expect("PATH=" in seen[kind + ".env"] and "TERM" not in seen[kind + ".env"], f"{kind}: {seen[kind + '.env']}")
    expect("TERM=xterm" in seen["startContainer.env"], "startContainer has the process's environment")


def case_failures(guest):
    """A hook that fails takes back the create or the start, names itself, and poststop runs."""
    poststop = [{"path": "/bin/sh", "args": ["sh", "-c", f"echo poststop >>{OUT}/order"]}]
    bad = [{"path": "/bin/true"}, {"path": "/bin/sh", "args": ["sh", "-c", "echo because >&2; exit 3"]}]
    specs = {kind: with_hooks("echo ran >" + OUT + "/ran", poststop=poststop, **{kind: bad}) for kind in KINDS[:5]}
    specs["poststart3"] = changed(specs["poststart"], ociVersion="1.3.0")
    specs["missing"] = with_hooks(createRuntime=[{"path": "/no/such"}])
    specs["slow"] = with_hooks(prestart=[{"path": "/bin/sleep", "args": ["sleep", "1000"], "timeout": 1}])
    specs["stop"] = with_hooks("exit 5", poststop=[{"path": "/bin/false"}] + poststop)
    body = f"rm -rf {OUT}; mkdir -p {OUT}\nsnapshot hooks\n"
    for name in specs:
        body += (f"rm -f {OUT}/*; berthctl run --no-stdin -b {WORK}/{name} b >$work/o 2>&1; echo \"@{name} $? $(tr '\\n' ' ' <$work/o)\"\n"
                 f"echo \"@{name}.order $(cat {OUT}/order 2>/dev/null)\"; echo \"@{name}.ran $(cat {OUT}/ran 2>/dev/null)\"\n"
                 "berthctl delete -f b 2>/dev/null\n")
    out = guest.check(script(body + "rm -rf " + OUT + "/*; expect_unchanged hooks\n", **specs), 200)
    seen = dict(line[1:].split(" ", 1) for line in out.splitlines() if line.startswith("@"))
    for kind in KINDS[:4] + ("poststart3",):
        name = kind.rstrip("3")
        expect(seen[kind].split(" ")[0] != "0", f"{kind}: {seen[kind]}")
        expect(f'error running {name} hook #1: "/bin/sh": exit status 3: "because"' in seen[kind], f"{kind}: {seen[kind]}")
        expect_eq(f"{kind}: poststop", seen[kind + ".order"], "poststop")
        if kind != "poststart3":
            expect_eq(f"{kind}: the program", seen[kind + ".ran"], "")
    expect_eq("poststart by spec 1.2 is a warning", seen["poststart"].split(" ")[0], "0")
    expect_eq("and the program ran", seen["poststart.ran"], "ran")
    expect('hooks.createRuntime[0]: error running createRuntime hook #0: "/no/such": ' in seen["missing"]
           and "ENOENT" in seen["missing"], seen["missing"])
    expect("timeout: not done after 1 s" in seen["slow"], seen["slow"])
    expect_eq("poststop's failure is a warning", seen["stop"].split(" ")[0], "5")
    expect_eq("and the next one runs", seen["stop.order"], "poststop")


def case_a_hook_changes_the_container(guest):
    """What createRuntime (by the init's pid) and createContainer mount is seen inside; the guest sees nothing of it."""
    mount = f"mkdir -p {OUT}/x; echo yes >{OUT}/x/file; mount -o bind {OUT}/x /run/rootfs/tmp"
    join = "pid=$(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/'); nsenter -t $pid -n ip link set lo down"
    value = with_hooks("cat /tmp/file; cat /sys/class/net/lo/flags",
                       createContainer=[{"path": "/bin/sh", "args": ["sh", "-c", mount]}],
                       createRuntime=[{"path": "/bin/sh", "args": ["sh", "-c", join]}])
    out = guest.check(script(f"mkdir -p {OUT}; berthctl run --no-stdin -b {WORK}/c c; ls /run/rootfs/tmp/file 2>&1 || true", c=value))
    expect(out.startswith("yes\n0x8\n"), f"inside: {out!r}")
    expect("No such file" in out, f"in the guest: {out!r}")


def case_a_hung_hook_blocks_nobody(guest):
    """While it hangs, others are served; killing the container, or the caller's deadline, ends it."""
    hang = [{"path": "/bin/sh", "args": ["sh", "-c", f"echo $$ >{OUT}/pid; exec sleep 100000"]}]
    guest.check(script(f"""
        rm -rf {OUT}; mkdir -p {OUT}
        snapshot hang
        berthctl create -b {WORK}/s s || fail create
        berthctl start s 2>$work/started & job=$!
        wait_for 20 test -s {OUT}/pid || fail "the hook does not run"
        expect_eq state "$(berthctl --json state s | sed -n 's/.*"status": *"\\([^"]*\\)".*/\\1/p')" created
        expect_status 0 berthctl run --no-stdin -b {WORK}/o o
        berthctl kill s KILL || fail kill
        wait $job && fail "start succeeded"
        berthctl delete -f s || fail delete
        pgrep -f 'sleep 100000' >/dev/null && fail "the hook is still there"
        rm {OUT}/pid
        expect_unchanged hang
        """, s=with_hooks(startContainer=hang), o=spec("exit 0")), 120)
