# The known ways out of a container: what each gets here. The programs are tests/guest/programs/escape.c.
# suite: main
# limit: 900
import re

from boxes import (ALL_CAPABILITIES, WORK, changed, check_run, expect, expect_eq, run, script, spec,
                   with_capabilities)
from harness import Failure

TOOL = {"destination": "/escape", "type": "bind", "source": "/tests/bin/escape", "options": ["bind", "ro"]}
# Programs and tools for a container, and a shell for what runs before and after it.
NO_VSOCK = ("socket", "socketpair", "socket-high", "x32", "i386-socketcall", "i386-socket", "i386-io_uring", "io_uring")


def _hostile(command, **changes):
    value = spec(command)
    value["mounts"].append(TOOL)
    return changed(value, **changes)


def _said(text):
    return dict(line.strip().rsplit(" ", 1) for line in text.splitlines() if " " in line.strip())


def _all_powers(value):
    """Every capability, no read-only or masked paths: root in the guest but for the namespaces."""
    value = with_capabilities(value, ALL_CAPABILITIES)
    return changed(value, linux__maskedPaths=[], linux__readonlyPaths=[], process__noNewPrivileges=False)


def _tree(guest):
    return guest.check("find / -xdev \\( -path /run/test -o -path /run/rootfs -o -path /run/berth -o -path /run/vm \\) "
                       "-prune -o -print | sort; cat /proc/self/mountinfo /proc/1/mountinfo")


def _needs_escape(guest):
    expect_eq("tests/guest/programs/escape is there", guest.sh("[ -x /tests/bin/escape ]").status, 0)


# ---- paths of the image ----

def case_proc_and_sys_that_are_symlinks(guest):
    """CVE-2019-16884, CVE-2019-19921: procfs and sysfs go onto real directories or nowhere."""
    _needs_escape(guest)
    before = _tree(guest)
    for name in ("proc", "sys"):
        done = run(guest, changed(spec("exit 0"), root__path="/run/test/image"), before=f"""
            rm -rf $work/image; mkdir -p $work/image; cp -a /run/rootfs/. $work/image
            rm -rf $work/image/{name}; mkdir $work/image/elsewhere; ln -s /elsewhere $work/image/{name}""")
        expect(done.status != 0, f"/{name} as a symlink was taken")
        expect(f"({name if name == 'proc' else 'sysfs'} on /{name})" in done.err and "ELOOP" in done.err, f"{name}: {done!r}")
    expect_eq("the guest", _tree(guest), before)


def case_dev_that_is_a_symlink(guest):
    """CVE-2026-41579: nothing is made where /dev leads to."""
    before = _tree(guest)
    value = changed(spec("ls -ld /dev; echo ran"), root__path="/run/test/image", root__readonly=False)
    value["mounts"] = [mount for mount in value["mounts"] if not mount["destination"].startswith("/dev")]
    done = run(guest, value, before="""
        rm -rf $work/image /target; mkdir -p $work/image; cp -a /run/rootfs/. $work/image
        rm -rf $work/image/dev; ln -s /target $work/image/dev""")
    # In root: the nodes, if any, lie in the image's own /target.
    expect("ran" in done.out or done.status != 0, f"{done!r}")
    expect_eq("the guest", _tree(guest), before)
    value = changed(spec("echo ran"), root__path="/run/test/image", root__readonly=False)
    done = run(guest, value, before="""
        rm -rf $work/image; mkdir -p $work/image; cp -a /run/rootfs/. $work/image
        rm -rf $work/image/dev; ln -s ../../../../../../../../target $work/image/dev""")
    expect_eq("the guest", _tree(guest), before)


def case_paths_that_lead_into_proc(guest):
    """CVE-2025-52881: a mount, node or link never lands on procfs, wherever the image's links lead."""
    image = """
        rm -rf $work/image; mkdir -p $work/image; cp -a /run/rootfs/. $work/image
        ln -s /proc/sys/kernel $work/image/trap; ln -s /proc/self/attr $work/image/attr"""
    value = changed(spec("exit 0"), root__path="/run/test/image")
    value["mounts"].append({"destination": "/trap/core_pattern", "type": "bind", "source": "/etc/passwd", "options": ["bind"]})
    done = run(guest, value, before=image)
    expect(done.status != 0 and "EPERM" in done.err and "/trap/core_pattern" in done.err, f"a bind onto procfs: {done!r}")
    value = changed(spec("exit 0"), root__path="/run/test/image", linux__devices=[
        {"path": "/trap/x", "type": "c", "major": 1, "minor": 3}])
    done = run(guest, value, before=image)
    expect(done.status != 0 and "EPERM" in done.err, f"a node in procfs: {done!r}")


