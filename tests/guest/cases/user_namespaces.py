# User and time namespaces, new and joined; id-mapped mounts. What counts is what the kernel says of the processes.
# suite: main
# limit: 240
from boxes import PROBE, WORK, Probe, changed, expect, expect_eq, script, spec

MAP = [{"containerID": 0, "hostID": 100000, "size": 65536}]
SHARED = "/run/test/shared"


def with_user(script_text, mappings=MAP, path=None, **paths):
    """A spec with a user namespace, on a root file system whose owner is its root."""
    value = changed(spec(script_text), root__path="/run/mapped-rootfs", **paths)
    entry = {"type": "user"}
    if path:
        entry["path"] = path
    value["linux"]["namespaces"] += [entry, {"type": "cgroup"}]
    if mappings:
        value["linux"]["uidMappings"] = value["linux"]["gidMappings"] = mappings
    return value


# A root file system of the mapped root's, as an engine would hand it over.
MAPPED = ("[ -d /run/mapped-rootfs ] || { cp -a /run/rootfs /run/mapped-rootfs.new && "
          "chown -R 100000:100000 /run/mapped-rootfs.new && mv /run/mapped-rootfs.new /run/mapped-rootfs; }\n")


def case_new_user_namespace(guest):
    inside = PROBE + r"""
echo "@uid_map $(tr -s ' ' </proc/self/uid_map)"
echo "@gid_map $(tr -s ' ' </proc/self/gid_map)"
echo x >/dev/null && echo "@null works"
(echo x >/dev/full) 2>/dev/null || echo "@full works"
head -c 1 /dev/zero | od -An -tx1 | sed 's/^/@zero/'
echo "@owner $(stat -c %u:%g /bin)"
hostname other && echo "@own_uts ours"
mount -t tmpfs none /tmp && echo "@own_mount ours"
ip link set lo down && echo "@own_net ours"
mknod /tmp/disk b 254 0 2>&1 | sed 's/^/@mknod /'
echo "@masked $(cat /proc/kcore 2>&1 | head -c 20 | wc -c)"
echo "@out $(readlink /proc/1/fd/1)"
echo to-stdout >/proc/1/fd/1 && echo "@stdout reopened"
"""
    out = guest.check(script(MAPPED + f"""
        snapshot userns
        berthctl run --no-stdin -b {WORK}/u u || fail run
        expect_unchanged userns
        """, u=changed(with_user(inside), process__capabilities=ALL_CAPS)), 200)
    seen = Probe(out)
    expect_eq("uid_map", seen.one("uid_map").strip(), "0 100000 65536")
    expect_eq("gid_map", seen.one("gid_map").strip(), "0 100000 65536")
    expect_eq("uid", seen.one("Uid").split(), ["0"] * 4)
    expect_eq("devices work", (seen.all("null"), seen.all("full"), seen.one("zero").strip()), (["works"], ["works"], "00"))
    nodes = [line for line in seen.all("node") if line.startswith("/dev/null ")]
    expect_eq("/dev/null", nodes, ["/dev/null 1:3 666 0:0"])
    expect_eq("owner of the image", seen.one("owner"), "0:0")
    for what in ("own_uts", "own_mount", "own_net"):
        expect_eq(what, seen.all(what), ["ours"])
    expect("not permitted" in seen.one("mknod"), f"mknod: {seen.all('mknod')}")
    expect_eq("/proc/kcore", seen.one("masked"), "0")
    expect_eq("stdout", seen.all("stdout"), ["reopened"])
    expect_eq("mount of /dev/null", seen.mounts()["/dev/null"][0] >= {"nosuid", "noexec"}, True)


ALL_CAPS = {kind: ["CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_MKNOD", "CAP_SETUID", "CAP_SETGID"]
            for kind in ("bounding", "effective", "permitted")}


