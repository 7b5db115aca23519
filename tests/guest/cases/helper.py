# berth --helper: the keeper under another init, in a guest whose PID 1 is a busybox script (data/other-init).
# limit: 240
import time

from boxes import WORK, changed, script, spec
from harness import Failure
from host import expect

# Every cgroup that is not the helper's own, with its limits, switches and processes; and everything that is mounted.
OTHERS = r"""
find /sys/fs/cgroup -type d ! -path '/sys/fs/cgroup/berth*' | sort | while read -r folder; do
    echo "$folder" $(cat $folder/cgroup.subtree_control $folder/memory.max $folder/pids.max $folder/cgroup.type 2>/dev/null)
done
cat /sys/fs/cgroup/system.slice/cgroup.procs
cut -d' ' -f5- /proc/self/mountinfo
cat /proc/sys/kernel/core_pattern /proc/sys/fs/protected_fifos /proc/sys/kernel/dmesg_restrict
"""
PROCESSES = r"""
. /tests/lib.sh
has_process() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -q "^$1"; }
"""
START = PROCESSES + r"""
start() {
    setsid /init --helper "$@" >/run/helper.log 2>&1 &
    helper=$!
    echo $helper >/run/helper.pid
    wait_for 40 test -S /run/berth/berth.sock || fail "no local socket: $(tail -n 3 /run/helper.log)"
}
"""


def own_under_another_init(boot):
    with boot("--append", "rdinit=/tests/data/other-init") as guest:
        guest.wait_ready()
        expect(guest.check("cat /proc/1/comm").strip() in ("other-init", "sh", "busybox"), "the keeper is PID 1 after all")
        expect(guest.sh("berthctl info").status != 0, "an agent serves already")
        before = guest.check(OTHERS)
        # The shells of the cases are killed with their sessions: the helper gets one of its own.
        guest.check(START + "start")
        _serves(guest)
        after = guest.check(OTHERS)
        expect(after == before, f"it changed what is not its own:\n{_difference(before, after)}")
        _devices_and_powers_are_the_machines(guest)
        _without_a_mount_namespace(guest)
        _a_second_one_is_refused(guest)
        _crashes(guest)
        _sigterm(guest, before)
        _killed_helper_leaves_nothing_for_long(guest)
        _flags(guest)
        _cgroups_from_the_mount_point(guest)


def _difference(before, after):
    old, new = before.splitlines(), after.splitlines()
    return "; ".join([f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old])


def _serves(guest):
    out = guest.check(". /tests/lib.sh; b=$(bundle one '[\"sh\",\"-c\",\"read -r l; echo $l from $(hostname); exit 6\"]'); "
                      "status=0; echo hello | berthctl run --bundle $b one || status=$?; echo status $status")
    expect(out.startswith("hello from ") and out.endswith("status 6\n"), f"berthctl run: {out!r}")
    guest.check(". /tests/lib.sh; b=$(bundle two '[\"sleep\",\"100000\"]'); berthctl run --detach --bundle $b two >/dev/null")
    expect(guest.check("berthctl exec two cat /proc/1/comm").strip() == "sleep", "berthctl exec")
    pids = guest.check("cat /sys/fs/cgroup/berth/two/cgroup.procs").split()
    expect(len(pids) == 1, f"the container's cgroup has {pids}")
    parent = guest.check(f"awk '/^PPid/ {{print $2}}' /proc/{pids[0]}/status").strip()
    expect(parent == guest.check("cat /run/helper.pid").strip(), "its parent is not the helper")
    done = guest.sh("BERTH_ADDRESS=vsock://1:1023 BERTH_SECRET_FILE=/tests/secret timeout 10 berthctl info")
    expect(done.status != 0, "vsock is served without a secret")