def case_a_replaced_dev_null_masks_nothing_less(guest):
    """CVE-2025-31133: what masks is the guest's null device, whatever lies at the image's /dev/null."""
    value = _hostile("cat /proc/kcore | wc -c; echo x >/proc/kcore; [ -c /proc/kcore ] && stat -c %t:%T /proc/kcore",
                     root__path="/run/test/image", root__readonly=False)
    value["mounts"] = [mount for mount in value["mounts"] if not mount["destination"].startswith("/dev")]
    done = run(guest, value, before="""
        rm -rf $work/image; mkdir -p $work/image; cp -a /run/rootfs/. $work/image
        ln -s /proc/sys/kernel/core_pattern $work/image/dev/null""")
    if done.status == 0:
        expect_eq("what masks /proc/kcore", done.out.split()[-1], "1:3")
    else:
        expect("/dev/null" in done.err, f"{done!r}")
    expect_eq("core_pattern", guest.check("cat /proc/sys/kernel/core_pattern").strip(), "core")


def case_symlinks_that_change_while_mounts_are_made(guest):
    """CVE-2021-30465, CVE-2024-45310, CVE-2019-18837: a shared folder in which a directory and a symlink to / change places
    all the time, and containers whose mounts, nodes and files go below it."""
    _needs_escape(guest)
    before = _tree(guest)
    attacker = _hostile("/escape swap /shared/a /shared/b")
    attacker["mounts"].append({"destination": "/shared", "type": "bind", "source": "/run/test/shared", "options": ["bind"]})
    victim = spec("cat /proc/self/mountinfo; find / -xdev -name planted", root__readonly=False)
    victim["root"]["readonly"] = False
    victim["mounts"] += [
        {"destination": "/shared", "type": "bind", "source": "/run/test/shared", "options": ["rbind"]},
        {"destination": "/shared/a/x", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/shared/a/planted/dir", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/shared/a/planted-file", "type": "bind", "source": "/etc/passwd", "options": ["bind"]}]
    done = guest.sh(script(f"""
        rm -rf $work/shared; mkdir -p $work/shared/a; ln -s / $work/shared/b
        berthctl run -d -b {WORK}/attacker attacker || fail attacker
        good=0 bad=0
        for i in $(seq 25); do
            if berthctl run --no-stdin -b {WORK}/victim v$i >$work/v 2>$work/verr; then good=$((good + 1)); else
                bad=$((bad + 1)); grep -E 'mount|berthctl' $work/verr | tail -n 1 >>$work/swaps; fi
        done
        pid=$(berthctl --json state attacker | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
        grep -E 'planted|/x ' /proc/$pid/mountinfo && fail "a mount in the attacker"
        berthctl kill attacker KILL; berthctl wait attacker; berthctl delete -f attacker
        echo "good $good bad $bad"; sort $work/swaps 2>/dev/null | uniq -c | head -n 5; rm -f $work/swaps""",
                           attacker=attacker, victim=victim), 170)
    expect_eq(f"status ({done!r})", done.status, 0)
    said = re.search(r"good (\d+) bad (\d+)", done.out)
    expect(said and int(said[1]) + int(said[2]) == 25, f"{done!r}")
    expect(int(said[1]) > 0, f"not one container came up: {done.out}")
    # Whatever was made lies in the victim's root or the shared folder.
    expect_eq("the guest", _tree(guest), before)


