"""Go, for the tests that are built with it."""

import os
import re
import shutil
import subprocess

import machine

VERSION = (1, 25)


def find():
    """(go, None) or (None, why not)."""
    go = shutil.which("go") or next((path for path in ("/usr/local/go/bin/go",) if os.access(path, os.X_OK)), None)
    if go is None:
        return None, "no Go is installed"
    said = subprocess.run([go, "env", "GOVERSION"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                          env=dict(os.environ, GOTOOLCHAIN="local")).stdout.decode().strip()
    version = re.match(r"go(\d+)\.(\d+)", said)
    if not version or (int(version[1]), int(version[2])) < VERSION:
        return None, f"{said or go} is older than Go {VERSION[0]}.{VERSION[1]}"
    return go, None


def environment():
    """Static, so that what it builds runs in a guest."""
    out = dict(os.environ, CGO_ENABLED="0", GOTOOLCHAIN="local", GOFLAGS="-mod=readonly -buildvcs=false")
    out.setdefault("HOME", machine.CACHE)  # Go keeps its modules and what it built there
    return out
