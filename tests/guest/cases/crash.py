# What survives the end of the agent and of the spawner, at any moment.
# suite: crash
# limit: 300
import hashlib
import random
import threading
import time

from harness import Failure
from host import (AGENT, DATA, agent_pid, berth, calm, counts, expect, expect_error, expect_nothing_left, restart, sha256, shim_of,
                  shims, wait_for)

STREAM = "stream://"
SH = ["/bin/sh", "-c"]
BOTH = "kill -KILL $(agent_pid) $(spawner_pid)"


def _names(events, container):
    return [event.kind + (":" + event.exec_id if event.exec_id else "") for event in events if event.container == container]


def _expect_numbered(events, since=0):
    """Without a gap and without a duplicate."""
    for expected, event in enumerate(events, since + 1):
        expect(event.sequence == expected, f"event {event.sequence} where {expected} should be")


def case_running_containers_are_what_they_were(guest):
    shim = shim_of(guest)
    calm(guest)
    since = shim.info().get(14, 0)
    pids = {"a": shim.run("a", ["/bin/sleep", "100000"]), "b": shim.run("b", SH + ["read -r line; exit 42"], stdin=STREAM)}
    exec_pid = shim.run_exec("a", "e", SH + ["read -r line; exit 7"], stdin=STREAM)
    instance = shim.info()[2]
    for how in ("kill -KILL $(agent_pid)", "kill -KILL $(spawner_pid)", BOTH, "kill -HUP 1", "kill -SEGV $(agent_pid)"):
        restart(guest, how) if "agent_pid" in how or "HUP" in how else guest.check(f"{AGENT}{how}; sleep 1")
        expect(shim.info()[2] == instance, f"{how}: another instance id")
        for name, pid in pids.items():
            expect(shim.state(name) == (shims.RUNNING, pid, 0), f"{how}: {name} is {shim.state(name)}")
            expect(guest.check(f"cat /sys/fs/cgroup/berth/{name}/cgroup.procs").split()[0] == str(pid), f"{how}: the cgroup of {name}")
        expect(shim.state("a", "e") == (shims.RUNNING, exec_pid, 0), f"{how}: the exec is {shim.state('a', 'e')}")
        expect(shim.list()["a"][2] == ["e"], f"{how}: the list of execs")
        if "SEGV" not in how:
            calm(guest)
    # Everything works as before.
    shim.run_exec("a", "later", ["/bin/true"])
    expect(shim.wait("a", "later") == 0, "an exec after it")
    stdin = shim.stream("b", kind=shims.STDIN)
    stdin.write(b"go\n")
    expect(shim.wait("b") == 42, "the exit status of b")
    shim.stream("a", "e", shims.STDIN).write(b"go\n")
    expect(shim.wait("a", "e") == 7, "the exit status of the exec")
    shim.remove("a")
    shim.remove("b")
    calm(guest)
    events = shim.events(since)
    _expect_numbered(events, since)
    expect(_names(events, "b") == ["created", "started", "exited", "deleted"], f"b: {_names(events, 'b')}")
    reasons = [event.reason for event in events if event.kind == "agent_restarted"]
    expect(any("KILL" in reason or "9" in reason for reason in reasons) and any("SIGHUP" in reason for reason in reasons),
           f"the restarts are told as {reasons}")
    expect_nothing_left(guest, shim)


