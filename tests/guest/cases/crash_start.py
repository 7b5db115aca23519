# A Create or a Start in the middle of which the agent ends.
# suite: crash
# limit: 600
from host import calm, expect, expect_nothing_left, restart, shim_of, shims, wait_for

SH = ["/bin/sh", "-c"]


def _evict_all_events(shim, count=4200):
    """So many events of another container that the log forgets what was before."""
    shim.run("noise", ["/bin/sleep", "100000"])
    client, begun = shim.client(), []
    for number in range(count // 2):
        name = f"n{number}"
        begun.append(client.start(shims.TASK, "Exec", shim.exec_payload("noise", name, ["/bin/true"])))
        begun.append(client.start(shims.TASK, "Delete", shims.message((1, "noise"), (2, name))))
        while len(begun) > 100:
            begun.pop(0).wait()
    for pending in begun:
        pending.wait()
    client.close()
    shim.remove("noise")


def case_a_creation_that_ended_in_its_first_write(guest):
    # An agent that was killed before it had written what it was about to do: a folder, an empty file, half a record.
    shim = shim_of(guest)
    calm(guest)
    guest.check("cd /run/berth/state; mkdir cut0 cut1 cut2 cut3; : >cut1/state; printf 'half a rec' >cut2/state; : >cut3/state.new")
    restart(guest)
    expect(not shim.list(), "something was made of it")
    for name in ("cut0", "cut1", "cut2", "cut3"):
        shim.run(name, ["/bin/true"])
        expect(shim.wait(name) == 0, f"the id {name} is of no use any more")
        shim.remove(name)
    calm(guest)
    expect_nothing_left(guest, shim)


def case_a_start_that_was_done_and_not_told(guest):
    _starts_that_were_not_told(guest, lambda shim: None)


def long_a_start_that_was_not_told_of_containers_older_than_the_log(guest):
    # That the log does not tell of their start says nothing.
    _starts_that_were_not_told(guest, _evict_all_events)


def _starts_that_were_not_told(guest, before):
    # The agent has let the init go; a frozen cgroup holds it just before its execve. Then the agent ends.
    shim = shim_of(guest)
    calm(guest)
    frozen = "/sys/fs/cgroup/berth/%s/cgroup.freeze"
    pids = {"late": shim.create("late", ["/bin/sleep", "100000"]), "over": shim.create("over", SH + ["exit 3"])}
    before(shim)
    since = shim.info().get(14, 0)
    for name, pid in pids.items():
        guest.check(f"echo 1 >{frozen % name}")
        client = shim.client()
        client.start(shims.TASK, "Start", shims.message((1, name)))
        # It has its byte once another call of the same connection is answered.
        client.call(shims.TASK, "State", shims.message((1, name)))
        if name == "late":
            restart(guest)
        else:
            # It runs and ends while the agent cannot notice.
            restart(guest, f"kill -STOP $old; echo 0 >{frozen % name}; sleep 1; kill -KILL $old")
        client.close()
        if name == "late":
            wait_for(lambda: shim.state("late")[0] == shims.RUNNING, 30, "it does not run")
            shim.kill("late")
        expect(shim.wait(name) == (137 if name == "late" else 3), "the exit status")
        shim.delete(name)
        events = [event for event in shim.events(since) if event.container == name]
        expect([event.kind for event in events] == ["started", "exited", "deleted"], f"{name}: {events}")
        expect(events[0].pid == pid, f"started as {events[0]}")
    calm(guest)
    expect_nothing_left(guest, shim)