def _devices_and_powers_are_the_machines(guest):
    """Root of this machine asks, and could make any node itself: numbers are not looked up, execs may have more."""
    guest.check(r"""
    . /tests/lib.sh
    b=$(bundle nodes '["sleep","100000"]')
    devices='{"path": "/dev/block", "type": "b", "major": 8, "minor": 77}, {"path": "/dev/none", "type": "c", "major": 10, "minor": 666}'
    sed -i 's|"linux": {|"linux": {"devices": ['"$devices"'],|' $b/config.json
    berthctl run --detach --bundle $b nodes >/dev/null || fail "nodes that this machine has no device for"
    [ "$(berthctl exec nodes stat -c '%F %t:%T' /dev/block)" = "block special file 8:4d" ] || fail "the block node"
    [ "$(berthctl exec nodes stat -c '%F %t:%T' /dev/none)" = "character special file a:29a" ] || fail "the character node"
    berthctl exec nodes sh -c '! cat /dev/block' 2>/dev/null || fail "no rule lets it open the block node"
    had=$(berthctl exec nodes awk '/^CapBnd/ {print $2}' /proc/self/status)
    got=$(berthctl exec --cap CAP_SYS_TIME nodes awk '/^CapBnd/ {print $2}' /proc/self/status)
    [ $((0x$got & ~0x$had)) = $((1 << 25)) ] || fail "CapBnd of an exec with CAP_SYS_TIME: $had, $got"
    berthctl delete --force nodes || fail delete
    mkfifo /run/no-namespace
    for path in /proc/1/ns/mnt /proc/self/ns/mnt /run/no-namespace /run/absent; do
        b=$(bundle joins '["true"]')
        sed -i 's|"type": *"mount"|"type": "mount", "path": "'$path'"|' $b/config.json
        grep -q "\"path\": \"$path\"" $b/config.json || fail "the bundle has no mount namespace to replace"
        status=0
        why=$(timeout 20 berthctl run --bundle $b joins 2>&1) || status=$?
        [ $status = 1 ] || fail "joining $path: status $status, $why"
        case $path in
        /proc/*) echo "$why" | grep -q "is this machine's own mount namespace" || fail "joining $path: $why" ;;
        *) echo "$why" | grep -q "$path" || fail "joining $path: $why" ;;
        esac
    done
    """)


def _without_a_mount_namespace(guest):
    """In the machine's, with a root of its own: nothing that it mounts is seen outside, and an exec finds it."""
    box = changed(spec("sleep 100000"), linux__maskedPaths=[], linux__readonlyPaths=[],
                  linux__namespaces=[row for row in spec()["linux"]["namespaces"] if row["type"] != "mount"])
    box["mounts"].append({"destination": "/own", "type": "tmpfs", "source": "of-the-container"})
    bare = changed(box, linux__namespaces=[], process__args=["sh", "-c", "readlink /proc/self/ns/mnt; ls -d /own"])
    bare.pop("hostname", None)
    out = guest.check(script(f"""
        before=$(cut -d' ' -f5- /proc/self/mountinfo)
        berthctl run --detach -b {WORK}/box box >/dev/null || fail run
        look() {{ berthctl exec box sh -c 'readlink /proc/self/ns/mnt; grep -c . /etc/passwd; ls -d /own /proc/1; pwd; cat /proc/1/comm'; }}
        pid=$(cat /sys/fs/cgroup/berth/box/cgroup.procs /sys/fs/cgroup/berth/box/berth.inner/cgroup.procs 2>/dev/null | head -n 1)
        [ "$(readlink /proc/$pid/ns/mnt)" = "$(readlink /proc/self/ns/mnt)" ] || fail "not in the machine's mount namespace"
        [ "$(cut -d' ' -f5- /proc/self/mountinfo)" = "$before" ] || fail "its mounts are seen outside"
        one=$(look) || fail "exec: $one"
        for agent in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do
            case $(cat /proc/$agent/cmdline) in berth-agent*) kill -KILL $agent ;; esac
        done
        again() {{ [ "$(look 2>/dev/null)" = "$one" ]; }}
        wait_for 30 again || fail "after a restart: $(look 2>&1), not $one"
        berthctl exec box mount -t tmpfs x /own 2>/dev/null && fail "it mounts in the machine's namespace"
        berthctl delete --force box || fail delete
        [ "$(cut -d' ' -f5- /proc/self/mountinfo)" = "$before" ] || fail "mounts are left"
        echo "$one"; readlink /proc/self/ns/mnt; berthctl run --no-stdin -b {WORK}/bare bare
        """, box=box, bare=bare), 120)
    lines = out.splitlines()
    expect(lines[0].startswith("mnt:[") and lines[2:6] == ["/own", "/proc/1", "/", "sleep"], f"exec: {lines}")
    expect(lines[0] == lines[6] == lines[7] and lines[8] == "/own", f"namespaces: {lines}")


def _a_second_one_is_refused(guest):
    for flags in ("", "--run-dir=/run/berth2"):
        done = guest.sh(f"timeout 20 /init --helper {flags}")
        expect(done.status == 1, f"--helper {flags} beside another: status {done.status}: {done.err!r}")
        expect("another" in done.err, f"--helper {flags}: {done.err!r}")
    expect(guest.check("berthctl state two").lower().count("running") == 1, "the first one's container")


def _crashes(guest):
    guest.check("""
    . /tests/lib.sh
    agent() { for pid in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do case $(cat /proc/$pid/cmdline) in berth-agent*) echo $pid ;; esac; done; }
    other() { pid=$(agent); [ -n "$pid" ] && [ "$pid" != "$old" ] && berthctl info >/dev/null 2>&1; }
    for how in "kill -KILL" "hup"; do
        old=$(agent)
        if [ "$how" = hup ]; then kill -HUP $(cat /run/helper.pid); else $how $old; fi
        wait_for 30 other || fail "no new agent after $how"
    done
    berthctl exec two true || fail "exec after it"
    """)


