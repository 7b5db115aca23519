"""One guest in QEMU: the keeper as PID 1, busybox and berthctl beside it, commands run in it as root."""

import argparse
import base64
import os
import re
import secrets
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import machine
from machine import VmError, guest_image

_HERE = os.path.dirname(os.path.realpath(__file__))
_SECRET_WAYS = ("initramfs", "fw_cfg", "smbios", "none")
_KERNEL_ARGUMENTS = ("console=ttyS0 quiet panic=-1 printk.devkmsg=on random.trust_cpu=on rcupdate.rcu_expedited=1 "
                     "berth.local=1")
_BOOT_LIMIT_S = 300  # a guest under TCG on a busy machine takes 10 s; this only ends what hangs
VSOCK_PORT = 1023


def add_options(parser):
    """The options of a guest, as toolchain/vm and tests/guest/suites/* spell them."""
    add = parser.add_argument
    add("--kernel", default="debian", metavar="debian|berth|PATH", help="default: debian")
    add("--machine", default="q35", metavar="q35|microvm[,OPTION...]",
        help="QEMU's machine (default: q35); microvm has virtio-mmio devices and wants --kernel berth or PATH")
    add("--mem", default="512M", metavar="SIZE", help="default: 512M")
    add("--cpus", type=int, default=2, metavar="N", help="default: 2")
    add("--icount", action="store_true", help="count instructions instead of time: one CPU, no KVM, repeatable")
    add("--add", action="append", default=[], metavar="HOSTPATH:GUESTPATH[:MODE]", help="a file or folder in the image")
    add("--disk", action="append", default=[], metavar="IMAGE[,serial=NAME][,ro][,format=FORMAT]",
        help="a virtio disk; serials are disk0, disk1, ... unless given, the format is raw")
    add("--swap", metavar="SIZE", help="swap in compressed memory (zram)")
    add("--append", action="append", default=[], metavar="K=V", help="more kernel command line")
    add("--vsock", action="store_true", help="a vsock device towards the host, also without --host")
    add("--secret-file", metavar="FILE", help="the VM's secret (default: a random one)")
    add("--secret-by", choices=_SECRET_WAYS, default="initramfs", help="how the guest gets it (default: initramfs)")
    add("--no-image", action="store_true", help="the kernel holds the image (initramfs/kernel --with-initramfs)")
    add("--bare", action="store_true", help="the product's own image: the agent and the kernel's modules, nobody who runs a COMMAND")
    add("--agent", metavar="FILE", help="PID 1 (default: build/release/berth)")
    add("--ctl", metavar="FILE", help="berthctl (default: beside the agent)")
    add("--qemu", action="append", default=[], metavar="ARGS", help="more arguments for QEMU")


def parse_options(words, prog):
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False)
    add_options(parser)
    return parser.parse_args(words)


