# Create's `rootfs`: what a shim hands over becomes the root, and nothing of it is mounted in the guest.
# suite: main
# limit: 300
import os
import shutil
import subprocess
import tempfile
import time

from boxes import WORK, changed, expect, expect_eq, script, spec
from harness import Failure, Skip, machine

OVERLAY = ("format/mkdir/overlay:overlay:lowerdir={{ mount 0 }},upperdir={{ mount 1 }}/u,workdir={{ mount 1 }}/w,"
           "X-containerd.mkdir.path={{ mount 1 }}/u:0755:0:0,X-containerd.mkdir.path={{ mount 1 }}/w")
KIND = "awk '$5 == \"/\" { for (i = 1; i < NF; i++) if ($i == \"-\") print $(i + 1) }' /proc/self/mountinfo; cat /which"
WRITE = "; echo new >/written && cat /written || echo read-only"

# name: (mounts, what the container runs, what it prints)
GOOD = {
    "erofs": (["erofs:serial:disk-erofs"], KIND + WRITE, "erofs\nimage\nread-only\n"),
    "erofs ro": (["erofs:serial:disk-erofs:ro"], KIND, "erofs\nimage\n"),
    "squashfs": (["squashfs:serial:disk-squashfs:ro"], KIND + WRITE, "squashfs\nimage\nread-only\n"),
    "ext4 ro": (["ext4:serial:disk-ext4:ro"], KIND + WRITE, "ext4\nimage\nread-only\n"),
    "ext4": (["ext4:serial:disk-ext4"], KIND + WRITE, "ext4\nimage\nnew\n"),
    "bind": (["bind:/run/rootfs:rbind,ro"], "ls /bin/busybox" + WRITE, "/bin/busybox\nread-only\n"),
    "overlay": (["erofs:serial:disk-erofs:ro", "tmpfs:tmpfs:size=8m", OVERLAY], KIND + WRITE, "overlay\nimage\nnew\n"),
    # What the last one wrote went with it.
    "overlay again": (["erofs:serial:disk-erofs:ro", "tmpfs:tmpfs:size=8m", OVERLAY], "[ -e /written ] || echo gone; " + KIND,
                      "gone\noverlay\nimage\n"),
    "two layers": (["erofs:serial:disk-erofs:ro", "squashfs:serial:disk-squashfs:ro", "tmpfs:tmpfs:size=8m",
                    OVERLAY.replace("mount 1", "mount 2").replace("{{ mount 0 }}", "{{ overlay 0 1 }}")], KIND + WRITE,
                   "overlay\nimage\nnew\n"),
    "target": (["erofs:serial:disk-erofs:ro", "tmpfs:tmpfs:size=8m", OVERLAY, "tmpfs:tmpfs:target=/data/deep,size=1m,ro",
                "squashfs:serial:disk-squashfs:ro,target=/other"],
               "cat /other/which; grep -c ' /data/deep ' /proc/self/mountinfo; touch /data/deep/x 2>/dev/null || echo ro",
               "image\n1\nro\n"),
}
# name: (mounts, what the error says)
BAD = {
    "wrong serial": (["erofs:serial:nobody:ro"], 'rootfs[0].source: no attached disk has the serial "nobody"'),
    "serial of another type": (["ext4:serial:disk-erofs:ro"], "rootfs mount 0 (ext4)"),
    "device of the guest's own": (["ext4:/dev/zram0:ro"], "is not a block device that the host attached"),
    "device that is not there": (["ext4:/dev/sdz:ro"], "is not a block device that the host attached"),
    "loop": (["ext4:/run/test/image:ro,loop"], "is not a block device that the host attached"),
    "agent's folder": (["bind:/run/berth:rbind"], "would show the agent's"),
    "agent's folder from above": (["bind:/run:rbind"], "would show the agent's"),
    "agent's folder as a layer": (["overlay:overlay:lowerdir=/run/berth/state"], "would show the agent's"),
    "other container's mounts": (["bind:/run/berth/bundles/other/rootfs:rbind"], "would show the agent's"),
    "dots": (["bind:/run/rootfs/../berth:rbind"], "must be an absolute path"),
    "relative": (["bind:rootfs:rbind"], "must be an absolute path"),
    "later mount": ([OVERLAY], "must name an earlier mount"),
    "itself": (["tmpfs:tmpfs", "format/overlay:overlay:lowerdir={{ mount 1 }}"], "must name an earlier mount"),
    "template": (["tmpfs:tmpfs", "format/overlay:overlay:lowerdir={{ something 0 }}"], "unknown template"),
    "directory outside": (["tmpfs:tmpfs", "mkdir/bind:/run/rootfs:rbind,X-containerd.mkdir.path=/run/made"],
                          "is not below an earlier mount"),
    "type": (["nofs:x"], "nofs"),
    "only a target": (["tmpfs:tmpfs:target=/x"], "no mount without a target"),
    "target in proc": (["bind:/run/rootfs:rbind", "tmpfs:tmpfs:target=/proc/sys"], "must not lie in /proc"),
    "loopback tag": (["virtiofs:no-such-tag"], "rootfs mount 0 (virtiofs)"),
}