def case_created_containers_wait_behind_their_gate(guest):
    shim = shim_of(guest)
    calm(guest)
    since = shim.info().get(14, 0)
    pid = shim.create("gate", SH + ["echo started; exit 5"], stdout=STREAM)
    tty = shim.create("gate-tty", SH + ["stty size"], terminal=True, stdout=STREAM)
    for how in ("kill -KILL $(agent_pid)", BOTH):
        restart(guest, how)
        expect(shim.state("gate") == (shims.CREATED, pid, 0), f"{how}: {shim.state('gate')}")
        expect(shim.state("gate-tty") == (shims.CREATED, tty, 0), f"{how}: {shim.state('gate-tty')}")
    calm(guest)
    shim.resize("gate-tty", 91, 27)
    expect(shim.start("gate") == pid and shim.start("gate-tty") == tty, "another pid")
    expect(shim.wait("gate") == 5, "the exit status")
    expect(shim.stream("gate").read_all() == b"started\n", "its output")
    expect(shim.stream("gate-tty").read_all() == b"27 91\r\n", "the terminal's size")
    shim.wait("gate-tty")
    shim.remove("gate")
    # Killed while it waits, and deleted without ever having run.
    shim.create("gate", ["/bin/true"])
    restart(guest)
    shim.kill("gate")
    expect(shim.wait("gate") == 137, "killed behind its gate")
    shim.remove("gate")
    shim.remove("gate-tty")
    calm(guest)
    events = shim.events(since)
    _expect_numbered(events, since)
    expect(_names(events, "gate") == ["created", "started", "exited", "deleted", "created", "exited", "deleted"],
           f"gate: {_names(events, 'gate')}")
    expect_nothing_left(guest, shim)


def case_execs_that_were_added_and_not_started(guest):
    shim = shim_of(guest)
    calm(guest)
    shim.run("host", ["/bin/sleep", "100000"])
    shim.add_exec("host", "e", SH + ["cat; exit 9"], stdin=STREAM, stdout=STREAM)
    restart(guest)
    expect(shim.list()["host"][2] == ["e"], "the exec is gone")
    stdin = shim.stream("host", "e", shims.STDIN)
    shim.start("host", "e")
    stdin.write(b"through")
    stdin.end()
    expect(shim.wait("host", "e") == 9, "the exit status")
    expect(shim.stream("host", "e").read_all() == b"through", "its output")
    shim.delete("host", "e")
    shim.remove("host")
    expect_nothing_left(guest, shim)
    calm(guest)


def case_exits_during_the_downtime(guest):
    # The agent is stopped, so that it cannot see them; then it is killed.
    shim = shim_of(guest)
    calm(guest)
    since = shim.info().get(14, 0)
    guest.check("rm -f /run/rootfs/go; mkfifo /run/rootfs/go")
    wanted = {}
    for number in range(8):
        wanted[f"x{number}"] = (3 * number + 1) if number % 2 else 128 + number
        end = f"exit {3 * number + 1}" if number % 2 else f"kill -{number or 9} $$" if number else "exit 128"
        wanted["x0"] = 128
        # PID 1 of a pid namespace ignores signals without a handler, so a child dies of it and its status is passed on.
        shim.run(f"x{number}", SH + [f"read -r line </go; sh -c '{end}'; exit $?"])
    waiting = [(name, shim.control.start(shims.TASK, "Wait", shims.message((1, name)))) for name in wanted]
    guest.check(f"""{AGENT}. /tests/lib.sh; old=$(agent_pid)
        kill -STOP $old
        exec 7<>/run/rootfs/go 8>/run/rootfs/go 7<&-
        for n in 0 1 2 3 4 5 6 7; do echo go >&8; done
        exec 8>&-
        gone() {{ [ -z "$(cat /sys/fs/cgroup/berth/x*/cgroup.procs)" ]; }}
        wait_for 40 gone || fail 'they do not end'
        kill -KILL $old
        wait_for 30 other_agent_than $old || fail 'no new agent'""", 90)
    for name, call in waiting:
        try:
            call.wait(5)
            raise Failure(f"Wait of {name} was answered by an agent that is dead")
        except ConnectionError:
            pass
    for name, status in wanted.items():
        expect(shim.wait(name) == status, f"{name}: status {shim.wait(name)} instead of {status}")
        expect(shim.state(name)[0] == shims.STOPPED, f"{name} is not stopped")
    events = shim.events(since)
    _expect_numbered(events, since)
    for name, status in wanted.items():
        expect(_names(events, name) == ["created", "started", "exited"], f"{name}: {_names(events, name)}")
        expect([e.status for e in events if e.container == name and e.kind == "exited"] == [status], f"{name}: another status in the event")
        pid, deleted = shim.delete(name)
        expect(deleted == status and pid > 0, f"{name}: Delete tells {deleted}")
    calm(guest)
    expect_nothing_left(guest, shim)