def case_cwd_by_a_descriptor(guest):
    """CVE-2024-21626: no working directory outside of the root, neither by name nor by a link of the image."""
    for number in (3, 4, 5, 6, 7, 8, 9, 10, 12, 15):
        for cwd in (f"/proc/self/fd/{number}", f"/link{number}"):
            done = run(guest, changed(spec("cat cwd 2>/dev/null; pwd -P; ls | head -n 3"), process__cwd=cwd),
                       before=f"ln -sfn /proc/self/fd/{number} /run/rootfs/link{number}")
            expect(done.status != 0 and "process.cwd" in done.err, f"{cwd}: {done!r}")
    guest.check("rm /run/rootfs/link*")
    done = guest.sh(script("berthctl run -d -b $work/c c || exit 9\nfor n in 3 4 5 6 7 8 9 10 11 12; do "
                           "berthctl exec --no-stdin --cwd /proc/self/fd/$n c pwd && exit 8; done\n"
                           "berthctl delete -f c", c=changed(spec(), process__args=["sleep", "100000"])), 100)
    expect_eq(f"execs ({done!r})", done.status, 0)


# ---- descriptors, memory, programs ----

def case_no_descriptor_leaks(guest):
    """CVE-2016-9962: nothing above 2 is open in an init, an exec or with a terminal."""
    _needs_escape(guest)
    value = _hostile("", process__args=["/escape", "descriptors"])
    expect_eq("an init", check_run(guest, value), "done\n")
    expect_eq("with a terminal", check_run(guest, changed(value, process__terminal=True)).replace("\r", ""), "done\n")
    out = guest.check(script("berthctl run -d -b $work/c c; berthctl exec --no-stdin c /escape descriptors; "
                             "berthctl exec -t --no-stdin c /escape descriptors; berthctl delete -f c",
                             c=_hostile("", process__args=["sleep", "100000"])))
    expect_eq("two execs", out.replace("\r", ""), "done\ndone\n")


def case_execs_seen_by_a_tracer(guest):
    """CVE-2016-9962: a container with every capability looks at execs while they come in: nothing of the agent's memory, no
    descriptor that is not the exec's own."""
    _watch_execs(guest, 40)


def long_execs_seen_by_a_tracer_200(guest):
    """The same, for longer."""
    _watch_execs(guest, 200)


