# Rarer fields of the spec: the seccomp listener, CPU affinity of an exec, network devices, memory policy.
# suite: main
# limit: 180
import json

from boxes import WORK, changed, expect, expect_eq, script, spec
from harness import Skip

SOCKET = "/run/test/seccomp.sock"


def _lines(out):
    return {line.split(" ")[0]: (line + " ").split(" ", 1)[1].strip() for line in out.splitlines() if line.startswith("@")}


def with_notify(text, **fields):
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": SOCKET, "listenerMetadata": "of the test",
               "syscalls": [{"names": ["mkdir", "mkdirat", "uname"], "action": "SCMP_ACT_NOTIFY"}]}
    profile.update(fields)
    return spec(text, linux=changed(spec()["linux"], seccomp=profile), annotations={"a": "b"})


def case_seccomp_listener(guest):
    value = with_notify("mkdir /tmp/x 2>&1; uname -s")
    no_new_privileges = changed(value, process__noNewPrivileges=True)
    old = changed(value, process__noNewPrivileges=False)
    out = guest.check(script(f"""
        [ -x /tests/bin/seccomp_agent ] || exit 0
        snapshot notify
        for kind in new old; do
            rm -f {SOCKET}; /tests/bin/seccomp_agent {SOCKET} $work/told.$kind & agent=$!
            wait_for 5 test -S {SOCKET} || fail "no socket"
            echo "@$kind $(berthctl run --no-stdin -b {WORK}/$kind n 2>&1 | tr '\\n' ' ')"
            wait $agent || fail "the seccomp agent"
            echo "@told.$kind $(cat $work/told.$kind)"
        done
        rm -f {SOCKET} $work/told.*
        echo "@missing $(berthctl run --no-stdin -b {WORK}/old n 2>&1)"
        echo "@agents $(berthctl run --no-stdin -b {WORK}/agents n 2>&1)"
        expect_unchanged notify
        """, new=no_new_privileges, old=old, agents=with_notify("true", listenerPath="/run/berth/x")), 150)
    seen = _lines(out)
    if not seen:
        raise Skip("the test program is not built")
    for kind in ("new", "old"):
        expect("Invalid cross-device link" in seen["@" + kind] or "Cross-device link" in seen["@" + kind], seen["@" + kind])
        expect(seen["@" + kind].endswith("Linux"), seen["@" + kind])
        told = json.loads(seen["@told." + kind])
        expect_eq("fds", told["fds"], ["seccompFd"])
        expect_eq("metadata", told["metadata"], "of the test")
        expect_eq("pid", told["pid"], told["state"]["pid"])
        expect_eq("id", (told["state"]["id"], told["state"]["bundle"]), ("n", f"{WORK}/{kind}"))
        expect_eq("annotations", told["state"]["annotations"], {"a": "b"})
    expect("linux.seccomp.listenerPath" in seen["@missing"] and "connect: ENOENT" in seen["@missing"], seen["@missing"])
    expect("would show the agent's" in seen["@agents"], seen["@agents"])


def case_copied_symlinks(guest):
    def box(destination):
        mount = {"destination": destination, "type": "bind", "source": "/run/test/a-broken-link", "options": ["rbind", "copy-symlink"]}
        text = f"readlink {destination} || cat {destination}"
        return changed(spec(text), mounts=spec()["mounts"] + [mount], root__readonly=False)
    plain = changed(box("/made/here/link"), mounts=spec()["mounts"] + [
        {"destination": "/made/plain", "type": "bind", "source": "/run/test/a-plain-file", "options": ["bind", "copy-symlink"]}])
    plain["process"]["args"][-1] = "cat /made/plain"
    mapped = changed(box("/made/here/link"), linux__namespaces=spec()["linux"]["namespaces"] + [{"type": "user"}],
                     linux__uidMappings=[{"containerID": 0, "hostID": 100000, "size": 1000}],
                     linux__gidMappings=[{"containerID": 0, "hostID": 100000, "size": 1000}])
    out = guest.check(script(f"""
        mkdir -p /run/test; ln -sf ../nowhere/at-all /run/test/a-broken-link; echo content >/run/test/a-plain-file
        for name in link again taken proc plain mapped; do
            echo "@$name $(berthctl run --no-stdin -b {WORK}/$name n 2>&1 | tr '\\n' ' ')"
        done
        rm -f /run/test/a-broken-link /run/test/a-plain-file
        """, link=box("/made/here/link"), again=box("/made/here/link"), taken=box("/etc/passwd"), proc=box("/proc/x"),
                             plain=plain, mapped=mapped), 60)
    seen = _lines(out)
    expect_eq("made", seen["@link"], "../nowhere/at-all")
    expect_eq("made again", seen["@again"], "../nowhere/at-all")
    expect("copy symlink" in seen["@taken"] and "EEXIST" in seen["@taken"], seen["@taken"])
    expect("no mounts inside /proc" in seen["@proc"], seen["@proc"])
    expect_eq("no symlink", seen["@plain"], "content")
    expect('"copy-symlink" is not supported with a user namespace' in seen["@mapped"], seen["@mapped"])


