"""The rows of tests/bench/run about resources of running containers: update, statistics, pressure."""

import re

ADDRESS = "vsock://1:1023"


def _median(values):
    """The first run warms caches up."""
    ordered = sorted(values[1:] or values)
    return ordered[len(ordered) // 2]


def _resources(lab, words, template="config.json"):
    return lab.figures(f"/bench/resources {ADDRESS} /bench/secret /bench/{template} {words}")


def cpu_ns(lab, pid):
    """What the process has run for, by the scheduler."""
    return int(lab.sh(f"cat /proc/{pid}/schedstat").split()[0])


def measure_update(lab, table, scale, unit, runs, time_tool):
    """One limit of a running container, changed and changed back."""
    lab.bench("many 1")
    peers = {"bare write": _median(_resources(lab, f"bare update {runs}")) / scale}
    lab.bench("drop many 1")
    if time_tool:
        for name, command in lab.peers.items():
            prepare = f"cd /run/bundle-sleep; {command} run -d c </dev/null >/dev/null 2>&1"
            values = time_tool(lab, prepare, f"{command} update --memory 67108864 c",
                               f"{command} delete -f c >/dev/null 2>&1; true", max(3, runs // 10))
            peers[f"{name} update"] = _median(values) / scale
    table.add("update of memory.max", unit, _median(_resources(lab, f"update {runs}")) / scale, peers)


def measure_stats(lab, table, scale, unit, counts, agent_pid):
    """Statistics of 1, 100 and more containers; `bare` reads the same files in a loop."""
    have = 0
    for count in counts:
        if count > have:
            lab.bench(f"more {have} {count}")
            have = count
        rounds = max(5, 200 // count)
        if count == 1:
            bare = _median(_resources(lab, f"bare all {rounds} 1"))
            table.add("Stats of one container", unit, _median(_resources(lab, f"stats {rounds}")) / scale,
                      {"bare reads": bare / scale})
            continue
        bare = _median(_resources(lab, f"bare all {rounds} {count}"))
        before = cpu_ns(lab, agent_pid)
        ours = _median(_resources(lab, f"all {rounds} {count}"))
        spent = (cpu_ns(lab, agent_pid) - before) / rounds
        table.add(f"StatsAll of {count} containers", unit, ours / scale, {"bare reads": bare / scale},
                  note=f"a container: agent's CPU {spent / count / 1e3:.1f} us, of it bare reads {bare / count / 1e3:.1f} us")
        table.add(f"agent's own CPU a container, of {count}", "us", max(spent - bare, 0) / count / 1e3, target="60")
    lab.bench(f"drop many {have}")


def measure_pressure(lab, table, seconds, pids):
    """What the agent uses while ten containers are held at memory.high."""
    _resources(lab, f"press 10 {24 << 20}", "high.json")
    before = {name: cpu_ns(lab, pid) for name, pid in pids.items()}
    first = int(lab.sh("grep ^high /sys/fs/cgroup/berth/press0/memory.events").split()[1])
    lab.sh(f"sleep {seconds}", limit_s=seconds * 20 + 60)
    last = int(lab.sh("grep ^high /sys/fs/cgroup/berth/press0/memory.events").split()[1])
    spent = {name: cpu_ns(lab, pid) - before[name] for name, pid in pids.items()}
    rose = last - first
    table.add(f"agent's CPU, 10 containers at memory.high, {seconds} s", "ms", spent["agent"] / 1e6,
              note=f"{spent['agent'] / 1e7 / seconds:.2f} % of one CPU; keeper and spawner "
                   f"{(spent['keeper'] + spent['spawner']) / 1e6:.1f} ms; high rose by {rose} in the first of them")
    lab.bench("drop press 10")
