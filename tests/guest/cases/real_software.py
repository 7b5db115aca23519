# Programs from Debian's packages in containers of umoci's specs: each one's own answer is what counts. The image is made
# once by tests/guest/software/image and reaches the guest as a read-only disk under an overlay.
# suite: main
# limit: 900
import json
import os
import subprocess

from boxes import ALL_CAPABILITIES, HERE, WORK, changed, expect, expect_eq, script
from harness import Failure, Skip

ROOTFS = ("erofs:serial:software:ro", "tmpfs:tmpfs:mode=0755,size=256m",
          "format/mkdir/overlay:overlay:lowerdir={{ mount 0 }},upperdir={{ mount 1 }}/u,workdir={{ mount 1 }}/w,"
          "X-containerd.mkdir.path={{ mount 1 }}/u:0755:0:0,X-containerd.mkdir.path={{ mount 1 }}/w")
ON_ROOT = "".join(f" --rootfs-mount '{mount}'" for mount in ROOTFS)
# What podman gives to a container.
CAPABILITIES = ["CAP_" + name for name in ("CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETFCAP SETGID SETPCAP "
                                           "SETUID SYS_CHROOT").split()]
OWN_CGROUP = {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
              "options": ["nosuid", "nodev", "noexec", "rw"]}
MIB = 1 << 20

# run NAME: starts the container of the bundle NAME. inside NAME COMMAND...: what it prints in there. pid_of NAME.
SHELL = f"""
run() {{ berthctl run -d -b {WORK}/$1 {ON_ROOT} $1 || fail "run $1"; }}
inside() {{ name=$1; shift; berthctl exec --no-stdin $name -- "$@"; }}
pid_of() {{ berthctl --json state $1 | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p'; }}
cgroup_of() {{ echo /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$(pid_of $1)/cgroup); }}
"""


def _image():
    """The folder of the image; Skip where it cannot be made."""
    made = subprocess.run([os.path.join(HERE, "software/image")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if made.returncode != 0:
        raise Skip("the image cannot be made: " + (made.stderr.decode().strip().splitlines() or ["no reason"])[-1][-200:])
    return made.stdout.decode().strip()


def _spec(image, name, capabilities=None, mounts=(), **paths):
    """umoci's spec of a program, without a terminal."""
    with open(os.path.join(image, name + ".json"), encoding="utf-8") as source:
        spec = json.load(source)
    kept = capabilities or CAPABILITIES
    spec = changed(spec, root={"path": "rootfs"}, process__terminal=False, process__noNewPrivileges=False,
                   process__rlimits=[{"type": "RLIMIT_NOFILE", "soft": 65536, "hard": 65536}],
                   process__capabilities={key: kept for key in ("bounding", "effective", "permitted")})
    spec["linux"]["namespaces"].append({"type": "cgroup"})
    gone = {mount["destination"] for mount in mounts}
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] not in gone] + list(mounts)
    return changed(spec, **paths)


def _tmpfs(path, *options):
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", *options]}


def _in_guest(boot, image, body, **specs):
    """Runs a script in a guest that has the image's disk; its standard output."""
    with boot("--disk", f"{image}/root.erofs,serial=software,ro", "--mem", "1536M") as guest:
        guest.wait_ready()
        done = guest.sh(script(SHELL + body, **specs), 800)
        if done.status != 0:
            raise Failure(repr(done))
        return done.out


def _values(text):
    """{key: rest} of `@key rest` lines."""
    return {line[1:].split(" ")[0]: line.partition(" ")[2].strip() for line in text.splitlines() if line.startswith("@")}


UNIT = """[Unit]
Description=What the case asks for
[Service]
Type=oneshot
RemainAfterExit=yes
MemoryMax=32M
ExecStart=/bin/sh -c 'cat /proc/self/cgroup; echo "limit $(cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max)"'
StandardOutput=file:/run/answer
"""


def long_own_systemd_is_init(boot):
    image = _image()
    spec = _spec(image, "systemd", mounts=[OWN_CGROUP, _tmpfs("/run", "mode=755"), _tmpfs("/run/lock"), _tmpfs("/tmp"),
                 {"destination": "/etc/systemd/system/answer.service", "type": "bind", "source": f"{WORK}/answer.service",
                  "options": ["rbind", "ro"]}],
                 linux__resources={"memory": {"limit": 256 * MIB}, "pids": {"limit": 200}})
    spec["process"]["env"].append("container=oci")
    said = _values(_in_guest(boot, image, f"""
        cat >{WORK}/answer.service <<'END_OF_UNIT'
{UNIT}
END_OF_UNIT
        run init
        settled() {{ case $(inside init systemctl is-system-running --wait 2>/dev/null) in running | degraded) ;; *) false ;; esac; }}
        wait_for 60 settled
        echo "@state $(inside init systemctl is-system-running)"
        echo "@failed $(inside init systemctl --failed --no-legend --plain | tr '\\n' ' ')"
        echo "@target $(inside init systemctl is-active multi-user.target)"
        echo "@init $(inside init cat /proc/1/comm)"
        inside init systemctl start answer.service || fail "start answer.service: $(inside init systemctl status answer.service)"
        echo "@answer $(inside init cat /run/answer | tr '\\n' ' ')"
        echo "@execs $(inside init cat /proc/self/cgroup)"
        berthctl kill init 37 || fail kill  # SIGRTMIN+3
        echo "@status $(berthctl wait init)"
        berthctl delete init || fail delete
        find /sys/fs/cgroup/berth -name '*init*' | grep . && fail "its cgroups are left"
        exit 0""", init=spec))
    expect_eq("its state", (said["state"], said["failed"]), ("running", ""))
    expect_eq("multi-user.target", said["target"], "active")
    expect_eq("pid 1", said["init"], "systemd")
    # The unit runs in a cgroup of its own below the container's, with its own limit.
    expect_eq("what the unit says", said["answer"].split(), ["0::/system.slice/answer.service", "limit", str(32 * MIB)])
    expect_eq("where an exec runs", said["execs"], "0::/init.scope")
    expect_eq("its exit status", said["status"], "0")


