"""Guest images: newc cpio archives, the same bytes for the same content on every machine.

Times are 0, owners root, inode numbers and order follow the sorted paths; a file's mode is 0644 or 0755 unless
given. Device nodes are records of the format, so nothing here needs root.
"""

import lzma
import os
import stat
import struct

_MAGIC = b"070701"


class ImageError(Exception):
    """One line for a person."""


class Image:
    def __init__(self):
        self._entries = {}  # path without leading slash -> (mode, data, (major, minor))

    def directory(self, path, mode=0o755):
        self._put(path, stat.S_IFDIR | mode, b"", (0, 0))

    def node(self, path, kind, major, minor, mode):
        self._put(path, {"c": stat.S_IFCHR, "b": stat.S_IFBLK}[kind] | mode, b"", (major, minor))

    def symlink(self, path, target):
        self._put(path, stat.S_IFLNK | 0o777, target.encode(), (0, 0))

    def data(self, path, content, mode=0o644):
        self._put(path, stat.S_IFREG | mode, content, (0, 0))

    def file(self, host_path, path, mode=None):
        """A file, a symlink (kept as one) or a whole directory of the host."""
        try:
            info = os.lstat(host_path)
            if stat.S_ISDIR(info.st_mode):
                self.directory(path)
                for name in sorted(os.listdir(host_path)):
                    self.file(os.path.join(host_path, name), path.rstrip("/") + "/" + name)
            elif stat.S_ISLNK(info.st_mode) and mode is None:
                self.symlink(path, os.readlink(host_path))
            elif stat.S_ISREG(os.stat(host_path).st_mode):
                if mode is None:
                    mode = 0o755 if info.st_mode & 0o111 else 0o644
                with open(host_path, "rb") as source:
                    self.data(path, source.read(), mode)
            else:
                raise ImageError(f"{host_path}: not a file, directory or symlink")
        except OSError as error:
            raise ImageError(f"{host_path}: {error.strerror}") from None

    def add(self, argument):
        """HOSTPATH:GUESTPATH[:MODE], as the --add options take it. A symlink named here itself is followed."""
        parts = argument.split(":")
        if len(parts) not in (2, 3) or not parts[0] or not parts[1].startswith("/"):
            raise ImageError(f"--add {argument}: expected HOSTPATH:GUESTPATH[:MODE] with an absolute GUESTPATH")
        try:
            mode = int(parts[2], 8) if len(parts) == 3 else None
        except ValueError:
            raise ImageError(f"--add {argument}: the mode is not an octal number") from None
        self.file(os.path.realpath(parts[0]), parts[1], mode)

    def modules(self, tree, names):
        """Kernel modules `names` and what they depend on from `tree` (lib/modules/VERSION of a kernel), and the list
        that the keeper loads them by."""
        paths = []
        for host_path in module_load_order(tree, names):
            name = os.path.basename(host_path).split(".ko")[0] + ".ko"
            guest_path = "/lib/modules/" + name
            self.data(guest_path, _read_module(host_path))
            paths.append(guest_path)
        self.data("/lib/modules/berth.modules", "".join(path + "\n" for path in paths).encode())

    def bytes(self):
        """The archive with its trailer, padded so that another one can follow."""
        entries = dict(self._entries)
        for path in list(entries):
            while "/" in path:
                path = path.rsplit("/", 1)[0]
                entries.setdefault(path, (stat.S_IFDIR | 0o755, b"", (0, 0)))
        out = []
        for number, path in enumerate(sorted(entries), start=1):
            mode, data, device = entries[path]
            links = 2 if stat.S_ISDIR(mode) else 1
            _record(out, number, path, mode, links, data, device)
        _record(out, 0, "TRAILER!!!", 0, 1, b"", (0, 0))
        data = b"".join(out)
        return data + b"\0" * (-len(data) % 512)

    def _put(self, path, mode, data, device):
        key = path.strip("/")
        if not key or ".." in key.split("/") or "//" in path:
            raise ImageError(f"{path!r} is not a path for a file in a guest")
        old = self._entries.get(key)
        if old is not None and (not stat.S_ISDIR(mode) or not stat.S_ISDIR(old[0])):
            raise ImageError(f"{path} is added twice")
        self._entries[key] = (mode, data, device)