class Guest:
    """start(), then run() any number of times, then stop(). Use as a context manager: stop() always cleans up."""

    def __init__(self, options, shell=False):
        self.options = options
        self.shell = shell
        self.folder = tempfile.mkdtemp(prefix="berth-vm-")
        self.console_path = os.path.join(self.folder, "console")
        self.secret_path = os.path.join(self.folder, "secret")
        self.address = None  # the agent's, from the host, with a vsock
        self.cid = None
        self.qemu = None
        self.started = None  # monotonic seconds of QEMU's start
        self._vsock = None
        self._ports = []  # our ends of the four virtio-serial ports
        self._theirs = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    # ---- life ----

    def start(self):
        """Starts QEMU. VmError when something on the host is missing or wrong."""
        options = self.options
        os.chmod(self.folder, 0o700)
        secret = self._secret()
        bzimage, modules = machine.kernel(options.kernel)
        initrd = os.path.join(self.folder, "initrd")
        with open(initrd, "wb") as output:
            if not options.no_image:
                output.write(self.image(modules).bytes())
            if not options.bare:
                output.write(self._run_segment().bytes())
            if options.secret_by == "initramfs":
                output.write(guest_image.secret_segment(secret))
        if options.vsock:
            self._vsock = machine.Vsock(self.folder, options.mem, machine.virtio_bus(options.machine))
            self.address, self.cid = f"{self._vsock.address}:{VSOCK_PORT}", self._vsock.cid
        command = self._machine_arguments() + self._device_arguments() + self._disk_arguments()
        command += self._secret_arguments(secret)
        command += ["-kernel", bzimage, "-initrd", initrd,
                    "-append", " ".join([_KERNEL_ARGUMENTS, *options.append])]
        for more in options.qemu:
            command += shlex.split(more)
        self._launch(command)

    def wait_ready(self, limit_s=_BOOT_LIMIT_S):
        """Until the agent serves (the keeper starts rc then)."""
        line = self._control_line(time.monotonic() + limit_s)
        if line != "ready":
            raise VmError(f"the guest said {line!r} instead of ready")

    def run(self, script, stdin=None, stdout=None, stderr=None, limit_s=None):
        """Runs a shell script in the guest as root and returns its exit status. `stdin` is a descriptor or None for
        /dev/null; `stdout` and `stderr` are called with bytes as they come. VmError when the guest is gone,
        TimeoutError after limit_s: the guest is then in an unknown state, and to be stopped."""
        mark = f"[{secrets.token_hex(16)}]"
        encoded = base64.b64encode(script.encode() if isinstance(script, str) else script).decode()
        self._ports[0].sendall(f"run {mark} {'null' if stdin is None else 'port'} {encoded}\n".encode())
        deadline = None if limit_s is None else time.monotonic() + limit_s
        self._pump(mark.encode(), stdin, (stdout, stderr), deadline)
        line = self._control_line(deadline)
        verb, said, status = (line.split(" ") + ["", ""])[:3]
        if verb != "exit" or said != mark or not status.isdigit():
            raise VmError(f"the guest said {line!r} instead of a status")
        return int(status)

    def stop(self, orderly=True):
        """Ends the guest (its disks are synced first when it still answers) and everything that start() made."""
        if self.qemu is not None and self.qemu.poll() is None and orderly and self._ports:
            try:
                self._ports[0].sendall(b"quit\n")
                self._control_line(time.monotonic() + 10)
            except (OSError, VmError, TimeoutError):
                pass
        if self.qemu is not None:
            if self.qemu.poll() is None:
                self.qemu.terminate()
                try:
                    self.qemu.wait(5)
                except subprocess.TimeoutExpired:
                    self.qemu.kill()
            self.qemu.wait()
            self.qemu = None
        if self._vsock is not None:
            self._vsock.stop()
            self._vsock = None
        for port in self._ports:
            port.close()
        self._ports = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait_powered_off(self, limit_s):
        """True when the guest ended by itself in time."""
        try:
            self.qemu.wait(limit_s)
            return True
        except subprocess.TimeoutExpired:
            return False

    def console(self):
        """The console so far, without what a terminal would not show."""
        try:
            with open(self.console_path, "rb") as source:
                text = source.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|\r", "", text)

    def console_for_people(self, lines=60):
        """The end of it, between rules."""
        text = self.console().rstrip().splitlines()
        cut = [f"... {len(text) - lines} lines more"] if len(text) > lines else []
        return "\n".join(["--- console ---", *cut, *(text[-lines:] or ["(nothing)"]), "---------------"])

    # ---- what the image holds ----

    def _secret(self):
        if self.options.secret_file:
            with open(self.options.secret_file, "rb") as source:
                secret = source.read(4096)
        else:
            secret = os.urandom(32).hex().encode() + b"\n"
        with open(self.secret_path, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            output.write(secret)
        return secret

    def image(self, modules=None):
        """What every guest of ours boots: a guest_image.Image."""
        options = self.options
        agent = options.agent or os.path.join(machine.TOP, "build/release/berth")
        ctl = options.ctl or os.path.join(os.path.dirname(agent), "berthctl")
        for path in (agent, *(() if options.bare else (ctl,))):
            if not os.path.exists(path):
                raise VmError(f"{path} is not there: run toolchain/build first")
        image = guest_image.base_image(agent)
        if not options.bare:
            self._tools(image, ctl)
        if modules:
            image.modules(modules, guest_image.module_names(os.path.join(machine.TOP, "initramfs/debian-modules")))
        return image

    @staticmethod
    def _tools(image, ctl):
        image.file(os.path.realpath(ctl), "/usr/local/bin/berthctl", 0o755)
        image.file(os.path.realpath(machine.BUSYBOX), "/bin/busybox", 0o755)
        applets = subprocess.run([machine.BUSYBOX, "--list-full"], stdout=subprocess.PIPE, check=True).stdout.decode()
        for applet in applets.split():
            if applet not in ("bin/busybox", "init", "linuxrc"):
                image.symlink("/" + applet, "/bin/busybox")
        image.data("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        image.data("/etc/group", b"root:x:0:\n")

    def _run_segment(self):
        segment = guest_image.Image()
        segment.directory("/berth", 0o700)
        with open(os.path.join(_HERE, "vm_shell" if self.shell else "vm_rc"), "rb") as source:
            segment.data("/berth/rc", source.read(), 0o755)
        if self.options.swap:
            segment.data("/berth/swap", self.options.swap.encode() + b"\n")
        for item in self.options.add:
            segment.add(item)
        return segment

    # ---- QEMU ----

    def _machine_arguments(self):
        options = self.options
        if options.icount:
            accelerator = ["-accel", "tcg,thread=single", "-cpu", "max", "-icount", "shift=0,sleep=off"]
        elif machine.has_kvm():
            accelerator = ["-accel", "kvm", "-cpu", "host"]
        else:
            accelerator = ["-accel", "tcg,thread=multi", "-cpu", "max"]
        cpus = 1 if options.icount else options.cpus
        return [machine.QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-machine", options.machine + (self._vsock.machine if self._vsock else ""), *accelerator,
                "-smp", str(cpus), "-m", options.mem]

    def _device_arguments(self):
        if self.shell:
            console = f"stdio,id=console,signal=off,logfile={self.console_path}"
        else:
            console = f"file,id=console,path={self.console_path}"
        bus = machine.virtio_bus(self.options.machine)
        arguments = ["-chardev", console, "-serial", "chardev:console", "-device", f"virtio-rng-{bus}"]
        if not self.shell:
            arguments += ["-device", f"virtio-serial-{bus}"]
            for number in range(1, 5):
                ours, theirs = socket.socketpair()
                theirs.set_inheritable(True)
                self._ports.append(ours)
                self._theirs.append(theirs)
                arguments += ["-chardev", f"socket,id=port{number},fd={theirs.fileno()}",
                              "-device", f"virtserialport,chardev=port{number},nr={number}"]
        return arguments + (self._vsock.qemu_arguments if self._vsock else [])

    def _disk_arguments(self):
        arguments = []
        for number, text in enumerate(self.options.disk):
            path, *settings = text.split(",")
            serial, mode, form = f"disk{number}", "", "raw"
            for setting in settings:
                if setting.startswith("serial="):
                    serial = setting[7:]
                elif setting.startswith("format="):
                    form = setting[7:]
                elif setting == "ro":
                    mode = ",readonly=on,file.locking=off"  # several guests may share it
                else:
                    raise VmError(f"--disk {text}: unknown setting {setting!r} (serial=NAME, ro, format=FORMAT)")
            if not os.path.exists(path):
                raise VmError(f"--disk {path}: no such file")
            arguments += ["-drive", f"if=none,id=drive{number},file={path.replace(',', ',,')},format={form}{mode}",
                          "-device", f"virtio-blk-{machine.virtio_bus(self.options.machine)},drive=drive{number},serial={serial}"]
        return arguments

    def _secret_arguments(self, secret):
        # Never as a string on the command line, which everybody on the host can read.
        if self.options.secret_by == "fw_cfg":
            return ["-fw_cfg", f"name=opt/berth/secret,file={self.secret_path}"]
        if self.options.secret_by == "smbios":
            text = secret.hex() if len(secret) == 32 else secret.decode(errors="replace").strip()
            path = os.path.join(self.folder, "smbios")
            with open(path, "w", encoding="ascii") as output:
                output.write(f"berth.secret={text}")
            return ["-smbios", f"type=11,path={path}"]
        return []

    def _launch(self, command):
        with open(os.path.join(self.folder, "qemu.log"), "wb") as log:
            try:
                self.qemu = subprocess.Popen(
                    command, stdin=None if self.shell else subprocess.DEVNULL, stdout=None if self.shell else log,
                    stderr=log, pass_fds=[end.fileno() for end in self._theirs], start_new_session=not self.shell,
                    preexec_fn=machine.dies_with_parent)
            except FileNotFoundError:
                raise VmError(f"{command[0]} is not installed: run toolchain/setup") from None
        self.started = time.monotonic()
        for end in self._theirs:
            end.close()
        self._theirs = []

    # ---- the ports ----

    def _gone(self):
        try:
            self.qemu.wait(5)
        except subprocess.TimeoutExpired:
            pass
        with open(os.path.join(self.folder, "qemu.log"), encoding="utf-8", errors="replace") as log:
            words = log.read().strip().splitlines()
        return VmError("the guest powered off or crashed" + (f" (QEMU: {words[-1]})" if words else ""))

    def _control_line(self, deadline):
        """One line of the control port."""
        port, line = self._ports[0], b""
        while not line.endswith(b"\n"):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("the guest did not answer in time")
            port.settimeout(left)
            try:
                byte = port.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:
                byte = b""
            finally:
                port.settimeout(None)
            if not byte:
                raise self._gone()
            line += byte
        return line.decode(errors="replace").rstrip("\n")

    def _pump(self, mark, stdin, sinks, deadline):
        """Moves stdin in and stdout and stderr out, until the mark has come on both."""
        selector = selectors.PollSelector()  # takes regular files, too, unlike epoll
        tails = {}
        for number in (1, 2):
            selector.register(self._ports[number], selectors.EVENT_READ, number)
            tails[number] = b""
        pending = b""
        if stdin is not None:
            self._ports[3].setblocking(False)
            selector.register(stdin, selectors.EVENT_READ, "stdin")
        try:
            while tails:
                left = None if deadline is None else max(0, deadline - time.monotonic())
                events = selector.select(left)
                if not events and left is not None and left <= 0:
                    raise TimeoutError("the command did not end in time")
                for key, _ in events:
                    if key.data == "stdin":
                        selector.unregister(stdin)
                        pending = os.read(stdin, 65536)
                        if pending:
                            selector.register(self._ports[3], selectors.EVENT_WRITE, "input")
                        else:
                            self._ports[3].shutdown(socket.SHUT_WR)
                    elif key.data == "input":
                        pending = pending[self._ports[3].send(pending):]
                        if not pending:
                            selector.unregister(self._ports[3])
                            selector.register(stdin, selectors.EVENT_READ, "stdin")
                    elif self._output(selector, key.data, tails, mark, sinks[key.data - 1]):
                        del tails[key.data]
        finally:
            selector.close()

    def _output(self, selector, number, tails, mark, sink):
        """Hands on what came, except a possible beginning of the mark. True at the mark."""
        try:
            data = self._ports[number].recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            raise self._gone()
        data = tails[number] + data
        at = data.find(mark)
        keep = 0
        if at < 0:
            keep = next((size for size in range(min(len(mark) - 1, len(data)), 0, -1) if mark.startswith(data[-size:])), 0)
        else:
            selector.unregister(self._ports[number])
        content = data[:at] if at >= 0 else data[: len(data) - keep]
        tails[number] = data[len(data) - keep:]
        if content and sink is not None:
            sink(content)
        return at >= 0