def long_own_redis_under_load(boot):
    image = _image()
    server = _spec(image, "redis", linux__resources={"memory": {"limit": 128 * MIB}})
    load = _spec(image, "sh")
    said = _values(_in_guest(boot, image, f"""
        run redis
        wait_for 60 inside redis redis-cli ping >/dev/null || fail "redis does not answer"
        sed -i "s|\\"type\\": \\"network\\"|\\"type\\": \\"network\\", \\"path\\": \\"/proc/$(pid_of redis)/ns/net\\"|" {WORK}/load/config.json
        run load
        echo "@same $([ "$(inside load readlink /proc/1/ns/net)" = "$(inside redis readlink /proc/1/ns/net)" ] && echo yes)"
        inside load redis-benchmark --csv -t set,get,incr,lpush -n 2000 -c 20 -P 4 -d 100 >$work/benchmark || fail "$(cat $work/benchmark)"
        echo "@tests $(grep -c '^"' $work/benchmark)"
        echo "@counter $(inside redis redis-cli get counter:__rand_int__)"
        echo "@list $(inside redis redis-cli llen mylist)"
        inside load redis-cli set question 42 >/dev/null
        echo "@answer $(inside redis redis-cli get question)"
        echo "@limit $(inside redis cat /sys/fs/cgroup/memory.max)"
        echo "@oom $(awk '$1 == "oom_kill" {{ print $2 }}' $(cgroup_of redis)/memory.events)"
        inside load redis-cli shutdown nosave
        echo "@status $(berthctl wait redis)"
        berthctl delete redis && berthctl delete -f load || fail delete""",
                             redis=server, load=changed(load, process__args=["sleep", "100000"])))
    expect_eq("joined the network namespace", said["same"], "yes")
    expect_eq("tests of the benchmark", int(said["tests"]), 5)  # a head and four
    expect_eq("increments", int(said["counter"]), 2000)
    expect_eq("pushes", int(said["list"]), 2000)
    expect_eq("what another container set", said["answer"], "42")
    expect_eq("its limit, seen inside", int(said["limit"]), 128 * MIB)
    expect_eq("OOM kills, exit status", (said["oom"], said["status"]), ("0", "0"))


def long_own_nginx_serves_a_file(boot):
    image = _image()
    server = _spec(image, "nginx", mounts=[{"destination": "/var/www/html", "type": "bind", "source": f"{WORK}/www",
                                            "options": ["rbind", "ro"]}])
    said = _values(_in_guest(boot, image, f"""
        mkdir -p {WORK}/www && head -c 3000000 /dev/urandom >{WORK}/www/file
        echo "@served $(sha256sum <{WORK}/www/file)"
        run nginx
        sed -i "s|\\"type\\": \\"network\\"|\\"type\\": \\"network\\", \\"path\\": \\"/proc/$(pid_of nginx)/ns/net\\"|" {WORK}/client/config.json
        run client
        wait_for 60 inside client busybox wget -q -O /tmp/file http://127.0.0.1/file || fail "nginx does not answer"
        echo "@got $(inside client sha256sum /tmp/file | sed 's|/tmp/file|-|')"
        echo "@missing $(inside client busybox wget -q -O /tmp/none http://127.0.0.1/none 2>&1)"
        echo "@log $(inside nginx grep -c 'GET /file HTTP/1.1" 200 3000000' /var/log/nginx/access.log)"
        echo "@workers $(inside nginx ps -C nginx -o user= 2>/dev/null | sort -u | tr '\\n' ' ')$(inside nginx sh -c 'stat -c %U /proc/[0-9]*' | sort -u | tr '\\n' ' ')"
        berthctl kill nginx QUIT
        echo "@status $(berthctl wait nginx)"
        berthctl delete nginx && berthctl delete -f client || fail delete""",
                             nginx=server, client=changed(_spec(image, "sh"), process__args=["sleep", "100000"])))
    expect_eq("the file", said["got"], said["served"])
    expect("404" in said["missing"], f"of a file that is not there: {said['missing']!r}")
    expect(int(said["log"]) >= 1, "the access log does not know of it")
    expect("www-data" in said["workers"], f"its workers are not www-data: {said['workers']!r}")
    expect_eq("its exit status", said["status"], "0")