def _sigterm(guest, before):
    """An orderly end: containers, cgroups and sockets are gone, the rest is as it was."""
    guest.check(PROCESSES + """
    has_process berth-agent && has_process berth-spawner || fail "agent and spawner are not found by their names"
    kill -TERM $(cat /run/helper.pid)
    gone() { [ ! -d /proc/$(cat /run/helper.pid) ] || grep -q '^State:.Z' /proc/$(cat /run/helper.pid)/status; }
    wait_for 30 gone || fail "it does not end: $(tail -n 3 /run/helper.log)"
    ! ls -d /sys/fs/cgroup/berth* 2>/dev/null || fail "cgroups are left"
    [ ! -e /run/berth/berth.sock ] || fail "the socket is left"
    ! has_process berth-agent && ! has_process berth-spawner || fail "agent or spawner are left"
    grep -q helper.exit /run/helper.log || fail "$(tail -n 3 /run/helper.log)"
    """)
    after = guest.check(OTHERS)
    expect(after == before, f"its end changed what is not its own:\n{_difference(before, after)}")


def _killed_helper_leaves_nothing_for_long(guest):
    """SIGKILL: agent and spawner end with it; its containers are taken away by the next one."""
    guest.check(START + """
    start
    b=$(bundle three '["sleep","100000"]')
    berthctl run --detach --bundle $b three >/dev/null || fail run
    kill -KILL $helper
    gone() { ! has_process berth-agent && ! has_process berth-spawner; }
    wait_for 20 gone || fail "agent or spawner outlive it"
    rm -f /run/berth/berth.sock
    start
    wait_for 10 berthctl info >/dev/null || fail "the next one does not serve"
    [ ! -d /sys/fs/cgroup/berth/three ] || fail "the killed one's container is still there"
    [ -z "$(berthctl list | grep three)" ] || fail "it is still listed"
    """)
    # Shutdown ends the helper, and only it.
    guest.check("""
    . /tests/lib.sh
    kill -INT $(cat /run/helper.pid)
    gone() { ! ls -d /sys/fs/cgroup/berth* 2>/dev/null; }
    wait_for 30 gone || fail "cgroups are left after SIGINT"
    """)


def _flags(guest):
    for flags, status, words in (("--nonsense", 2, "nonsense"), ("--port=0", 2, "port"), ("--secret-file=/nonexistent", 1, "/nonexistent"),
                                 ("--cgroup-parent=/nonexistent", 1, "/nonexistent")):
        done = guest.sh(f"timeout 20 /init --helper {flags}")
        expect(done.status == status and words in done.err, f"--helper {flags}: status {done.status}, {done.err!r}")
        expect(len(done.err.strip().splitlines()) == 1, f"--helper {flags}: not one line: {done.err!r}")
    expect(guest.sh("ls -d /sys/fs/cgroup/berth*").status != 0, "a refused one left cgroups")
    # In a part of the tree that was handed to it, with the handshake on a unix socket.
    guest.check(START + """
    mkdir -p /sys/fs/cgroup/delegated
    start --cgroup-parent=/delegated --secret-file=/tests/secret --listen=unix:///run/berth/listen.sock
    wait_for 20 test -S /run/berth/listen.sock || fail "no unix socket: $(tail -n 3 /run/helper.log)"
    BERTH_ADDRESS=unix:///run/berth/listen.sock BERTH_SECRET_FILE=/tests/secret berthctl info >/dev/null || fail "the handshake on it"
    head -c 32 /dev/urandom >/run/wrong
    ! BERTH_ADDRESS=unix:///run/berth/listen.sock BERTH_SECRET_FILE=/run/wrong berthctl info 2>/dev/null || fail "a wrong secret"
    b=$(bundle four '["true"]')
    berthctl run --bundle $b four || fail "run below --cgroup-parent"
    [ -d /sys/fs/cgroup/delegated/berth ] && [ ! -d /sys/fs/cgroup/berth ] || fail "not below --cgroup-parent"
    kill -TERM $helper
    gone() { [ -z "$(find /sys/fs/cgroup/delegated -mindepth 1 -type d)" ]; }
    wait_for 30 gone || fail "cgroups are left below --cgroup-parent"
    rmdir /sys/fs/cgroup/delegated
    """)


