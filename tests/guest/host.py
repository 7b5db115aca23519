"""What cases that drive the agent from the host share: the shim of tests/interop, and the agent's processes."""

import hashlib
import os
import sys
import time

from harness import Failure

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "interop"))
import berth_client as berth  # noqa: E402,F401
import shim as shims  # noqa: E402

AGENT = """
agent_pid() {
    for pid in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do
        case $(cat /proc/$pid/cmdline 2>/dev/null) in berth-agent*) echo $pid ;; esac
    done
}
spawner_pid() { head -n 1 /sys/fs/cgroup/berth.spawner/cgroup.procs; }
other_agent_than() {
    pid=$(agent_pid)
    [ -n "$pid" ] && [ "$pid" != "$1" ] && berthctl info >/dev/null 2>&1
}
"""


def expect(condition, text):
    if not condition:
        raise Failure(text)


def expect_error(code, call, *arguments, part=""):
    """The error's message, of a call that must fail with `code`."""
    try:
        call(*arguments)
    except shims.CallError as error:
        got, text = error.args
        expect(got == code, f"status {got} ({text}) instead of {code}")
        expect(text and "\n" not in text, f"{text!r} is no line of text")
        expect(part in text, f"{part!r} is not in {text!r}")
        return text
    raise Failure(f"it was accepted instead of refused with status {code}")


# /data of the containers: 4 MiB without a repetition, that the guest need not send here first.
DATA = b"".join(b"%d\n" % number for number in range(1, 620_000))[:4 << 20]


def shim_of(guest):
    """The shim, with a root file system for containers at /run/rootfs."""
    # A case that failed may have left a killer of agents behind (crash.py).
    guest.check(". /tests/lib.sh; mkdir -p $work; touch $work/killer-enough; make_rootfs; [ -e $rootfs/data ] || seq 1 619999 | head -c 4194304 >$rootfs/data")
    for client in list(shims.Client.every):  # of the cases before
        client.close()
    shim = shims.of_guest(guest)
    for container in shim.list():  # of a case that failed
        shim.remove(container)
    return shim


def agent_pid(guest):
    return int(guest.check(AGENT + "agent_pid"))


def restart(guest, how="kill -KILL $(agent_pid)"):
    """Ends the agent and waits until another one serves."""
    guest.check(f"{AGENT}. /tests/lib.sh; old=$(agent_pid); {how}; wait_for 30 other_agent_than $old || fail 'no new agent serves'", 60)


def calm(guest):
    """A restart on purpose, which takes earlier crashes back."""
    restart(guest, "kill -HUP 1")


def left_over(guest):
    """What containers left in the guest: cgroups, state, bundles, processes. Waits for what is on its way out."""
    script = ("find /sys/fs/cgroup/berth -mindepth 1 -type d; find /run/berth/state /run/berth/bundles -mindepth 1; "
              "cat /sys/fs/cgroup/berth/cgroup.procs; sed 's/^/spawner child /;1d' /sys/fs/cgroup/berth.spawner/cgroup.procs")
    deadline = time.monotonic() + 15
    while True:
        left = guest.check(script).split("\n")
        left = [line for line in left if line]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def expect_nothing_left(guest, shim):
    listed = shim.list()
    expect(not listed, f"containers are left: {sorted(listed)}")
    left = left_over(guest)
    expect(not left, f"left behind: {left[:5]}")


def counts(guest):
    """(descriptors of the agent, of the keeper, anonymous KiB of the agent: not its event log, which fills up to its bound)."""
    out = guest.check(AGENT + "pid=$(agent_pid); ls /proc/$pid/fd | wc -l; ls /proc/1/fd | wc -l; "
                      "awk '/^Anonymous:/ {print $2}' /proc/$pid/smaps_rollup")
    return tuple(int(word) for word in out.split())


def wait_for(condition, limit_s, what):
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"{what}: not within {limit_s} s")
        time.sleep(0.05)


def sha256(data):
    return hashlib.sha256(data).hexdigest()
