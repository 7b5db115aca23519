# What the scripts of toolchain/ share. Sourced by bash with `set -euo pipefail`.

berth_top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Everything that is slow to make and the same for every checkout is kept here, outside the checkout.
export BERTH_CACHE=${BERTH_CACHE:-/var/cache/berth}
export CCACHE_DIR=${CCACHE_DIR:-$BERTH_CACHE/ccache}
# Another checkout of the same sources makes the same objects.
export CCACHE_BASEDIR=$berth_top CCACHE_NOHASHDIR=1
# What one checkout compiled serves another in any folder.
export CCACHE_BASEDIR=$berth_top CCACHE_NOHASHDIR=1
# The interpreter that toolchain/setup installs, whatever else stands first on PATH.
berth_python=/usr/bin/python3

say() { printf '%s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}
need_root() { [ "$(id -u)" = 0 ] || die "must run as root (it installs packages and keeps a cache in $BERTH_CACHE)"; }

# Serialises one piece of the cache between checkouts: with_lock NAME COMMAND...
with_lock() {
    local name=$1
    shift
    mkdir -p "$BERTH_CACHE"
    (
        flock 9
        "$@"
    ) 9>"$BERTH_CACHE/.lock-$name"
}

# apt-get for downloads only: as root into private folders, nothing on the machine changes.
apt_private() { apt-get -qq -o APT::Sandbox::User=root "$@"; }