def case_output_while_the_agent_is_killed(guest):
    # Read, acknowledged late or never, killed at random: no byte is lost, none comes twice.
    shim = shim_of(guest)
    calm(guest)
    loop = "i=0; while [ $i -lt 6 ]; do cat /data; i=$((i + 1)); done"
    digest = sha256(DATA * 6)
    shim.run("flow", SH + [loop + "; sleep 100000"], stdout=STREAM)
    dice = random.Random(4711)
    kills = _Killer(guest, 200, dice)
    kills.start()
    got, count, total, attachments, cuts = hashlib.sha256(), 0, 24 << 20, 0, 6
    while count < total:
        stream = shim.stream("flow", resume=count if attachments % 2 else None)
        attachments, unacknowledged = attachments + 1, 0
        try:
            # Without a resume offset it begins where our last ACK that arrived was: skip what we have.
            expect(stream.offset <= count, f"attached at {stream.offset}, read until {count}")
            while stream.offset < total or count < total:
                before = stream.offset
                piece = stream.read(ack=False)
                expect(piece is not None, f"the end at {stream.offset}")
                expect(stream.lost == 0, "LOST")
                new = piece[max(0, count - before):]
                got.update(new)
                count += len(new)
                unacknowledged += len(piece)
                if unacknowledged > stream.window // 2 or dice.random() < 0.2:
                    stream.ack()
                    unacknowledged = 0
                # It flows, slowly, until it was cut often enough, however slow the host is.
                if attachments <= cuts:
                    time.sleep(0.3 if count * (cuts + 1) > total * attachments else 0.01)
                else:
                    kills.enough()
        except (OSError, EOFError):
            pass
        finally:
            stream.close()
    kills.finish()
    expect(count == total and got.hexdigest() == digest, f"{count} bytes, and not those that were written")
    expect(attachments > cuts, f"only {attachments} attachments: the agent was not killed while output flowed")
    shim.remove("flow")
    calm(guest)
    expect_nothing_left(guest, shim)


def case_input_while_the_agent_is_killed(guest):
    shim = shim_of(guest)
    calm(guest)
    with open("/dev/urandom", "rb") as source:
        noise = source.read(6 << 20)
    shim.run("input", SH + ["sha256sum; sleep 100000"], stdin=STREAM, stdout=STREAM)
    dice = random.Random(815)
    kills = _Killer(guest, 200, dice)
    kills.start()
    attachments, cuts = 0, 4
    while True:
        stream = shim.stream("input", kind=shims.STDIN)
        attachments += 1
        try:
            while stream.offset < len(noise):
                stream.write(noise[stream.offset:stream.offset + dice.randrange(1, 100000)])
                if attachments <= cuts:
                    time.sleep(0.3 if stream.offset * (cuts + 1) > len(noise) * attachments else 0.01)
                else:
                    kills.enough()
            stream.flush()
            stream.end()
            # CLOSED 0 comes when all of it was handed over, or the connection breaks and the end is said again.
            while True:
                stream.take_ack()
        except (OSError, EOFError):
            pass
        if stream.closed == 0 or (stream.closed is None and _is_ended(shim)):
            break
    kills.finish()
    out = shim.stream("input").read_until(b"\n")
    expect(out.split()[0].decode() == hashlib.sha256(noise).hexdigest(), f"another checksum after {attachments} attachments")
    expect(attachments > cuts, f"only {attachments} attachments")
    shim.remove("input")
    calm(guest)


