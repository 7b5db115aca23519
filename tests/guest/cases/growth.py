# What the agent and the keeper hold must not grow with the containers that came and went.
# suite: crash
# limit: 300
from host import AGENT, calm, counts, expect, expect_nothing_left, shim_of, shims

STREAM = "stream://"


def case_nothing_grows(guest):
    _cycles(guest, 200)


def long_nothing_grows_in_10000_cycles(guest):
    _cycles(guest, 10_000)


def _cycles(guest, count):
    shim = shim_of(guest)
    calm(guest)

    def cycle(number):
        name = f"c{number % 7}"
        shim.run(name, ["/bin/sleep", "100000"], stdin=STREAM, stdout=STREAM, stderr=STREAM)
        shim.run_exec(name, "e", ["/bin/echo", "x"], stdout=STREAM)
        shim.wait(name, "e")
        if number % 3 == 0:
            shim.stream(name, "e").read_all()
        shim.delete(name, "e")
        shim.kill(name)
        shim.wait(name)
        shim.delete(name)

    def settle():
        # Output that nobody read stays for a while, of a bounded number of streams.
        for index in range(7):
            for exec_id in ("", "e"):
                for kind in (shims.STDOUT, shims.STDERR):
                    try:
                        shim.stream(f"c{index}", exec_id, kind).read_all()
                    except shims.CallError:
                        pass
        return counts(guest)

    for number in range(40):
        cycle(number)
    before = settle()
    for number in range(count):
        cycle(number)
    after = settle()
    expect(after[0] <= before[0], f"the agent had {before[0]} descriptors, and has {after[0]}")
    expect(after[1] <= before[1], f"the keeper had {before[1]} descriptors, and has {after[1]}")
    expect(after[2] <= before[2] + 64, f"the agent had {before[2]} KiB of its own, and has {after[2]}")
    programs = guest.check(AGENT + "ls -l /proc/$(agent_pid)/fd | grep -c bpf-prog || true")
    expect(int(programs) <= 4, f"the agent keeps {programs} device programs")
    expect_nothing_left(guest, shim)
