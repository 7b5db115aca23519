#!/usr/bin/python3
"""The demo itself, with everything built: boots a guest, drives real containers in it, and prints what happened. Ends
with status 1, and the guest's console, when anything is not as it must be.
  show.py IMAGE-FOLDER [--agent FILE] [--ctl FILE] [--loopback]"""

import argparse
import fcntl
import json
import os
import re
import select
import shlex
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))
import guest as guests  # noqa: E402
import machine  # noqa: E402

MIB = 1 << 20
STEP_LIMIT_S = 120  # one command in a guest without KVM on a busy machine takes seconds; this only ends what hangs
ROOTFS = (
    "erofs:serial:userland:ro",
    "tmpfs:tmpfs:mode=0755,size=64m",
    "format/mkdir/overlay:overlay:X-containerd.mkdir.path={{ mount 1 }}/upper,X-containerd.mkdir.path={{ mount 1 }}/work,"
    "lowerdir={{ mount 0 }},upperdir={{ mount 1 }}/upper,workdir={{ mount 1 }}/work",
)


class Failed(Exception):
    """One line: what was not as it must be."""


def say(text=""):
    print(text, flush=True)


def heading(text):
    say(f"\n== {text}")


def quote(text, mark="   | "):
    for line in text.replace("\r", "").rstrip("\n").split("\n"):
        say(mark + line)


def expect(condition, text):
    if not condition:
        raise Failed(text)


class Result:
    def __init__(self, status, out, err):
        self.status, self.out = status, out.decode(errors="replace")
        self.timings, lines = {}, []
        for line in err.decode(errors="replace").splitlines():
            if line.startswith('{"timing"'):
                found = json.loads(line)
                self.timings.setdefault(found["timing"], []).append(found)
            elif line:
                lines.append(line)
        self.err = "\n".join(lines)

    def took_ms(self, what):
        expect(what in self.timings, f"berthctl told no time of {what}")
        return self.timings[what][-1]["tookNs"] / 1e6


class HostSide:
    """The client is a process of the host, on the guest's own vsock."""

    def __init__(self, guest, files, ctl):
        self.folder = os.path.join(files, "bin")
        os.mkdir(self.folder)
        os.symlink(os.path.realpath(ctl), os.path.join(self.folder, "berthctl"))
        self.environment = dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", FILES=files,
                                BERTH_ADDRESS=guest.address, BERTH_SECRET_FILE=guest.secret_path)

    def run_in_terminal(self, script, columns, rows):
        """Its output, from a terminal of that size as its only input and output."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

        def take_over():
            machine.dies_with_parent()
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        child = subprocess.Popen(["sh", "-c", script], env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs,
                                 preexec_fn=take_over)
        os.close(theirs)
        out, deadline = b"", time.monotonic() + STEP_LIMIT_S
        try:
            while select.select([ours], [], [], max(0, deadline - time.monotonic()))[0]:
                try:
                    piece = os.read(ours, 4096)
                except OSError:  # EIO: nobody holds the other end any more
                    piece = b""
                if not piece:
                    return Result(child.wait(), out, b"")
                out += piece
            raise Failed(f"not done after {STEP_LIMIT_S} s: {script}")
        finally:
            os.close(ours)
            child.kill()
            child.wait()

    def run(self, script):
        child = subprocess.Popen(["sh", "-c", script], env=self.environment, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                 preexec_fn=machine.dies_with_parent)
        try:
            out, err = child.communicate(timeout=STEP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"not done after {STEP_LIMIT_S} s: {script}") from None
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # what it left in the background
            except ProcessLookupError:
                pass
        return Result(child.returncode, out, err)


class GuestSide:
    """The client runs in the guest, outside the containers, over the kernel's vsock loopback."""

    def __init__(self, guest):
        self.guest = guest
        self.head = ("export FILES=/demo BERTH_ADDRESS=vsock://1:1023 BERTH_SECRET_FILE=/demo/secret\n")

    def run(self, script):
        out, err = bytearray(), bytearray()
        status = self.guest.run(self.head + script, stdout=out.extend, stderr=err.extend, limit_s=STEP_LIMIT_S)
        return Result(status, bytes(out), bytes(err))