def _watch_execs(guest, count):
    _needs_escape(guest)
    value = _all_powers(_hostile("", process__args=["sleep", "100000"]))
    # What the agent holds for another container, and what it is called: the bytes to look for.
    canary = "canary-of-another-container-5d1f8a"
    other = spec(annotations={"org.example.note": canary})
    other["process"]["args"] = ["sleep", "100000"]
    done = guest.sh(script(f"""
        berthctl run -d -b {WORK}/other other || fail other
        berthctl run -d -b {WORK}/c c || fail c
        printf %s {canary} | hexdump -v -e '1/1 "%02x"' >$work/hex; echo >>$work/hex
        berthctl exec --exec-id watch c /escape observe 800 <$work/hex >$work/seen 2>&1 &
        wait_for 20 grep -q observing $work/seen || fail "$(cat $work/seen)"
        for i in $(seq {count}); do
            grep -q looks $work/seen && break
            berthctl exec --no-stdin c /bin/true >/dev/null 2>&1 || fail "exec $i"
        done
        echo "execs $i"
        berthctl kill --exec-id watch c TERM; wait; cat $work/seen
        # The check of the check: the agent itself does hold the bytes.
        agent=$(for p in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do grep -q agent /proc/$p/cmdline && echo $p; done)
        /tests/bin/escape scan <$work/hex | grep "/proc/$agent/mem" || echo "the agent holds none"
        berthctl delete -f c; berthctl delete -f other""", c=value, other=other), 880)
    expect_eq(f"status ({done!r})", done.status, 0)
    expect(f"execs {count}" in done.out, f"too few execs: {done.out[-300:]}")
    early = re.search(r"early (\d+) bytes (\d+)", done.out)
    expect(early and int(early[1]) > count // 8 and int(early[2]) > 0, f"too little was seen: {done.out}")
    expect("memory of" not in done.out and "writable" not in done.out, done.out)
    expect("/mem" in done.out, f"what is looked for is nowhere: {done.out[-300:]}")
    own = ("pipe", "socket", "/dev/null", "anon_inode:[pidfd]", "anon_inode:[eventfd]", "/memfd", "pid", "mnt", "net", "/proc",
           "/sys/fs/cgroup/berth/c", "/bin/", "/dev/pts", "/etc/passwd", "/")
    for line in re.findall(r"^descriptor (.*)$", done.out, re.M):
        expect(line == "/" or any(line.startswith(word) for word in own[:-1]), f"a descriptor of somebody else: {line}")


def case_the_agents_program_cannot_be_changed(guest):
    """CVE-2019-5736: /proc/PID/exe is never ours to write, and never runs as "#!/proc/self/exe"."""
    _needs_escape(guest)
    value = _all_powers(_hostile("", process__args=["/escape", "overwrite", "40"], root__readonly=False))
    done = guest.sh(script(f"""
        sum=$(sha256sum </proc/1/exe)
        printf '#!/proc/self/exe\\n' >/run/rootfs/bin/trap; chmod 755 /run/rootfs/bin/trap
        ln -sfn /proc/self/exe /run/rootfs/bin/self
        berthctl create -b {WORK}/c --stdout stream:// c || fail create
        berthctl start c; berthctl attach --no-stdin c >$work/tries &
        wait_for 20 grep -q overwriting $work/tries || fail "$(cat $work/tries)"
        for i in $(seq 25); do
            berthctl exec --no-stdin c /bin/trap >>$work/ran 2>&1 && fail "#!/proc/self/exe ran"
            berthctl exec --no-stdin c /bin/self >>$work/ran 2>&1 && fail "a link to /proc/self/exe ran"
            berthctl exec --no-stdin c /proc/self/exe >>$work/ran 2>&1 && fail "/proc/self/exe ran"
        done
        berthctl wait c; wait; cat $work/tries; sort $work/ran | uniq -c | head -n 6; rm -f $work/ran
        rm /run/rootfs/bin/trap /run/rootfs/bin/self; berthctl delete -f c
        [ "$sum" = "$(sha256sum </proc/1/exe)" ] || fail "PID 1's program changed" """, c=value), 170)
    expect_eq(f"status ({done!r})", done.status, 0)
    expect("opened" not in done.out, done.out)
    expect(int(re.search(r"tries (\d+)", done.out)[1]) > 100, done.out)


def case_the_secret_is_nowhere(guest):
    """Not in the kernel's command line, environments, memory that a container reads, or firmware tables; and the agent's is
    not to be had from the guest's own root by way of /proc."""
    _needs_escape(guest)
    # With every capability /proc/kcore would hold it, as all of the guest: the VM is that container's boundary.
    value = _hostile("", process__args=["/escape", "scan"])
    for powers in (value, _all_powers(value)):
        done = guest.sh(script(f"tr -d '\\n' </tests/secret >$work/hex; echo >>$work/hex\n"
                               f"berthctl run -b {WORK}/c c <$work/hex", c=powers), 100)
        expect_eq(f"status ({done!r})", done.status, 0)
        expect("found" not in done.out, done.out)
        expect("scanned" in done.out, done.out)
    for path in ("/sys/firmware",):
        out = check_run(guest, _all_powers(spec(f"ls -A {path} | wc -l")))
        expect_eq(f"entries in {path}", out.strip(), "0")


# ---- system calls ----

def case_no_vsock(guest):
    """AF_VSOCK by every way to say it, in an init, an exec, without a profile and with one that allows everything."""
    _needs_escape(guest)
    lax = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
           "syscalls": [{"names": ["socket", "io_uring_setup", "socketcall"], "action": "SCMP_ACT_ALLOW"}]}
    for value in (_hostile("/escape vsock"), changed(_hostile("/escape vsock"), linux__seccomp=lax),
                  _all_powers(_hostile("/escape vsock"))):
        said = _said(check_run(guest, value))
        for attempt in NO_VSOCK:
            expect(said.get(attempt, "EPERM") not in ("ok", None), f"{attempt}: {said}")
        expect_eq("io_uring", said["io_uring"], "ENOSYS")
        expect(said["inet"] == "ok" and said["unix"] == "ok", f"other sockets: {said}")
        if said.get("i386-getpid") == "ok":
            expect(said["i386-socket"] != "ok" and said["i386-socketcall"] != "ok", f"{said}")
        expect("x32" not in said or said["x32"] == "ENOSYS", f"{said}")
    out = guest.check(script("berthctl run -d -b $work/c c; berthctl exec --no-stdin c /escape vsock; berthctl delete -f c",
                             c=_hostile("", process__args=["sleep", "100000"])))
    said = _said(out)
    expect(all(said.get(attempt, "EPERM") != "ok" for attempt in NO_VSOCK), f"an exec: {said}")
    said = _said(check_run(guest, _hostile("/escape vsock", annotations={"berth.vsock": "allow"})))
    expect_eq("with berth.vsock=allow", said["socket"], "ok")