def _make_tree(folder):
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp", "data"):
        os.makedirs(os.path.join(folder, name))
    shutil.copy(machine.BUSYBOX, os.path.join(folder, "bin/busybox"))
    for applet in ("sh", "cat", "ls", "awk", "grep", "touch", "echo", "wc", "rm"):
        os.symlink("busybox", os.path.join(folder, "bin", applet))
    with open(os.path.join(folder, "which"), "w", encoding="ascii") as output:
        output.write("image\n")


def _make_images(folder):
    """[--disk options]; Skip when a tool is missing."""
    tree = os.path.join(folder, "tree")
    _make_tree(tree)
    commands = {"erofs": ["mkfs.erofs", "--quiet", "{}", tree],
                "squashfs": ["mksquashfs", tree, "{}", "-quiet", "-no-progress", "-noappend"],
                "ext4": ["mke2fs", "-q", "-t", "ext4", "-d", tree, "{}", "32M"]}
    options = []
    for name, command in commands.items():
        image = os.path.join(folder, name)
        try:
            subprocess.run([word.replace("{}", image) for word in command], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE)
        except FileNotFoundError:
            raise Skip(f"{command[0]} is not installed") from None
        options += ["--disk", f"{image},serial=disk-{name}"]
    return options


def _bundle():
    """runc's spec, its root where Create's mounts go."""
    return changed(spec("x"), root={"path": "rootfs"})


def _command(mounts):
    return "".join(f" --rootfs-mount '{mount}'" for mount in mounts)


def _run_good(guest, good):
    wrong = []
    for name, (mounts, command, wanted) in good.items():
        done = guest.sh(script(f"berthctl run --no-stdin -b {WORK}/box {_command(mounts)} box\nstatus=$?\n"
                               "(expect_unchanged rootfs) || exit 99; exit $status",
                               box=changed(_bundle(), process__args=["/bin/sh", "-c", command])), 100)
        if done.status != 0 or done.out != wanted:
            wrong.append(f"{name}: {done!r}")
    return wrong


def own_roots_of_every_kind(boot):
    with tempfile.TemporaryDirectory(prefix="berth-rootfs-") as folder:
        with boot(*_make_images(folder)) as guest:
            guest.wait_ready()
            guest.check(script("snapshot rootfs"))
            wrong = _run_good(guest, GOOD)
            for name, (mounts, wanted) in BAD.items():
                done = guest.sh(script(f"berthctl create -b {WORK}/box {_command(mounts)} box\nstatus=$?\n"
                                       "(expect_unchanged rootfs) || exit 99; berthctl delete -f box; exit $status",
                                       box=changed(_bundle(), process__args=["/bin/sh"])), 60)
                if done.status != 1 or wanted not in done.err:
                    wrong.append(f"{name}: {done!r}")
            # While it runs, only its own namespace has the mounts.
            done = guest.sh(script(f"""
                berthctl run -d -b {WORK}/box {_command(GOOD["overlay"][0])} box || fail run
                grep -E 'overlay|erofs' /proc/self/mountinfo /proc/1/mountinfo && fail "mounted in the guest"
                pid=$(berthctl --json state box | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p')
                expect_eq "mounts of the root" "$(grep -c ' / / ' /proc/$pid/mountinfo)" 1
                berthctl delete -f box; expect_unchanged rootfs""",
                                   box=changed(_bundle(), process__args=["/bin/busybox", "sleep", "100000"])), 60)
            if done.status != 0:
                wrong.append(f"a running one: {done!r}")
            if wrong:
                raise Failure(f"{len(wrong)} of {len(GOOD) + len(BAD) + 1}: " + " | ".join(wrong))


def own_virtiofs(boot):
    """A share of the host's by its tag."""
    found = [path for path in ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd") if os.path.exists(path)]
    if not found:
        raise Skip("virtiofsd is not installed")
    with tempfile.TemporaryDirectory(prefix="berth-rootfs-") as folder:
        _make_tree(os.path.join(folder, "tree"))
        path = os.path.join(folder, "socket")
        # The daemon cannot make namespaces everywhere that QEMU runs.
        daemon = subprocess.Popen([found[0], f"--socket-path={path}", "-o", f"source={folder}/tree", "-o", "sandbox=chroot"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 30
            while not os.path.exists(path):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise Skip("virtiofsd does not start here")
                time.sleep(0.05)
            memory = ("-object memory-backend-memfd,id=shared,size=768M,share=on -numa node,memdev=shared "
                      f"-chardev socket,id=share,path={path} -device vhost-user-fs-pci,chardev=share,tag=images")
            with boot(f"--qemu={memory}") as guest:
                guest.wait_ready()
                guest.check(script("snapshot rootfs"))
                wrong = _run_good(guest, {
                    "virtiofs": (["virtiofs:images"], KIND + WRITE + "; rm /written", "virtiofs\nimage\nnew\n"),
                    "virtiofs ro": (["virtiofs:images:ro"], KIND + WRITE, "virtiofs\nimage\nread-only\n"),
                    "virtiofs as a layer": (["virtiofs:images:ro", "tmpfs:tmpfs:size=8m", OVERLAY], KIND + WRITE,
                                            "overlay\nimage\nnew\n")})
                if wrong:
                    raise Failure(" | ".join(wrong))
                expect_eq("the host's folder", os.path.exists(os.path.join(folder, "tree/written")), False)
        finally:
            daemon.kill()
            daemon.wait()
    expect(not os.path.exists(path), "the socket is left")