def create_words(container, bundle):
    mounts = " ".join(f"--rootfs-mount {shlex.quote(mount)}" for mount in ROOTFS)
    return f"--bundle $FILES/{bundle} {mounts} {container}"


# ---- the files ----


def changed(config, change):
    copy = json.loads(json.dumps(config))
    change(copy)
    return copy


def memory(limit, swap):
    def change(config):
        config["linux"]["resources"]["memory"] = {"limit": limit, "swap": swap}
    return change


def unified(key, value):
    def change(config):
        config["linux"]["resources"]["unified"] = {key: value}
    return change


def device(path, kind, major, minor):
    def change(config):
        config["linux"]["devices"] = [{"path": path, "type": kind, "major": major, "minor": minor, "fileMode": 0o666,
                                       "uid": 0, "gid": 0}]
    return change


VARIANTS = {
    "limited": memory(64 * MIB, 96 * MIB),
    "unknown-key": unified("memory.oom.priority", "1"),
    "swap-below": memory(64 * MIB, 32 * MIB),
    "char-device": device("/dev/nvidia0", "c", 195, 0),
    "block-device": device("/dev/sda", "b", 8, 0),
}


def write_bundles(image, files):
    """`demo` is byte for byte what umoci wrote; the others differ from it by what VARIANTS does."""
    shutil.copytree(os.path.join(image, "bundle"), os.path.join(files, "demo"))
    with open(os.path.join(files, "demo/config.json"), encoding="utf-8") as source:
        config = json.load(source)
    for name, change in VARIANTS.items():
        os.mkdir(os.path.join(files, name))
        with open(os.path.join(files, name, "config.json"), "w", encoding="utf-8") as output:
            json.dump(changed(config, change), output, indent=2)
    with open(os.path.join(files, "wrong-secret"), "w", encoding="ascii") as output:
        output.write(os.urandom(32).hex() + "\n")
    with open(os.path.join(files, "secret"), "w", encoding="ascii") as output:
        output.write(os.urandom(32).hex() + "\n")


# ---- the steps ----