def case_the_guests_disks_and_memory(guest):
    """CVE-2020-2023 (Kata): with every capability a block device can be neither made nor opened, nor /dev/mem, /dev/kmsg."""
    _needs_escape(guest)
    disk = guest.check("cat /sys/class/block/*/dev | head -n 1 | tr ':' ' '").split() or ["254", "0"]
    value = _all_powers(_hostile(f"for n in 'b {disk[0]} {disk[1]}' 'c 1 1' 'c 1 11' 'c 10 237' 'b 7 0'; do echo @$n; "
                                 "/escape node /tmp/node $n; done; echo @null; /escape node /tmp/node c 1 3",
                                 root__readonly=False))
    out = check_run(guest, value)
    parts = {part.split("\n")[0]: _said(part) for part in out.split("@")[1:]}
    null = parts.pop("null")
    expect(null["read"] == "ok" and null["write"] == "ok", f"the null device: {null}")
    for name, said in parts.items():
        expect(said["read"] != "ok" and said["write"] != "ok", f"{name}: {said}")
        if name.startswith("b"):
            expect_eq(f"mknod {name}", said["mknod"], "EPERM")


def case_terminals(guest):
    """No TIOCSTI into a terminal of somebody else; an exec has a session of its own."""
    _needs_escape(guest)
    out = check_run(guest, _hostile("/escape terminal; cat /proc/self/stat | cut -d ' ' -f 6,7"))
    said = _said(out)
    expect(said["tiocsti"] != "ok" and said["tty"] != "ok", f"without a terminal: {said}")
    done = guest.sh(script("berthctl run -d -b $work/c c; berthctl exec --no-stdin -t c sh -c 'ps -o pid,sid,tty,args'; "
                           "berthctl exec --no-stdin c /escape terminal; berthctl delete -f c",
                           c=_hostile("", process__args=["sleep", "100000"])))
    expect(_said(done.out)["tiocsti"] != "ok", f"an exec: {done!r}")


def case_console_race(guest):
    """CVE-2025-52565: /dev/console is the terminal that the agent opened, not what lies at /dev/pts."""
    value = changed(spec("stat -c %t:%T /dev/console; tty; stat -c %t:%T $(tty); [ /dev/console -ef $(tty) ] && echo same"),
                    process__terminal=True)
    out = check_run(guest, value).replace("\r", "")
    lines = out.split("\n")
    expect(lines[0].startswith("88:") and lines[0] == lines[2], f"/dev/console: {out}")
    # /dev/pts is not devpts: an error, and nothing of the folder is touched.
    value["mounts"] = [mount for mount in value["mounts"] if mount["destination"] != "/dev/pts"]
    value["mounts"].append({"destination": "/dev/pts", "type": "bind", "source": "/run/test/pts", "options": ["bind"]})
    done = run(guest, value, before="rm -rf $work/pts; mkdir -p $work/pts; ln -s /etc/passwd $work/pts/0; : >$work/pts/ptmx")
    expect(done.status != 0 and "process.terminal" in done.err, f"a foreign /dev/pts: {done!r}")


def case_proc_of_the_default_spec(guest):
    """Of the tools' default specs: kcore, keys, sysrq, sys and kmsg give nothing and take nothing."""
    _needs_escape(guest)
    out = check_run(guest, spec("""
        for f in kcore keys timer_list; do echo "$f $(wc -c </proc/$f 2>&1 | tail -n 1)"; done
        for f in sysrq-trigger sys/kernel/core_pattern sys/vm/drop_caches irq/default_smp_affinity; do
            echo x 2>/dev/null >/proc/$f && echo "$f written"; done
        ls -A /sys/firmware | wc -l; dmesg 2>&1 | tail -n 1; echo 1 2>/dev/null >/sys/kernel/rcu_expedited && echo sys written
        mount -o remount,rw /proc/sys 2>/dev/null && echo remounted; umount /proc/sys 2>/dev/null && echo unmounted
        mount -t tmpfs t /tmp 2>/dev/null && echo mounted; mount -t cgroup c /tmp 2>/dev/null && echo v1; echo end"""))
    for line in ("kcore 0", "keys 0", "timer_list 0", "end"):
        expect(line in out.split("\n"), f"{line!r} is not in {out!r}")
    expect(" written" not in out and "mounted" not in out and "v1" not in out, out)