def _record(out, number, path, mode, links, data, device):
    name = os.fsencode(path) + b"\0"
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, device[0], device[1], len(name), 0)
    head = _MAGIC + b"".join(b"%08x" % field for field in fields) + name
    out.append(head + b"\0" * (-len(head) % 4))
    out.append(data + b"\0" * (-len(data) % 4))


def base_image(agent):
    """What every guest has: the agent as /init, and the few nodes and directories that it needs before it mounts."""
    image = Image()
    image.file(os.path.realpath(agent), "/init", 0o755)
    for path in ("/dev", "/proc", "/sys", "/run"):
        image.directory(path)
    image.directory("/tmp", 0o1777)
    image.directory("/berth", 0o700)
    image.node("/dev/console", "c", 5, 1, 0o600)
    image.node("/dev/null", "c", 1, 3, 0o666)
    image.node("/dev/kmsg", "c", 1, 11, 0o600)
    return image


def secret_segment(secret):
    """The archive that hands a VM its secret; a VMM appends it to the image."""
    segment = Image()
    segment.directory("/berth", 0o700)
    segment.data("/berth/secret", secret, 0o400)
    return segment.bytes()



# ---- kernel modules ----


def module_names(list_file):
    with open(list_file, encoding="utf-8") as lines:
        names = (line.split("#")[0].strip() for line in lines)
        return [name for name in names if name]


def module_load_order(tree, names):
    """Files of `names` and their dependencies, each after what it needs. What is built in is left out."""
    index = {}
    for folder, _, files in sorted(os.walk(tree)):
        for name in sorted(files):
            stem = name.split(".ko")[0]
            if name != stem:
                index[_key(stem)] = os.path.join(folder, name)
    builtin = set()
    try:
        with open(os.path.join(tree, "modules.builtin"), encoding="utf-8") as lines:
            builtin = {_key(os.path.basename(line.strip()).split(".ko")[0]) for line in lines}
    except FileNotFoundError:
        pass
    order, seen = [], set()

    def visit(name, wanted_by):
        key = _key(name)
        if key in seen or key in builtin:
            return
        seen.add(key)
        if key not in index:
            raise ImageError(f"kernel module {name} ({wanted_by}) is not in {tree}")
        needs, wishes = _dependencies(_read_module(index[key]), index[key])
        for other in wishes:
            if _key(other) in index:
                visit(other, f"wished for by {name}")
        for other in needs:
            visit(other, f"needed by {name}")
        order.append(index[key])

    for name in names:
        visit(name, "asked for")
    return order


def _key(name):
    return name.replace("-", "_")


def _read_module(path):
    with open(path, "rb") as source:
        data = source.read()
    if path.endswith(".xz"):
        return lzma.decompress(data)
    if not path.endswith(".ko"):
        raise ImageError(f"{path}: cannot decompress this kind of module")
    return data


def _dependencies(elf, path):
    """The `depends` and `softdep pre` of a module, from its .modinfo section."""
    info = _elf_section(elf, b".modinfo", path)
    needs, wishes = [], []
    for item in info.split(b"\0"):
        key, _, value = item.partition(b"=")
        if key == b"depends":
            needs = [name for name in value.decode().split(",") if name]
        elif key == b"softdep" and value.startswith(b"pre:"):
            wishes = value.decode().split("post:")[0].split()[1:]
    return needs, wishes


def _elf_section(elf, wanted, path):
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ImageError(f"{path}: not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)

    def header(number):
        return struct.unpack_from("<IIQQQQ", elf, table + number * size)  # name, type, flags, address, offset, size

    names_at = header(names_index)[4]
    for number in range(count):
        name, _, _, _, offset, length = header(number)
        end = elf.index(b"\0", names_at + name)
        if elf[names_at + name : end] == wanted:
            return elf[offset : offset + length]
    raise ImageError(f"{path}: has no {wanted.decode()} section")
