"""What the host offers for running guests: accelerator, kernels, a way to a guest's vsock."""

import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
CACHE = os.environ.get("BERTH_CACHE", "/var/cache/berth")
QEMU = "qemu-system-x86_64"
BUSYBOX = "/bin/busybox"

sys.path.insert(0, os.path.join(TOP, "initramfs"))
import image as guest_image  # noqa: E402

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class VmError(Exception):
    """One line for a person: why a guest could not be run."""


def dies_with_parent():
    """For preexec_fn: whatever ends this process, SIGKILL included, ends what it started."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# ---- kernels ----


def kernel(name):
    """(bzImage, modules folder or None) for --kernel debian|berth|PATH."""
    if name == "debian":
        folder = os.path.join(CACHE, "kernel/debian/current")
        if not os.path.exists(os.path.join(folder, "vmlinuz")):
            fetched = subprocess.run([os.path.join(TOP, "initramfs/debian-kernel")], stdout=subprocess.PIPE, check=False)
            if fetched.returncode != 0:
                raise VmError("Debian's kernel could not be fetched (initramfs/debian-kernel)")
        folder = os.path.realpath(folder)
        return os.path.join(folder, "vmlinuz"), os.path.join(folder, "modules")
    if name == "berth":
        path = own_kernel()
        if path is None:
            raise VmError("Berth's own kernel is not built here")
        return path, None
    if not os.path.isfile(name):
        raise VmError(f"--kernel {name}: no such file (debian, berth or the path of a bzImage)")
    modules = os.path.join(os.path.dirname(os.path.realpath(name)), "modules")
    return name, modules if os.path.isdir(modules) else None


def own_kernel():
    """Path of Berth's own kernel, or None while it is not built."""
    path = os.path.join(CACHE, "kernel/berth/current/bzImage")
    return os.path.realpath(path) if os.path.exists(path) else None


def virtio_bus(name):
    """How QEMU calls the virtio devices of a machine: virtio-blk-pci, virtio-blk-device."""
    return "device" if name.split(",")[0] == "microvm" else "pci"


# ---- KVM ----


def has_kvm():
    """Whether KVM boots an ordinary kernel. /dev/kvm that opens, or even makes a VM, proves nothing: a probe guest has
    to boot, once per boot of the host."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
        identity = source.read().strip()
    path = os.path.join(CACHE, "kvm-probe.json")

    def remembered():
        try:
            with open(path, encoding="ascii") as source:
                known = json.load(source)
            return known["works"] if known["host_boot"] == identity else None
        except (OSError, ValueError, KeyError):
            return None

    if remembered() is not None:
        return remembered()
    try:
        os.makedirs(CACHE, exist_ok=True)
        lock = open(os.path.join(CACHE, ".lock-kvm"), "w", encoding="ascii")
    except OSError:
        return False  # not root, and root has not asked yet
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if remembered() is None:
            works = _probe_kvm()
            with open(path, "w", encoding="ascii") as output:
                json.dump({"host_boot": identity, "works": works}, output)
    return remembered()


def _probe_kvm(limit_s=20):
    probe = guest_image.Image()
    probe.file(os.path.realpath(BUSYBOX), "/bin/busybox", 0o755)
    probe.data("/init", b"#!/bin/busybox sh\necho berth-probe-booted\nexec /bin/busybox poweroff -f\n", 0o755)
    probe.node("/dev/console", "c", 5, 1, 0o600)
    with tempfile.NamedTemporaryFile(prefix="berth-probe-") as initrd:
        initrd.write(probe.bytes())
        initrd.flush()
        command = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35",
                   "-accel", "kvm", "-cpu", "host", "-m", "256M", "-serial", "stdio", "-kernel", kernel("debian")[0],
                   "-initrd", initrd.name, "-append", "console=ttyS0 quiet panic=-1"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  timeout=limit_s, check=False, preexec_fn=dies_with_parent)
        except (subprocess.TimeoutExpired, OSError):
            return False
        return b"berth-probe-booted" in done.stdout


# ---- vsock ----


def vsock_backend():
    """"kernel", the path of vhost-device-vsock, or None."""
    if os.access("/dev/vhost-vsock", os.R_OK | os.W_OK):
        return "kernel"
    found = shutil.which("vhost-device-vsock")
    if found:
        return found
    built = os.path.join(CACHE, "vhost-device-vsock/bin/vhost-device-vsock")
    return built if os.access(built, os.X_OK) else None


NO_VSOCK = "no way to a guest's vsock on this host (no /dev/vhost-vsock, no vhost-device-vsock)"


class Vsock:
    """The host's end of one guest's vsock."""

    def __init__(self, folder, memory, bus="pci"):
        backend = vsock_backend()
        if backend is None:
            raise VmError(NO_VSOCK)
        self.process = None
        if backend == "kernel":
            self.cid = secrets.randbelow(2**31) + 16  # a clash makes QEMU stop with a clear error
            self.address = f"vsock://{self.cid}"
            self.qemu_arguments = ["-device", f"vhost-vsock-{bus},guest-cid={self.cid}"]
            self.machine = ""
            return
        self.cid = 3
        path, device = os.path.join(folder, "vsock"), os.path.join(folder, "vsock.device")
        self.address = f"hvsock://{path}"
        self.qemu_arguments = ["-object", f"memory-backend-memfd,id=mem,size={memory},share=on",
                               "-chardev", f"socket,id=vsock,path={device}",
                               "-device", f"vhost-user-vsock-{bus},chardev=vsock"]
        self.machine = ",memory-backend=mem"
        with open(os.path.join(folder, "vsock.log"), "wb") as log:
            self.process = subprocess.Popen(
                [backend, "--vm", f"guest-cid={self.cid},uds-path={path},socket={device}"], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, preexec_fn=dies_with_parent)
        deadline = time.monotonic() + 10
        while not os.path.exists(device):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise VmError("vhost-device-vsock did not start")
            time.sleep(0.02)

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