class Demo:
    def __init__(self, options, files):
        self.options, self.files = options, files
        self.table = []  # (step, milliseconds, what was measured)
        self.over_host = machine.vsock_backend() is not None and not options.loopback
        ctl = options.ctl or os.path.join(machine.TOP, "build/release/berthctl")
        agent = options.agent or os.path.join(machine.TOP, "build/release/berth")
        words = ["--mem", "512M", "--swap", "128M", "--agent", agent, "--ctl", ctl, "--append", "berth.log=debug",
                 "--disk", f"{options.image}/root.erofs,serial=userland,ro", "--secret-file", f"{files}/secret"]
        if self.over_host:
            words.append("--vsock")
        else:
            words += ["--append", "berth.allow_local=1", "--add", f"{files}:/demo"]
        self.ctl = ctl
        self.guest = guests.Guest(guests.parse_options(words, "demo"))
        self.side = None

    def ask(self, script):
        """A command that must succeed."""
        result = self.side.run(script)
        expect(result.status == 0, f"{script.splitlines()[-1]}: exit status {result.status}: {result.err or result.out}")
        return result

    def kernel(self, script):
        """What the guest's kernel says, read outside every container and past the agent."""
        out, err = bytearray(), bytearray()
        status = self.guest.run(script, stdout=out.extend, stderr=err.extend, limit_s=STEP_LIMIT_S)
        expect(status == 0, f"in the guest: {script}: {err.decode(errors='replace').strip()}")
        return out.decode(errors="replace").strip()

    def run(self):
        self.boot()
        self.connect()
        self.hello()
        self.limits()
        self.terminal()
        self.oom_kill()
        self.delete()
        self.refusals()
        self.show_table()
        self.power_off()

    def boot(self):
        heading("a guest boots with the agent as PID 1")
        kvm = machine.has_kvm()
        say("   QEMU with " + ("KVM" if kvm else "its own emulation of the CPU (no working KVM here): all times are longer than on hardware"))
        self.guest.start()
        self.guest.wait_ready()
        ready_s = time.monotonic() - self.guest.started
        found = re.search(r"boot\.step: vsock listener took \d+ us, done (\d+) us", self.guest.console())
        expect(found, "the keeper did not say when it listened")
        listening_ms = int(found[1]) / 1000
        say(f"   the vsock listener was open {listening_ms / 1000:.2f} s after the kernel's start; QEMU's start to an agent that serves: {ready_s:.1f} s")
        started = re.search(r"boot\.step: [^\n]*? took (\d+) us, done (\d+) us", self.guest.console())
        own = int(found[1]) - (int(started[2]) - int(started[1]))
        self.table.append(("boot to listening", listening_ms, f"the kernel's start to the open listener; {own / 1000:.0f} ms of it are the keeper's"))

    def connect(self):
        heading("a client outside the agent connects and proves the secret")
        if self.over_host:
            self.side = HostSide(self.guest, self.files, self.ctl)
            way = "the kernel's vhost-vsock" if self.guest.address.startswith("vsock:") else "vhost-device-vsock"
            say(f"   from the host, over the guest's own vsock ({way}): {self.guest.address.replace(self.guest.folder, '...')}")
        else:
            self.side = GuestSide(self.guest)
            why = "as asked for" if self.options.loopback else machine.NO_VSOCK
            say(f"   from inside the guest, outside its containers, over the kernel's vsock loopback: {why}")
        times = []
        for _ in range(5):
            times.append(self.ask("berthctl --timing --json info"))
        info = json.loads(times[-1].out)
        say(f"   agent {info['version']}, kernel {info['kernelRelease']}, authentication: {info['auth']}, generation {info['generation']}, "
            f"instance {info['instanceId']}")
        self.table.append(("handshake", statistics.median(result.took_ms("handshake") for result in times),
                           "four messages, mutual proof (median of 5)"))

    def clock(self):
        """(nanoseconds to add to the client's clock to get the guest's time since boot, how wrong that may be)."""
        best = None
        for _ in range(5):
            result = self.ask("berthctl --timing --json info")
            call = result.timings["Info"][-1]
            if best is None or call["tookNs"] < best[1]:
                best = (json.loads(result.out)["uptimeNs"] - call["startUnixNs"] - call["tookNs"] // 2, call["tookNs"])
        return best[0], best[1] / 2

    def hello(self):
        heading("a container from an OCI image, config.json as umoci wrote it")
        say("   root file system: erofs on a read-only virtio disk (by its serial), a tmpfs, an overlay of both")
        result = self.ask("echo goodbye | berthctl run " + create_words("demo", "demo"))
        expect("Hello from python" in result.out and "you said 'goodbye'" in result.out, f"the container said {result.out!r}")
        quote(result.out)
        say("   (its input was sent ahead: the first line is the terminal's echo.) It ended with status 0 and was deleted")

    def limits(self):
        heading("limits: memory 64 MiB, memory + swap 96 MiB")
        say("   the same config.json, changed in linux.resources.memory alone")
        created = self.ask("berthctl --timing --json create --stdin stream:// --stdout stream:// " + create_words("limited", "limited"))
        started = self.ask("berthctl --timing --json start limited")
        self.table.append(("create", created.took_ms("Create"), "namespaces, cgroup, limits, three mounts, root"))
        self.table.append(("start", started.took_ms("Start"), "python3 runs"))
        cgroup = json.loads(self.ask("berthctl --json list limited").out)[0]["cgroup"].strip("/")
        self.cgroup = f"/sys/fs/cgroup/berth/{cgroup.removeprefix('berth/')}"
        for name, wanted in (("memory.max", 64 * MIB), ("memory.swap.max", 32 * MIB)):
            value = self.kernel(f"cat {self.cgroup}/{name}")
            say(f"   {self.cgroup}/{name} = {value}")
            expect(value == str(wanted), f"{name} is {value}, not {wanted}")

    def terminal(self):
        inside = "echo tty: $(tty), stty says $(stty size), pid $$, $(nproc) CPUs"
        exec_command = f"berthctl exec --tty limited sh -c {shlex.quote(inside)}"
        if self.over_host:
            heading("exec with a terminal, from a terminal of 100 x 30")
            result = self.side.run_in_terminal(exec_command, 100, 30)
            expect(result.status == 0 and "30 100" in result.out, f"the terminal has not the size of the caller's: {result.out!r}")
        else:
            heading("exec with a terminal")
            result = self.ask(exec_command)
        quote(result.out)
        expect("/dev/pts/" in result.out, f"there is no terminal: {result.out!r}")
        timed = [self.ask("berthctl --timing --json exec limited true") for _ in range(3)]
        self.table.append(("exec", statistics.median(one.took_ms("Exec") + one.took_ms("Start") for one in timed),
                           "a further process runs (median of 3)"))

    def oom_kill(self):
        heading("a program that allocates until it is OOM-killed")
        last = json.loads(self.ask("berthctl --json info").out)["lastSequence"]
        result = self.ask(
            f"berthctl --json events --since {last} limited >/tmp/demo-events.$$ & watcher=$!\n"
            "berthctl exec limited /usr/local/bin/hog >/tmp/demo-hog.$$; status=$?\n"
            "sleep 1; kill $watcher; wait $watcher 2>/dev/null\n"
            "cat /tmp/demo-hog.$$ /tmp/demo-events.$$; rm -f /tmp/demo-hog.$$ /tmp/demo-events.$$; exit $status")
        hog, *events = [json.loads(line) for line in result.out.splitlines()]
        expect(hog["signal"] == signal.SIGKILL, f"the hog died of signal {hog['signal']}")
        say(f"   it got {hog['mib']} MiB, then the kernel killed it")
        kills = [event for event in events if event["event"] == "memory" and event["increase"]["oom_kill"] > 0]
        expect(len(kills) == 1, f"{len(kills)} events tell of an OOM kill")
        event = kills[0]
        names = ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")
        say(f"   event {event['sequence']}: " + ", ".join(f"{name} {event[name]}" for name in names))
        counters = dict(line.split() for line in self.kernel(f"cat {self.cgroup}/memory.events").splitlines())
        say("   the kernel, asked afterwards: " + ", ".join(f"{name} {counters[name]}" for name in names))
        expect(event["oom_kill"] == int(counters["oom_kill"]) == 1, "the event's oom_kill is not the kernel's")
        self.latency(hog, event)

    def latency(self, hog, event):
        # The kernel's log has the moment of the kill on a clock of its own: what that showed between two looks at the
        # clock of the guest tells their distance.
        lines = self.kernel(
            "now() { { read -r _; read -r _; read -r _ _ at _; } </proc/timer_list; }\n"
            "for i in 1 2 3 4 5; do now; before=$at; echo berth-demo-mark >/dev/kmsg; now; echo \"$before $at\"; done\n"
            "dmesg | grep -e berth-demo-mark -e 'Killed process'").splitlines()
        looks = [tuple(map(int, line.split())) for line in lines[:5]]
        logged = [(int(float(line[1:line.index("]")]) * 1e9), line) for line in lines[5:]]
        marks = [at for at, line in logged if "berth-demo-mark" in line]
        kills = [at for at, line in logged if "Killed process" in line]
        expect(len(marks) == 5 and len(kills) == 1, f"the kernel's log has {len(kills)} kills")
        width, log_offset = min((after - before, (after + before) // 2 - mark) for (before, after), mark in zip(looks, marks))
        offset, error = self.clock()
        received = event["receivedUnixNs"] + offset
        from_kill = (received - kills[0] - log_offset) / 1e6
        after_parent = (received - hog["reaped"]) / 1e6
        wrong = (error + width / 2) / 1e6
        say(f"   {from_kill:.1f} ms (+/- {wrong:.1f}) from the kill to the event at the client")
        say("     from \"Killed process\" in the kernel's log to the line in berthctl, the clocks compared over the same wire")
        say(f"     the program's own parent had its wait() answered {abs(after_parent):.1f} ms {'later' if after_parent < 0 else 'earlier'}")
        expect(from_kill > -wrong and kills[0] + log_offset > hog["touched"] - wrong * 1e6, "the clocks contradict each other")
        self.table.append(("OOM kill to event", from_kill, f"kernel's log to client, +/- {wrong:.1f}"))

    def delete(self):
        heading("the end of it")
        self.ask("berthctl kill limited KILL")
        status = self.ask("berthctl wait limited").out.strip()
        deleted = self.ask("berthctl --timing --json delete limited")
        say(f"   kill, then wait: status {status}; delete")
        expect(status == "137", f"the exit status is {status}, not 137")
        self.table.append(("delete", deleted.took_ms("Delete"), "process, mounts and cgroup are gone"))
        self.nothing_left()

    def nothing_left(self):
        left = json.loads(self.ask("berthctl --json list").out)
        cgroups = self.kernel("cd /sys/fs/cgroup/berth && ls -d */ 2>/dev/null || true")
        expect(left == [] and cgroups == "", f"left: containers {left}, cgroups {cgroups!r}")

    def refusals(self):
        heading("six requests that are refused")
        create = "berthctl create "
        for what, script in (
                ("an unknown unified key", create + create_words("refused", "unknown-key")),
                ("swap total below memory", create + create_words("refused", "swap-below")),
                ("a character device that this guest does not have", create + create_words("refused", "char-device")),
                ("a block device", create + create_words("refused", "block-device")),
                ("a connection without authentication", "BERTH_SECRET_FILE= berthctl info"),
                ("a wrong secret", "berthctl --secret-file $FILES/wrong-secret info")):
            result = self.side.run(script)
            expect(result.status != 0, f"{what} was not refused")
            say(f"   {what}:")
            quote(result.err.replace(self.guest.folder, "...") + f"  (exit status {result.status})")
        self.nothing_left()
        say("   and nothing is left of them: no container, no cgroup")

    def show_table(self):
        heading("how long the steps took, as the client saw them")
        for step, milliseconds, what in self.table:
            say(f"   {step:<18}{milliseconds:>10.1f} ms   {what}")

    def power_off(self):
        heading("power-off")
        try:
            self.ask("berthctl shutdown")
        except machine.VmError:
            if self.over_host:
                raise
            # The client was in the guest, and ended with it.
        expect(self.guest.wait_powered_off(60), "the guest did not power off")
        folder, process = self.guest.folder, self.guest.qemu.pid
        self.guest.stop()
        expect(not os.path.exists(folder) and not os.path.exists(f"/proc/{process}"), f"{folder} or process {process} is left")
        say("   the guest powered off by request; its process and its files are gone")


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("image")
    parser.add_argument("--agent", metavar="FILE")
    parser.add_argument("--ctl", metavar="FILE")
    parser.add_argument("--loopback", action="store_true", help="the client in the guest, although the host has a vsock to it")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    files = tempfile.mkdtemp(prefix="berth-demo-")
    try:
        write_bundles(options.image, files)
        demo = Demo(options, files)
        with demo.guest as guest:
            try:
                demo.run()
            except (Failed, machine.VmError, machine.guest_image.ImageError, TimeoutError, OSError, ValueError, KeyError) as error:
                say(guest.console_for_people())
                say(f"demo: {error if not isinstance(error, KeyError) else f'no {error} in an answer'}")
                return 1
    except KeyboardInterrupt:
        say("demo: stopped")
        return 130
    finally:
        shutil.rmtree(files, ignore_errors=True)
    return 0


sys.exit(main())