def _is_ended(shim):
    try:
        stream = shim.stream("input", kind=shims.STDIN, again=False)
    except (shims.CallError, OSError, EOFError, berth.Refused):
        return False
    ended = stream.closed is not None
    stream.close()
    return ended


# The shell's own background is killed with it: not before it has a session of its own.
_IS_ON = "until [ -e /run/test/killer-on ]; do usleep 5000; done"


class _Killer:
    """Ends the agent, the spawner or both, again and again, at random moments: by SIGKILL, then by SIGHUP to the keeper
    (which takes the crash back). Runs beside the case, in the guest."""

    def __init__(self, guest, rounds, dice, low_ms=100, high_ms=900):
        lines = [AGENT, "touch /run/test/killer-on"]
        for _ in range(rounds):
            what = dice.choice(("$(agent_pid)", "$(agent_pid)", "$(spawner_pid)", "$(agent_pid) $(spawner_pid)"))
            lines += ["[ ! -e /run/test/killer-enough ] || { touch /run/test/killer-done; exit; }",
                      f"usleep {dice.randrange(low_ms, high_ms) * 1000}", f"kill -KILL {what} 2>/dev/null",
                      f"usleep {dice.randrange(low_ms, high_ms) * 1000}", "kill -HUP 1"]
        lines += ["touch /run/test/killer-done"]
        self._guest, self._script = guest, "\n".join(lines)
        self._done, self._told = threading.Event(), False
        self._rounds, self._longest_s = rounds, rounds * 2 * high_ms / 1000

    def start(self):
        self._guest.check("mkdir -p /run/test; rm -f /run/test/killer-*; cat >/run/test/killer <<'END'\n" + self._script +
                          "\nEND\nsetsid sh /run/test/killer >/dev/null 2>&1 &\n" + _IS_ON)

    def enough(self):
        """No more rounds after this one."""
        if not self._told:
            self._guest.check("touch /run/test/killer-enough")
            self._told = True

    def alive(self):
        return not self._done.is_set() and self._look()

    def _look(self):
        # Asked rarely: a look costs the guest a shell.
        now = time.monotonic()
        if now - getattr(self, "_looked", 0) > 2:
            self._looked = now
            if self._guest.sh("[ -e /run/test/killer-done ]").status == 0:
                self._done.set()
        return not self._done.is_set()

    def finish(self):
        wait_for(lambda: not self.alive() or time.sleep(0.5), self._longest_s * 4 + 60, "the killer ends")


# What a call may say that ran into the end of the agent or of the spawner; then it is asked again.
AGAIN = (shims.UNAVAILABLE, shims.CANCELLED, shims.ABORTED)


