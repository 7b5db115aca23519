"""What test cases in Python and the runner share. A case file in tests/guest/cases is either

NAME.sh  runs in the guest: each function case_X is one case, run by its own shell with lib.sh read; it passes when
         it returns 0, fails with `fail WHY` (or any other status), is skipped with `skip WHY`;
NAME.py  runs on the host: case_X(guest) gets the suite's guest (a TestGuest), own_X(boot) boots guests of its own with
         boot("--append", "berth.log=debug", ...) as a context manager.

long_X instead of case_X, or long_own_X, is run with --all only. Comments in the file's head set what is not the default:
    # suite: NAME     the guest that its cases share, with the options in suites/NAME.conf (default: main)
    # limit: SECONDS  for each case (default: 60)
    # kernel: both    where kernels differ: also run with another kernel than Debian's when not everything is (--all)
    # kernel: own     only with Berth's own kernel
"""

import os
import re
import sys
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(TOP, "toolchain/lib"))
import guest as guests  # noqa: E402
import machine  # noqa: E402,F401

VmError = machine.VmError


class Skip(Exception):
    """The case cannot be judged here: why, in a few words."""


class Failure(Exception):
    """What was expected and what was seen."""


class Output:
    """What a script in the guest did."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def __repr__(self):
        return f"status {self.status}, stdout {self.out[-400:]!r}, stderr {self.err[-400:]!r}"


def kernel_folder(options):
    return os.path.dirname(machine.kernel(options.kernel)[0])


class TestGuest:
    """A running guest, for cases. `address` is the agent's from the host when the suite has --vsock."""

    __test__ = False

    def __init__(self, guest):
        self._guest = guest

    @property
    def kernel_folder(self):
        """What the guest's kernel came from: `config`, and `vmlinux` of our own."""
        return kernel_folder(self._guest.options)

    @property
    def agent(self):
        """PID 1's program, which also runs on the host."""
        return self._guest.options.agent or os.path.join(TOP, "build/release/berth")

    @property
    def address(self):
        return self._guest.address

    @property
    def cid(self):
        return self._guest.cid

    @property
    def secret_path(self):
        return self._guest.secret_path

    @property
    def secret(self):
        with open(self.secret_path, "rb") as source:
            data = source.read().strip()
        return bytes.fromhex(data.decode()) if len(data) == 64 else data

    def sh(self, script, limit_s=60, stdin=None):
        """Runs a shell script in the guest as root."""
        out, err = [], []
        status = self._guest.run(script, stdin=stdin, stdout=out.append, stderr=err.append, limit_s=limit_s)
        return Output(status, b"".join(out).decode(errors="replace"), b"".join(err).decode(errors="replace"))

    def check(self, script, limit_s=60):
        """sh() that must end with 0; returns its stdout."""
        done = self.sh(script, limit_s)
        if done.status != 0:
            raise Failure(f"{script.strip().splitlines()[0]}: {done!r}")
        return done.out

    def console(self):
        return self._guest.console()

    def wait_ready(self, limit_s=120):
        self._guest.wait_ready(limit_s)

    def wait_powered_off(self, limit_s=60):
        return self._guest.wait_powered_off(limit_s)


class Boot:
    """boot(*options): a started guest, ended at the end of the with block. Does not wait until it is ready."""

    def __init__(self, base_options, limit_s):
        self._base, self._limit_s = base_options, limit_s

    def __call__(self, *options):
        return _Booted(self.guest(*options))

    def guest(self, *options):
        """Not started."""
        return guests.Guest(guests.parse_options([*self._base, *options], "boot"))

    @property
    def kernel_folder(self):
        return kernel_folder(self.guest().options)


class _Booted:
    def __init__(self, guest):
        self._guest = guest

    def __enter__(self):
        try:
            self._guest.start()
        except BaseException:
            self._guest.stop(orderly=False)
            raise
        return TestGuest(self._guest)

    def __exit__(self, kind, value, _):
        if value is not None and not isinstance(value, Skip):
            print("    " + self._guest.console_for_people(40).replace("\n", "\n    "), flush=True)
        self._guest.stop(orderly=False)


class Case:
    """One named case."""

    def __init__(self, path, function, settings):
        self.path, self.function = path, function
        stem = os.path.splitext(os.path.basename(path))[0]
        self.is_long = function.startswith("long_")
        self.is_own = "own_" in function[:9]
        self.name = f"{stem}/{re.sub(r'^(long_)?(own_|case_)?', '', function)}"
        self.suite = settings.get("suite", "main")
        self.limit_s = float(settings.get("limit", 60))
        self.in_guest = path.endswith(".sh")
        self.kernel = settings.get("kernel", "debian")


def find_cases(folder):
    cases = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.endswith((".sh", ".py")):
            continue
        with open(path, encoding="utf-8") as source:
            text = source.read()
        settings = dict(re.findall(r"^# (suite|limit|kernel): *(\S+)$", text, re.M))
        pattern = r"^((?:case|long)_\w+) *\(\)" if name.endswith(".sh") else r"^def ((?:case|own|long)_\w+)\("
        functions = re.findall(pattern, text, re.M)
        if not functions:
            raise Failure(f"{name} has no case")
        cases += [Case(path, function, settings) for function in functions]
    names = [case.name for case in cases]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise Failure(f"two cases are called {sorted(doubled)[0]}")
    return cases


def run_case(case, guest, boot):
    """("ok" | "not ok" | "skipped", why)."""
    try:
        if case.in_guest:
            return _run_shell_case(case, guest)
        module = _load(case.path)
        getattr(module, case.function)(boot if case.is_own else guest)
        return "ok", ""
    except Skip as skip:
        return "skipped", str(skip) or "no reason given"
    except (Failure, AssertionError) as failure:
        where = traceback.extract_tb(failure.__traceback__)[-1]
        return "not ok", f"{failure or 'assertion failed'} ({os.path.basename(where.filename)}:{where.lineno})"


def _run_shell_case(case, guest):
    name = os.path.basename(case.path)
    done = guest.sh(f"set -u; . /tests/lib.sh; . /tests/cases/{name}; {case.function}", case.limit_s)
    last = (done.err.strip() or done.out.strip() or "(no output)").splitlines()[-1]
    if done.status == 0:
        return "ok", ""
    if done.status == 77:
        return "skipped", last
    for line in (done.out + done.err).rstrip().splitlines()[-30:]:
        print(f"    {line}")
    return "not ok", f"{last} (status {done.status})" if done.status != 1 else last


_modules = {}


def _load(path):
    import importlib.util
    if path not in _modules:
        spec = importlib.util.spec_from_file_location("case_" + os.path.basename(path)[:-3], path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _modules[path] = module
    return _modules[path]