def case_exec_cpu_affinity(guest):
    value = changed(spec("sleep 100000"), process__execCPUAffinity={"initial": "0", "final": "1"})
    out = guest.check(script(f"""
        berthctl run -d -b {WORK}/a a || fail run
        pid=$(berthctl --json state a | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
        echo "@init $(awk '$1 == "Cpus_allowed_list:" {{ print $2 }}' /proc/$pid/status)"
        echo "@all $(awk '$1 == "Cpus_allowed_list:" {{ print $2 }}' /proc/1/status)"
        echo "@exec $(berthctl exec --no-stdin a grep Cpus_allowed_list /proc/self/status)"
        berthctl delete -f a
        """, a=value), 120)
    seen = _lines(out)
    if seen["@all"] == "0":
        raise Skip("one CPU")
    expect_eq("the init is as it is", seen["@init"], seen["@all"])
    expect_eq("exec", seen["@exec"].split()[-1], "1")


def case_net_devices(guest):
    move = {"tap-berth": {"name": "inside%d"}, "tap-other": {}}
    value = changed(spec("ip -o addr; ls /sys/class/net; cat /sys/class/net/inside0/flags /sys/class/net/tap-other/flags"), linux__netDevices=move)
    joined = changed(value, linux__namespaces=[entry if entry["type"] != "network" else
                                               {"type": "network", "path": "/run/netns/move"}
                                               for entry in value["linux"]["namespaces"]])
    clash = changed(spec("true"), linux__netDevices={"tap-berth": {"name": "lo"}})
    gone = changed(spec("true"), linux__netDevices={"nothing0": {}})
    done = guest.sh(script(f"""
        devices() {{
            tunctl -t tap-berth >/dev/null && tunctl -t tap-other >/dev/null || exit 77
            ip addr add 10.99.0.1/24 dev tap-berth; ip addr add fd00:99::1/64 dev tap-berth; ip link set tap-other up
        }}
        devices
        echo "@clash $(berthctl run --no-stdin -b {WORK}/clash n 2>&1)"
        [ -d /sys/class/net/tap-berth ] || fail "a failed create lost the device"
        echo "@gone $(berthctl run --no-stdin -b {WORK}/gone n 2>&1)"
        echo "@new $(berthctl run --no-stdin -b {WORK}/new n 2>&1 | tr '\\n' ' ')"
        [ ! -d /sys/class/net/tap-berth ] || fail "it is still here"
        devices
        mkdir -p /run/netns; touch /run/netns/move; unshare --net=/run/netns/move true
        echo "@joined $(berthctl run --no-stdin -b {WORK}/joined n 2>&1 | tr '\\n' ' ')"
        umount /run/netns/move; rm /run/netns/move
        """, new=value, joined=joined, clash=clash, gone=gone), 150)
    if done.status == 77:
        raise Skip(f"no tap devices here: {done.err[-100:]}")
    seen = _lines(done.out)
    expect(done.status == 0, repr(done))
    for kind in ("@new", "@joined"):
        for part in ("10.99.0.1/24", "fd00:99::1/64", "inside0", "tap-other"):
            expect(part in seen[kind], f"{kind}: {seen[kind]}")
        expect(all(int(flags, 16) & 1 for flags in seen[kind].split()[-2:]), f"not up: {seen[kind]}")
    expect("linux.netDevices tap-berth: move: EEXIST" in seen["@clash"], seen["@clash"])
    expect("linux.netDevices nothing0: find: ENODEV" in seen["@gone"], seen["@gone"])


def case_memory_policy(guest):
    value = changed(spec("head -n 1 /proc/self/numa_maps; sleep 0"), linux__memoryPolicy={"mode": "MPOL_BIND", "nodes": "0"})
    bad = changed(spec("true"), linux__memoryPolicy={"mode": "MPOL_BIND", "nodes": "63"})
    out = guest.check(script(f"""
        [ -e /proc/self/numa_maps ] || exit 0
        echo "@bind $(berthctl run --no-stdin -b {WORK}/v m)"
        echo "@bad $(berthctl run --no-stdin -b {WORK}/bad m 2>&1)"
        """, v=value, bad=bad))
    seen = _lines(out)
    if not seen:
        raise Skip("this kernel has no NUMA")
    expect("bind:0" in seen["@bind"], seen["@bind"])
    expect("linux.memoryPolicy: set_mempolicy: EINVAL" in seen["@bad"], seen["@bad"])