def _do(shim, container, exec_id, call, is_done, what):
    """Asks until it is done: either the whole of it happened, or nothing."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            call()
            return
        except (OSError, EOFError):
            pass
        except shims.CallError as error:
            if error.args[0] not in AGAIN:
                # Done by the one before, whose answer did not arrive?
                if is_done(_status(shim, container, exec_id)):
                    return
                raise Failure(f"{what} {container}/{exec_id}: {error.args}") from None
        if is_done(_status(shim, container, exec_id)):
            return
    raise Failure(f"{what} {container}/{exec_id}: not done in time")


def _status(shim, container, exec_id):
    try:
        return shim.state(container, exec_id)[0]
    except shims.CallError as error:
        expect(error.args[0] == shims.NOT_FOUND, f"State of {container}/{exec_id}: {error.args}")
        return None


def _one_life(shim, name, dice, oom):
    """Create, Start, an exec, Wait, Delete, with the output read and compared. Returns the exit status."""
    status = dice.randrange(1, 100)
    text = f"{name} says {dice.random()}"
    command = f"echo {text}; read -r line; exit {status}"

    def limits(spec):
        spec["linux"]["resources"]["memory"] = {"limit": 12 << 20, "swap": 12 << 20}

    _do(shim, name, "", lambda: shim.create(name, SH + [command], stdin=STREAM, stdout=STREAM, change=limits if oom else None),
        lambda now: now == shims.CREATED, "create")
    _do(shim, name, "", lambda: shim.start(name), lambda now: now in (shims.RUNNING, shims.STOPPED), "start")
    ran = 0
    for attempt in range(20):
        exec_id = f"e{attempt}"
        argv = SH + ["tail /dev/zero"] if oom else SH + [f"exit {status}"]
        _do(shim, name, exec_id, lambda: shim.add_exec(name, exec_id, argv), lambda now: now is not None, "exec")
        _do(shim, name, exec_id, lambda: shim.start(name, exec_id), lambda now: now in (shims.RUNNING, shims.STOPPED), "start")
        ended = shim.wait(name, exec_id)
        _do(shim, name, exec_id, lambda: shim.delete(name, exec_id), lambda now: now is None, "delete")
        if ended == (137 if oom else status):
            ran += 1
            break
        # Its Start was cut off and not answered: it never became its program.
        expect(ended == 255 or ended >= 125, f"{name}/{exec_id}: exit status {ended}")
    expect(ran, f"{name}: no exec in 20 came through")
    while True:
        try:
            stdin = shim.stream(name, kind=shims.STDIN)
            if stdin.offset < 3:
                stdin.write(b"go\n"[stdin.offset:])
            stdin.flush()
            break
        except (OSError, EOFError):
            pass
    expect(shim.wait(name) == status, f"{name}: exit status {shim.wait(name)} instead of {status}")
    got = b""
    while True:
        try:
            stream = shim.stream(name, resume=len(got))
            while stream.closed is None:
                got += stream.read() or b""
            expect(stream.closed == 0, f"{name}: CLOSED {stream.closed}")
            break
        except (OSError, EOFError):
            pass
    expect(got.decode() == text + "\n", f"{name}: {got!r} instead of {text!r}")
    _do(shim, name, "", lambda: shim.delete(name), lambda now: now is None, "delete")
    return status


def _lives_under_fire(guest, rounds, workers, seed, oom=False):
    shim = shim_of(guest)
    calm(guest)
    since = shim.info().get(14, 0)
    dice = random.Random(seed)
    kills = _Killer(guest, rounds, dice, 50, 1500)
    kills.start()
    failures, lived = [], {}

    def work(number):
        own, lives = shims.of_guest(guest), random.Random(seed + number)
        count = 0
        while kills.alive() and not failures:
            name = f"w{number}-{count}"
            count += 1
            try:
                lived[name] = _one_life(own, name, lives, oom)
            except Exception as error:  # told below
                failures.append(f"{name}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kills.finish()
    expect(not failures, "; ".join(failures[:3]))
    calm(guest)
    expect(len(lived) >= workers, f"only {len(lived)} lives")
    events = shim.events(since)
    _expect_numbered(events, since)
    for name, status in lived.items():
        own = [event for event in events if event.container == name and not event.exec_id]
        kinds = [event.kind for event in own if event.kind != "memory"]
        expect(kinds == ["created", "started", "exited", "deleted"], f"{name}: {kinds}")
        expect([e.status for e in own if e.kind == "exited"] == [status], f"{name}: another status in the event")
        execs = {}
        for event in events:
            if event.container == name and event.exec_id:
                execs.setdefault(event.exec_id, []).append(event.kind)
        for exec_id, kinds in execs.items():
            expect(kinds[0] == "exec_added" and kinds[-1] == "deleted" and len(set(kinds)) == len(kinds), f"{name}/{exec_id}: {kinds}")
            expect("exited" not in kinds or "exec_started" in kinds, f"{name}/{exec_id}: {kinds}")
        if oom:
            _expect_ooms_counted(events, name)
    restarts = sum(event.kind == "agent_restarted" for event in events)
    # One that is killed before it serves tells of none.
    expect(restarts >= rounds // 2, f"{restarts} restarts are told, of {rounds} and more")
    expect_nothing_left(guest, shim)
    return len(lived)


def _expect_ooms_counted(events, name):
    """Increases add up to the totals, and each kill is told before the exit that it explains."""
    total, explained = 0, 0
    for event in events:
        if event.container != name:
            continue
        if event.kind == "memory":
            total += event.increase.get(5, 0)
            expect(event.total.get(5, 0) == total, f"{name}: oom_kill {event.total.get(5, 0)} after increases of {total}")
        if event.kind == "exited" and event.exec_id and event.status == 137:
            explained += 1
            expect(total >= explained, f"{name}: exit {event.exec_id} came before its OOM kill")
    expect(explained >= 1, f"{name}: no OOM kill")


def case_random_kills_under_load(guest):
    _lives_under_fire(guest, 12, 3, 1)


def case_random_kills_while_oom_kills_happen(guest):
    _lives_under_fire(guest, 8, 2, 2, oom=True)


def long_many_random_kills_under_load(guest):
    for seed in range(10, 20):
        _lives_under_fire(guest, 12, 3, seed, oom=seed % 3 == 0)


def case_a_kill_in_the_middle_of_each_call(guest):
    # The agent is killed a few milliseconds behind the request, later each time: afterwards the call was done, or nothing of
    # it is left.
    shim = shim_of(guest)
    calm(guest)
    shim.run("base", ["/bin/sleep", "100000"])
    outcomes = {}
    dice = random.Random(99)
    for number in range(18):
        what = ("create", "start", "delete")[number % 3]
        name = f"mid{number}"
        if what == "delete":
            shim.run(name, ["/bin/true"])
            shim.wait(name)
        if what == "start":
            shim.add_exec("base", name, ["/bin/sleep", "100000"])
        client = shim.client()
        # Where exactly it hits does not matter, only that it is not always the same place.
        guest.check(f"{AGENT}mkdir -p /run/test; rm -f /run/test/killer-on; setsid sh -c 'touch /run/test/killer-on; "
                    f"usleep {dice.randrange(20_000, 150_000)}; kill -KILL '$(agent_pid) >/dev/null 2>&1 & {_IS_ON}")
        outcome = _until_killed(client, shim, what, name)
        restart_seen = shim.state("base")[0]
        expect(restart_seen == shims.RUNNING, f"{what}: the other container is {restart_seen}")
        if what == "create":
            now = _status(shim, name, "")
            expect(now in (None, shims.CREATED), f"{name}: {now} after a creation that was cut off")
            outcomes[what, now] = outcomes.get((what, now), 0) + 1
            shim.remove(name)
        elif what == "start":
            now = _status(shim, "base", name)
            expect(now in (shims.CREATED, shims.RUNNING, shims.STOPPED), f"{name}: {now} after a Start that was cut off")
            outcomes[what, now] = outcomes.get((what, now), 0) + 1
            if now == shims.CREATED:
                shim.start("base", name)
            if shim.state("base", name)[0] == shims.RUNNING:
                shim.kill("base", 9, name)
            shim.wait("base", name)
            shim.delete("base", name)
        else:
            now = _status(shim, name, "")
            expect(now in (None, shims.STOPPED), f"{name}: {now} after a Delete that was cut off")
            outcomes[what, now] = outcomes.get((what, now), 0) + 1
            if now is not None:
                expect(shim.delete(name)[1] == 0, f"{name}: another status")
        expect(outcome is not None, name)
        calm(guest)
    shim.remove("base")
    expect_nothing_left(guest, shim)
    print(f"#   {dict(sorted((f'{what} -> {now}', count) for (what, now), count in outcomes.items()))}")


def _until_killed(client, shim, what, name):
    """The call; and the kill has happened when this returns."""
    try:
        if what == "create":
            client.call(shims.TASK, "Create", shim.create_payload(name, ["/bin/sleep", "100000"]))
        elif what == "start":
            client.call(shims.TASK, "Start", shims.message((1, "base"), (2, name)))
        else:
            client.call(shims.TASK, "Delete", shims.message((1, name)))
    except (OSError, EOFError):
        return "cut off"
    # Answered before the kill: wait for it.
    try:
        client.call(shims.TASK, "Wait", shims.message((1, "base")), limit_s=60)
    except (OSError, EOFError):
        pass
    return "answered"


def case_pause_and_the_agents_end(guest):
    shim = shim_of(guest)
    calm(guest)
    shim.run("ice", ["/bin/sleep", "100000"])
    ice = shims.message((1, "ice"))
    frozen = "grep -c '^frozen 1' /sys/fs/cgroup/berth/ice/cgroup.events || true"
    shim.call(shims.TASK, "Pause", ice)
    restart(guest)
    expect(shim.state("ice")[0] == shims.PAUSED and guest.check(frozen).strip() == "1", "not paused any more")
    shim.call(shims.TASK, "Resume", ice)
    expect(shim.state("ice")[0] == shims.RUNNING and guest.check(frozen).strip() == "0", "not resumed")
    # A Pause that nobody was told of: the freezer is written, the state is not.
    guest.check(f"{AGENT}kill -STOP $(agent_pid); echo 1 >/sys/fs/cgroup/berth/ice/cgroup.freeze")
    restart(guest)
    wait_for(lambda: guest.check(frozen).strip() == "0", 10, "a Pause that was not answered is taken back")
    expect(shim.state("ice")[0] == shims.RUNNING, f"{shim.state('ice')}")
    shim.run_exec("ice", "e", ["/bin/true"])
    expect(shim.wait("ice", "e") == 0, "an exec after it")
    shim.remove("ice")
    calm(guest)


def case_three_crashes_lead_to_safe_mode(guest):
    shim = shim_of(guest)
    calm(guest)
    pid = shim.run("safe", SH + ["read -r line; exit 3"], stdin=STREAM)
    shim.create("behind", ["/bin/true"])
    for _ in range(3):
        restart(guest)
    expect(shim.info().get(13) == 1, "Info does not tell of safe mode")
    expect("safe mode" in guest.console(), "the console does not tell of it")
    safe = shims.message((1, "safe"))
    works = {(shims.TASK, "State"), (shims.TASK, "Kill"), (shims.TASK, "Delete"), (shims.TASK, "Shutdown"), (shims.GUEST, "Info"),
             (shims.GUEST, "List")}
    for service, methods in ((shims.TASK, ("Create", "Start", "Pids", "Pause", "Resume", "Exec", "ResizePty", "CloseIO", "Update", "Wait",
                                           "Stats", "Connect")), (shims.GUEST, ("OpenStream", "Subscribe", "WatchMemoryEvents"))):
        for method in methods:
            expect((service, method) not in works, method)
            flags = 1 if "Subscribe" in method or "Watch" in method else 0
            call = shim.control.start(service, method, safe, flags=flags)
            expect_error(shims.UNAVAILABLE, call.next if flags else call.wait, part="safe mode")
    expect(shim.state("safe") == (shims.RUNNING, pid, 0), f"State: {shim.state('safe')}")
    expect(sorted(shim.list()) == ["behind", "safe"], "List")
    shim.kill("safe")
    wait_for(lambda: shim.state("safe")[0] == shims.STOPPED, 20, "Kill works")
    expect(shim.delete("safe")[1] == 137, "Delete")
    # Shutdown with containers left, and not `now`, changes nothing.
    shim.call(shims.TASK, "Shutdown", shims.message((1, "behind")))
    # On purpose, which is the way out.
    calm(guest)
    expect(shim.info().get(13, 0) == 0, "still in safe mode after SIGHUP")
    shim.start("behind")
    expect(shim.wait("behind") == 0, "the container that waited")
    shim.remove("behind")
    expect_nothing_left(guest, shim)