def _cgroups_from_the_mount_point(guest):
    """Root's containers: where the runtime spec has an absolute cgroupsPath, among other people's cgroups."""
    guest.check(START + r"""
    mkdir /sys/fs/cgroup/theirs
    start --secret-file=/tests/secret --listen=unix:///run/berth/listen.sock
    at() {
        bundle $1 '["sleep","100000"]' 's|"linux": {|"linux": {"cgroupsPath": "'$2'",|' 's|"resources": {|"resources": {"pids": {"limit": 77},|'
    }
    detached() { berthctl run --detach --bundle $(at $1 $2) $1 >/dev/null; }
    detached deep /theirs/a/b/deep || fail "run"
    web=/sys/fs/cgroup/theirs/a/b/deep
    [ "$(cat $web/pids.max)" = 77 ] && [ "$(wc -l <$web/cgroup.procs)" = 1 ] || fail "not in $web"
    [ -z "$(find /sys/fs/cgroup/berth -mindepth 1 -type d)" ] || fail "something below berth"
    detached relative theirs/a && [ -d /sys/fs/cgroup/berth/theirs/a ] || fail "a relative path left its part"
    # A host knows the machine's cgroups no more than a guest's: its containers lie below the helper's part.
    hosts() { BERTH_ADDRESS=unix:///run/berth/listen.sock BERTH_SECRET_FILE=/tests/secret berthctl "$@"; }
    hosts run --detach --bundle $(at hosts /theirs/hosts) hosts >/dev/null || fail "run as a host"
    [ -d /sys/fs/cgroup/berth/theirs/hosts ] && [ ! -d /sys/fs/cgroup/theirs/hosts ] || fail "a host's container left its part"
    hosts delete --force hosts || fail "delete as a host"
    for path in /berth /berth/x /berth.agent /berth.spawner/y; do
        said=$(detached own $path 2>&1) && fail "$path was taken"
        case $said in *"is the agent's own"*) ;; *) fail "$path: $said" ;; esac
    done
    for path in /theirs/a /theirs/a/b/deep /theirs/a/b/deep/er; do ! detached other $path 2>/dev/null || fail "$path was taken"; done
    for pid in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do
        case $(cat /proc/$pid/cmdline) in berth-agent*) kill -KILL $pid ;; esac
    done
    wait_for 30 berthctl exec deep true || fail "lost with the agent"
    berthctl delete --force deep || fail "delete"
    [ -z "$(find /sys/fs/cgroup/theirs -mindepth 1 -type d)" ] || fail "left: $(find /sys/fs/cgroup/theirs)"
    [ -d /sys/fs/cgroup/theirs ] || fail "a cgroup that others made was removed"
    ! detached refused /theirs/a/../b 2>/dev/null || fail "dots were taken"
    # Who has processes passes no controllers on; what somebody froze, or is in, is not taken.
    mkdir /sys/fs/cgroup/busy /sys/fs/cgroup/theirs/cold
    sleep 100000 & sleeper=$!
    echo $sleeper >/sys/fs/cgroup/busy/cgroup.procs
    echo 1 >/sys/fs/cgroup/theirs/cold/cgroup.freeze
    for path in /busy /busy/a/b /theirs/cold; do
        said=$(detached refused $path 2>&1) && fail "$path was taken"
        case $said in *cgroup.subtree_control=*|*"not empty"*|*frozen*) ;; *) fail "$path: $said" ;; esac
    done
    [ -z "$(cat /sys/fs/cgroup/busy/cgroup.subtree_control)" ] || fail "some controllers are on: $(cat /sys/fs/cgroup/busy/cgroup.subtree_control)"
    [ -z "$(find /sys/fs/cgroup/busy -mindepth 1 -type d)" ] || fail "left: $(find /sys/fs/cgroup/busy)"
    [ -z "$(berthctl list | grep refused)" ] && [ "$(cat /sys/fs/cgroup/theirs/cold/cgroup.freeze)" = 1 ] || fail "something of it is left"
    kill $sleeper; wait $sleeper || true
    rmdir /sys/fs/cgroup/busy /sys/fs/cgroup/theirs/cold
    detached deep /theirs/a/deep && detached top /top || fail "run again"
    kill -KILL $helper
    ended() { ! has_process berth-agent && ! has_process berth-spawner; }
    wait_for 20 ended || fail "agent or spawner outlive it"
    rm -f /run/berth/berth.sock
    start --cgroups-path=mount
    nothing() { [ -z "$(find /sys/fs/cgroup/theirs /sys/fs/cgroup/top -mindepth 1 -type d 2>/dev/null)" ] && [ ! -d /sys/fs/cgroup/top ]; }
    wait_for 10 berthctl info >/dev/null || fail "the next one does not serve"
    nothing || fail "a killed helper's containers live on"
    detached deep /theirs/a/deep && detached top /top || fail "run after that"
    kill -TERM $helper
    gone() { nothing && ! ls -d /sys/fs/cgroup/berth* 2>/dev/null; }
    wait_for 30 gone || fail "left after its end: $(find /sys/fs/cgroup -type d)"
    rmdir /sys/fs/cgroup/theirs
    """)
