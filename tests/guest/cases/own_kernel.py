# Berth's own kernel on the machines that it is for.
# kernel: own
# limit: 600
import os
import subprocess
import tempfile

from harness import TOP, Failure, Skip, VmError, machine

LOOK = "berthctl info >/dev/null && ls /sys/bus/virtio/drivers/virtio_rng && cat /proc/cmdline"


def own_microvm(boot):
    """Its ACPI has neither PIT nor PM timer: only KVM's clock tells how fast the processor counts."""
    if not machine.has_kvm():
        raise Skip("without KVM there is no clock for microvm with ACPI")
    _serves_and_ends(boot, "--machine", "microvm")


def own_microvm_without_acpi(boot):
    """As Firecracker has it: devices by the command line, and the end by a reset."""
    _serves_and_ends(boot, "--machine", "microvm,acpi=off", "--append", "reboot=t")


def own_pvh_entry(boot):
    """vmlinux starts by its note, without the code of a bzImage."""
    vmlinux = os.path.join(boot.kernel_folder, "vmlinux")
    notes = subprocess.run(["readelf", "-nW", vmlinux], stdout=subprocess.PIPE, check=True, text=True).stdout
    if not any(line.split()[:1] == ["Xen"] and "0x00000012" in line for line in notes.splitlines()):
        raise Failure(f"{vmlinux} has no PVH note (Xen, type 0x12):\n{notes}")
    _serves_and_ends(boot, "--kernel", vmlinux)
    _serves_and_ends(boot, "--machine", "microvm,acpi=off", "--append", "reboot=t", "--kernel", vmlinux)


def long_own_one_file(boot):
    """The image linked into the kernel; the VMM gives what differs from VM to VM."""
    with tempfile.TemporaryDirectory(prefix="berth-one-file-") as folder:
        image = os.path.join(folder, "image.cpio")
        with open(image, "wb") as output:
            output.write(boot.guest().image().bytes())
        built = subprocess.run([os.path.join(TOP, "initramfs/kernel"), "--with-initramfs", image, "-o", folder],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if built.returncode != 0:
            raise Failure(built.stderr.strip().splitlines()[-1])
        for name in ("bzImage", "vmlinux"):
            _serves_and_ends(boot, "--no-image", "--kernel", os.path.join(folder, name))


def _serves_and_ends(boot, *options):
    with boot(*options) as guest:
        guest.wait_ready(150)
        guest.check(LOOK)
        if guest.check("cat /proc/modules 2>/dev/null; true"):
            raise Failure("there are modules")
        try:
            guest.sh("berthctl shutdown; sleep 100", 60)
        except VmError:
            pass  # it went away
        if not guest.wait_powered_off(100):
            raise Failure(f"{options}: the guest does not end")