def case_seen_from_outside_and_exec(guest):
    """The kernel's own maps of the init, a join by path, and an exec in both."""
    out = guest.check(script(MAPPED + f"""
        snapshot userns
        berthctl run -d -b {WORK}/a a || fail a
        pid=$(berthctl --json state a | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
        echo "@map $(tr -s ' ' </proc/$pid/uid_map)"
        echo "@uid $(awk '$1 == "Uid:" {{ print $2 }}' /proc/$pid/status)"
        echo "@exec $(berthctl exec --no-stdin a sh -c 'id -u; awk "/^Cap(Eff|Bnd)/ {{ print \\$2 }}" /proc/self/status; echo x >/dev/stderr' 2>&1 | tr '\\n' ' ')"
        sed -i "s|/proc/PID/|/proc/$pid/|g" {WORK}/b/config.json {WORK}/c/config.json
        berthctl run -d -b {WORK}/b b || fail b
        other=$(berthctl --json state b | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
        for kind in user net mnt; do
            echo "@same.$kind $([ "$(readlink /proc/$pid/ns/$kind)" = "$(readlink /proc/$other/ns/$kind)" ] && echo yes || echo no)"
        done
        echo "@map2 $(tr -s ' ' </proc/$other/uid_map)"
        echo "@uid2 $(awk '$1 == "Uid:" {{ print $2 }}' /proc/$other/status)"
        echo "@exec2 $(berthctl exec --no-stdin b id -u)"
        echo "@differ $(berthctl create -b {WORK}/c c 2>&1)"
        berthctl delete -f b; berthctl delete -f a
        expect_unchanged userns
        """, a=with_user("sleep 100000"),
        b=changed(with_user("sleep 100000", mappings=None, path="/proc/PID/ns/user"),
                  linux__namespaces=[{"type": "user", "path": "/proc/PID/ns/user"},
                                     {"type": "network", "path": "/proc/PID/ns/net"}, {"type": "mount"}, {"type": "pid"},
                                     {"type": "ipc"}, {"type": "uts"}],
                  process__user={"uid": 1000, "gid": 1000}),
        c=with_user("true", mappings=[{"containerID": 0, "hostID": 200000, "size": 10}], path="/proc/PID/ns/user")), 200)
    seen = {line.split(" ")[0]: line.split(" ", 1)[1].strip() for line in out.splitlines() if line.startswith("@")}
    expect_eq("map", seen["@map"], "0 100000 65536")
    expect_eq("uid outside", seen["@uid"], "100000")
    expect_eq("exec", seen["@exec"].split()[0], "0")
    expect_eq("exec's stderr", seen["@exec"].split()[-1], "x")
    expect_eq("joined", (seen["@same.user"], seen["@same.net"], seen["@same.mnt"]), ("yes", "yes", "no"))
    expect_eq("map of the second", seen["@map2"], "0 100000 65536")
    expect_eq("uid of the second, outside", seen["@uid2"], "101000")
    expect_eq("exec in the second", seen["@exec2"], "1000")
    expect("linux.uidMappings: not those of the user namespace" in seen["@differ"], seen["@differ"])


def case_joined_namespaces_of_the_guest(guest):
    """A new user namespace with a network namespace that belongs to the guest, and with the guest's own."""
    guest.check(script(MAPPED + f"""
        snapshot userns
        ip netns add berth-test 2>/dev/null || {{ mkdir -p /run/netns; touch /run/netns/berth-test; unshare --net=/run/netns/berth-test true; }}
        expect_status 0 berthctl run --no-stdin -b {WORK}/n n
        expect_eq "net" "$out" "$(nsenter --net=/run/netns/berth-test readlink /proc/self/ns/net)"
        expect_status 0 berthctl run --no-stdin -b {WORK}/h h
        expect_eq "net" "$out" "$(readlink /proc/self/ns/net)"
        umount /run/netns/berth-test; rm /run/netns/berth-test
        """, n=changed(with_user("readlink /proc/self/ns/net; test -d /sys/class/net"),
                       linux__namespaces=[{"type": "user"}, {"type": "mount"}, {"type": "pid"}, {"type": "uts"}, {"type": "ipc"},
                                          {"type": "network", "path": "/run/netns/berth-test"}]),
        h=changed(with_user("readlink /proc/self/ns/net; test -d /sys/class/net"),
                  linux__namespaces=[{"type": "user"}, {"type": "mount"}, {"type": "pid"}, {"type": "uts"}, {"type": "ipc"}])), 200)