# ---- cgroups ----

def _with_cgroup_mount(value, *options):
    value["mounts"] = [mount for mount in value["mounts"] if mount["destination"] != "/sys/fs/cgroup"]
    value["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
                            "options": ["nosuid", "noexec", "nodev", *options]})
    return value


RAISE = """
for f in memory.max pids.max cpu.max memory.swap.max cgroup.max.descendants; do
    echo max 2>/dev/null >/sys/fs/cgroup/$f && echo "raised $f"; done
find /sys/fs/cgroup -name memory.max -exec sh -c 'echo max >$0 2>/dev/null' {} \\;
ls -d /sys/fs/cgroup/../other /sys/fs/cgroup/../berth.agent 2>/dev/null
echo 0 2>/dev/null >/sys/fs/cgroup/../cgroup.procs && echo "left upwards"
cat /proc/self/cgroup; grep cgroup /proc/self/mountinfo
"""


def case_limits_cannot_be_raised_from_inside(guest):
    """CVE-2023-25809: with a writable cgroup mount, in a cgroup namespace or not, with every capability or the default ones,
    the limits that were asked for hold, and no other cgroup is to be seen."""
    limits = {"memory": {"limit": 64 << 20}, "pids": {"limit": 30}, "cpu": {"quota": 50000, "period": 100000}}
    for namespaced in (False, True):
        for powerful in (False, True):
            value = spec(RAISE + "\n: >/tmp/done; sleep 100000", linux__resources=limits)
            value = changed(value, linux__resources=limits, root__readonly=False)
            if powerful:
                value = _all_powers(value)
            value = _with_cgroup_mount(value, "rw")
            if namespaced:
                value["linux"]["namespaces"].append({"type": "cgroup"})
            what = f"cgroup namespace {namespaced}, all capabilities {powerful}"
            done = guest.sh(script(f"""
                rm -f /run/rootfs/tmp/done
                berthctl create -b {WORK}/c --stdout stream:// c || fail create; berthctl start c
                berthctl attach --no-stdin c >$work/tries & wait_for 20 [ -e /run/rootfs/tmp/done ] || fail "$(cat $work/tries)"
                cd /sys/fs/cgroup/berth/c
                echo "@limits $(cat memory.max pids.max cpu.max | tr '\\n' ' ')"
                berthctl kill c KILL; berthctl wait c >/dev/null; wait; cat $work/tries; cd /; berthctl delete -f c""", c=value))
            expect_eq(f"{what}: status ({done!r})", done.status, 0)
            expect(f"@limits {64 << 20} 30 50000 100000 " in done.out, f"{what}: {done.out}")
            expect("left upwards" not in done.out, f"{what}: {done.out}")
            # Neither a sibling nor the agent's cgroup is to be reached through "..".
            expect("/../" not in done.out.replace("0::/../", "0::/"), f"{what}: {done.out}")


def case_the_device_program_stays(guest):
    """With every capability and a writable cgroup mount the program cannot be taken off."""
    _needs_escape(guest)
    disk = guest.check("cat /sys/class/block/*/dev | head -n 1 | tr ':' ' '").split() or ["254", "0"]
    for namespaced in (False, True):
        value = _all_powers(_hostile("/escape detach /sys/fs/cgroup; mkdir -p /sys/fs/cgroup/x; echo $$ >/sys/fs/cgroup/x/cgroup.procs;"
                                     f"/escape node /tmp/node b {disk[0]} {disk[1]}", root__readonly=False))
        value = _with_cgroup_mount(value, "rw")
        if namespaced:
            value["linux"]["namespaces"].append({"type": "cgroup"})
        done = run(guest, value)
        said = _said(done.out)
        expect(said.get("mknod") == "EPERM" and said.get("read") != "ok", f"cgroup namespace {namespaced}: {done!r}")