PROGRAM = r"""
import os, signal, sys, time
def of(name):
    with open("/sys/fs/cgroup/" + name) as source:
        return source.read().strip()
limit = int(of("memory.max"))
print("@limit", limit, "@swap", of("memory.swap.max"), "@pids", of("pids.max"), "@cpu", of("cpu.max"), flush=True)
before = int(of("memory.current"))
data = bytearray(os.urandom(1 << 20) * (limit // 4 >> 20))
print("@grown", int(of("memory.current")) - before, "@quarter", limit // 4, flush=True)
if os.fork() == 0:
    data += os.urandom(1 << 20) * (limit >> 20)
    os._exit(0)
print("@child", os.WTERMSIG(os.wait()[1]), "@kills", dict(line.split() for line in of("memory.events").splitlines())["oom_kill"], flush=True)
while int(of("memory.max")) == limit:
    time.sleep(0.2)
print("@now", of("memory.max"), flush=True)
"""


def long_own_python_sees_its_limit(boot):
    image = _image()
    spec = _spec(image, "python", process__args=["python3", "-c", PROGRAM], linux__resources={
        "memory": {"limit": 64 * MIB, "swap": 64 * MIB}, "pids": {"limit": 50}, "cpu": {"quota": 75000, "period": 100000}})
    out = _in_guest(boot, image, f"""
        berthctl run --no-stdin -b {WORK}/python {ON_ROOT} python >$work/said & running=$!
        wait_for 120 grep -q @child $work/said || fail "it said $(cat $work/said)"
        berthctl update --memory {96 * MIB} --memory-swap {96 * MIB} python || fail update
        wait $running || fail "it ended with $?"
        cat $work/said""", python=spec)
    words = out.replace("\n", " ").split(" ")
    said = {word: words[at + 1] for at, word in enumerate(words) if word.startswith("@")}
    expect_eq("its limits", (said["@limit"], said["@swap"], said["@pids"]), (str(64 * MIB), "0", "50"))
    expect("@cpu 75000 100000" in out, f"its CPU quota: {out!r}")
    expect(int(said["@grown"]) >= int(said["@quarter"]) * 9 // 10, f"it took a quarter, and memory.current said {said['@grown']}")
    expect_eq("what took more died by, and was counted as", (said["@child"], said["@kills"]), ("9", "1"))
    expect_eq("its limit after the update", said["@now"], str(96 * MIB))


# As every engine's own image starts in a container: no process may be where cgroups are to be made.
NEST = """set -e
mkdir /sys/fs/cgroup/init
while read -r pid; do echo $pid >/sys/fs/cgroup/init/cgroup.procs || :; done </sys/fs/cgroup/cgroup.procs
sed -e 's/ / +/g' -e 's/^/+/' </sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
exec containerd --log-level warn
"""


def long_own_containerd_runs_a_nested_container(boot):
    image = _image()
    spec = _spec(image, "containerd", capabilities=ALL_CAPABILITIES,
                 mounts=[OWN_CGROUP, _tmpfs("/run", "mode=755", "exec"), _tmpfs("/var/lib/containerd", "mode=755", "exec")],
                 process__args=["sh", "-c", NEST], linux__maskedPaths=[], linux__readonlyPaths=[],
                 linux__resources={"memory": {"limit": 512 * MIB}, "devices": [{"allow": True, "access": "rwm"}]})
    said = _values(_in_guest(boot, image, f"""
        run engine
        wait_for 120 inside engine ctr version >/dev/null 2>&1 || fail "containerd does not answer"
        inside engine ctr image import --base-name localhost/box --digests=true /srv/box.tar >$work/import 2>&1 || fail "import: $(cat $work/import)"
        echo "@out $(inside engine ctr run --rm --memory-limit 33554432 localhost/box:1 first /bin/sh -c 'echo nested $$ $((6 * 7)); exit 5' 2>&1)"
        inside engine ctr run --rm localhost/box:1 second /bin/sh -c 'exit 5' >/dev/null 2>&1
        echo "@status $?"
        inside engine ctr run -d --memory-limit 33554432 --pid-file /run/pid localhost/box:1 third /bin/sh -c 'read -r line </dev/zero' || fail "ctr run -d"
        echo "@limit $(inside engine cat /sys/fs/cgroup/default/third/memory.max)"
        echo "@cgroup $(inside engine sh -c 'cat /proc/$(cat /run/pid)/cgroup')"
        inside engine ctr task kill -s KILL third
        echo "@outer $(cat $(cgroup_of engine)/../memory.max)"
        berthctl kill engine TERM
        echo "@ended $(berthctl wait engine)"
        berthctl delete engine || fail delete
        find /sys/fs/cgroup/berth -name '*engine*' | grep . && fail "its cgroups are left"
        exit 0""", engine=spec))
    expect_eq("what it printed", said["out"], "nested 1 42")
    expect_eq("its exit status", said["status"], "5")
    expect_eq("its limit", int(said["limit"]), 32 * MIB)
    expect_eq("its cgroup", said["cgroup"], "0::/default/third")