def case_binds_of_what_only_root_reaches(guest):
    """Sources below folders of the guest's root alone; in order with other mounts; recursive ones; read-only ones."""
    value = with_user(f"cat /mnt/a/file /mnt/b/file; echo x >/mnt/a/file; cat /proc/self/mountinfo | grep ' /mnt'")
    value["mounts"] += [
        {"destination": "/mnt", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/mnt/a", "type": "bind", "source": f"{SHARED}/secret/a", "options": ["bind", "ro"]},
        {"destination": "/mnt/b", "type": "bind", "source": f"{SHARED}/secret/b", "options": ["rbind", "rw"]}]
    out = guest.check(script(MAPPED + f"""
        rm -rf {SHARED}; mkdir -p {SHARED}/secret/a {SHARED}/secret/b
        echo one >{SHARED}/secret/a/file; echo two >{SHARED}/secret/b/file; chmod 700 {SHARED}/secret
        mkdir -p /run/mapped-rootfs/mnt; chown 100000:100000 /run/mapped-rootfs/mnt
        snapshot userns
        berthctl run --no-stdin -b {WORK}/u u 2>&1
        expect_unchanged userns
        """, u=value), 120)
    expect(out.startswith("one\ntwo\n"), out)
    expect("Read-only file system" in out, out)


def case_id_mapped_mounts(guest):
    """On ext4 or, failing that, on what the guest has; without and with a user namespace."""
    mount = {"destination": "/mnt", "type": "bind", "source": "/run/idmap/dir", "options": ["rbind", "ridmap"],
             "uidMappings": [{"containerID": 1000, "hostID": 2000, "size": 10}],
             "gidMappings": [{"containerID": 1000, "hostID": 3000, "size": 10}]}
    plain = spec("stat -c %u:%g /mnt/file; touch /mnt/new && stat -c %u:%g /mnt/new", process__user=None)
    plain = changed(spec("stat -c %u:%g /mnt/file; touch /mnt/new; stat -c %u:%g /mnt/new"),
                    process__user={"uid": 2003, "gid": 3004})
    plain["mounts"].append(mount)
    mapped = with_user("stat -c %u:%g /mnt/file; touch /mnt/two; stat -c %u:%g /mnt/two")
    mapped["mounts"].append({"destination": "/mnt", "type": "bind", "source": "/run/idmap/dir", "options": ["bind", "idmap"]})
    done = guest.sh(script(MAPPED + f"""
        umount /run/idmap 2>/dev/null; mkdir -p /run/idmap
        dd if=/dev/zero of=/run/test/disk bs=1M count=8 2>/dev/null
        busybox mke2fs -F /run/test/disk >/dev/null || exit 77
        mount -t ext4 -o loop /run/test/disk /run/idmap || exit 77  # of ext2 no mount can be id-mapped
        mkdir /run/idmap/dir; chown 1000:1000 /run/idmap/dir; chmod 777 /run/idmap/dir; echo x >/run/idmap/dir/file; chown 1001:1002 /run/idmap/dir/file
        mkdir -p /run/mapped-rootfs/mnt
        echo "@plain $(berthctl run --no-stdin -b {WORK}/p p 2>&1 | tr '\\n' ' ')"
        echo "@new $(stat -c %u:%g /run/idmap/dir/new)"
        chown 5:6 /run/idmap/dir/file
        echo "@mapped $(berthctl run --no-stdin -b {WORK}/m m 2>&1 | tr '\\n' ' ')"
        echo "@two $(stat -c %u:%g /run/idmap/dir/two)"
        umount /run/idmap
        """, p=plain, m=mapped), 120)
    if done.status == 77:
        from harness import Skip
        raise Skip(f"no file system to map in this guest: {done.err[-200:]}")
    seen = {line.split(" ")[0]: line.split(" ", 1)[1].strip() for line in done.out.splitlines() if line.startswith("@")}
    expect_eq("inside", seen["@plain"], "2001:3002 2003:3004")
    expect_eq("on the disk", seen["@new"], "1003:1004")
    expect_eq("with a user namespace", seen["@mapped"], "5:6 0:0")
    expect_eq("on the disk, with a user namespace", seen["@two"], "0:0")


def case_id_map_that_the_file_system_does_not_know(guest):
    value = spec("true")
    value["mounts"].append({"destination": "/mnt", "type": "bind", "source": "/sys/kernel", "options": ["bind"],
                            "uidMappings": MAP, "gidMappings": MAP})
    done = guest.sh(script(f"snapshot i; berthctl run --no-stdin -b {WORK}/i i; s=$?; expect_unchanged i; exit $s", i=value))
    expect(done.status != 0 and "mount_setattr idmap: EINVAL" in done.err, repr(done))


def case_time_namespace(guest):
    value = changed(spec("cat /proc/uptime; readlink /proc/self/ns/time; sleep 100000"),
                    linux__timeOffsets={"boottime": {"secs": 1000000, "nanosecs": 5}, "monotonic": {"secs": -3}})
    value["linux"]["namespaces"].append({"type": "time"})
    joined = spec("cat /proc/uptime; readlink /proc/self/ns/time")
    joined["linux"]["namespaces"].append({"type": "time", "path": "/proc/PID/ns/time"})
    out = guest.check(script(f"""
        snapshot time
        berthctl run -d --stdout vsock:// -b {WORK}/t t 2>/dev/null || berthctl run -d -b {WORK}/t t || fail run
        pid=$(berthctl --json state t | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
        echo "@offsets $(tr -s ' \\n' ' ' </proc/$pid/timens_offsets)"
        echo "@ns $(readlink /proc/$pid/ns/time)"
        echo "@guest $(readlink /proc/self/ns/time) $(cut -d . -f 1 /proc/uptime)"
        echo "@exec $(berthctl exec --no-stdin t sh -c 'readlink /proc/self/ns/time; cut -d . -f 1 /proc/uptime' | tr '\\n' ' ')"
        sed -i "s|/proc/PID/|/proc/$pid/|g" {WORK}/j/config.json
        echo "@joined $(berthctl run --no-stdin -b {WORK}/j j | tr '\\n' ' ')"
        berthctl delete -f t
        echo "@later $(berthctl run --no-stdin -b {WORK}/o o)"
        expect_unchanged time
        """, t=value, j=joined, o=spec("readlink /proc/self/ns/time")), 200)
    seen = {line.split(" ")[0]: line.split(" ")[1:] for line in out.splitlines() if line.startswith("@")}
    expect_eq("offsets", " ".join(seen["@offsets"]).strip(), "monotonic -3 0 boottime 1000000 5")
    expect(seen["@ns"] != seen["@guest"][:1], "it is in a namespace of its own")
    expect_eq("exec's namespace", seen["@exec"][0], seen["@ns"][0])
    expect(int(seen["@exec"][1]) >= 1000000, f"exec's uptime: {seen['@exec']}")
    expect_eq("joined namespace", seen["@joined"][2], seen["@ns"][0])
    expect(float(seen["@joined"][0]) >= 1000000, f"joined: {seen['@joined']}")
    expect_eq("the spawner came back", seen["@later"][0], seen["@guest"][0])


def case_time_offsets_in_a_user_namespace(guest):
    value = changed(with_user("cut -d . -f 1 /proc/uptime; tr -s ' ' </proc/self/uid_map"),
                    linux__timeOffsets={"boottime": {"secs": 500000}})
    value["linux"]["namespaces"].append({"type": "time"})
    out = guest.check(script(MAPPED + f"berthctl run --no-stdin -b {WORK}/t t", t=value), 120).split()
    expect(int(out[0]) >= 500000 and out[1:] == ["0", "100000", "65536"], repr(out))


def case_delegated_cgroup(guest):
    """A writable cgroup mount in a user namespace: its root owns the cgroup, and only that one."""
    value = with_user("mkdir /sys/fs/cgroup/sub && echo $$ >/sys/fs/cgroup/sub/cgroup.procs && cat /proc/self/cgroup; "
                      "echo 1 >/sys/fs/cgroup/pids.max; echo status $?")
    value["mounts"] = [mount for mount in value["mounts"] if mount["type"] != "cgroup"]
    value["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]})
    out = guest.check(script(MAPPED + f"snapshot c; berthctl run --no-stdin -b {WORK}/c c 2>&1; expect_unchanged c", c=value), 120)
    expect(out.startswith("0::/sub\n"), out)
    expect("status 1" in out, out)


def case_exec_beside_a_manager_of_cgroups(guest):
    """It runs where the init went, so that nothing is in the way of the controllers."""
    value = with_user("mkdir /sys/fs/cgroup/sub && echo 1 >/sys/fs/cgroup/sub/cgroup.procs && exec sleep 1000")
    value["mounts"] = [mount for mount in value["mounts"] if mount["type"] != "cgroup"]
    value["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]})
    out = guest.check(script(MAPPED + f"""
        snapshot m
        berthctl run -d -b {WORK}/m m || fail run
        moved() {{ berthctl exec --no-stdin m cat /proc/1/cgroup | grep -q sub; }}
        wait_for 20 moved || fail "it did not move"
        berthctl exec --no-stdin m sh -c 'cat /proc/self/cgroup; echo +pids >/sys/fs/cgroup/cgroup.subtree_control; echo status $?; ls /sys/fs/cgroup/sub/pids.max'
        berthctl exec --no-stdin m cat /proc/self/cgroup
        berthctl delete -f m
        expect_unchanged m""", m=value), 120)
    expect_eq("what it saw", out.split("\n"), ["0::/sub", "status 0", "/sys/fs/cgroup/sub/pids.max", "0::/sub", ""])


def case_hooks_of_a_user_namespace(guest):
    """createRuntime runs as the guest's root, createContainer and startContainer as the namespace's."""
    out = "/run/test/userns-hooks"
    hook = [{"path": "/bin/sh", "args": ["sh", "-c", f"tr -s ' ' </proc/self/uid_map >{out}/$0; id -u >>{out}/$0; "
                                                     f"[ -s /proc/self/fd/0 ] && echo state >>{out}/$0"]}]
    hooks = {}
    for kind in ("createRuntime", "createContainer", "startContainer"):
        hooks[kind] = [dict(hook[0], args=hook[0]["args"] + [kind])]
    value = with_user("true")
    value["hooks"] = hooks
    value["mounts"].append({"destination": out, "type": "bind", "source": out, "options": ["bind"]})
    seen = guest.check(script(MAPPED + f"""
        rm -rf {out}; mkdir -p {out} /run/mapped-rootfs{out}; chmod 777 {out}; chown -R 100000:100000 /run/mapped-rootfs/run
        snapshot h
        berthctl run --no-stdin -b {WORK}/h h || fail run
        for kind in createRuntime createContainer startContainer; do
            echo "@$kind $(tr '\\n' ' ' <{out}/$kind) $(stat -c %u {out}/$kind)"
        done
        rm {out}/*; expect_unchanged h
        """, h=value), 120)
    lines = {line.split()[0]: line.split()[1:] for line in seen.splitlines() if line.startswith("@")}
    expect_eq("createRuntime", lines["@createRuntime"], ["0", "0", "4294967295", "0", "state", "0"])
    for kind in ("@createContainer", "@startContainer"):
        expect_eq(kind, lines[kind], ["0", "100000", "65536", "0", "state", "100000"])
