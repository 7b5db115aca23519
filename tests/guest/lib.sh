# Read by every shell case in the guest (busybox ash, root, outside any container; berthctl on PATH).
# /tests/bin holds the built tests/guest/programs, /tests/data data files, /tests/secret the VM's secret.

PATH=$PATH:/tests/bin
work=/run/test
mkdir -p $work

# The case fails or is skipped, with one line that says why.
fail() {
    echo "$*" >&2
    exit 1
}
skip() {
    echo "$*" >&2
    exit 77
}

# expect_eq WHAT SEEN WANTED
expect_eq() { [ "$2" = "$3" ] || fail "$1: '$2' instead of '$3'"; }
# expect_has WHAT TEXT PART
expect_has() {
    case $2 in
    *"$3"*) ;;
    *) fail "$1: '$3' is not in '$2'" ;;
    esac
}
# expect_status WANTED COMMAND...: runs it; its output is in $out and $err.
expect_status() {
    wanted=$1
    shift
    status=0
    "$@" >$work/out 2>$work/err || status=$?
    out=$(cat $work/out) err=$(cat $work/err)
    [ "$status" = "$wanted" ] || fail "$*: status $status instead of $wanted: $err"
}
# expect_refused TEXT COMMAND...: it fails, and says TEXT.
expect_refused() {
    part=$1
    shift
    status=0
    "$@" >$work/out 2>$work/err || status=$?
    out=$(cat $work/out) err=$(cat $work/err)
    [ "$status" != 0 ] || fail "$*: was not refused"
    expect_has "$* was refused" "$err" "$part"
}
# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    tries=$(($1 * 20))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        usleep 50000
    done
}

# A root file system with busybox, made once a guest; read-only use is shared.
rootfs=/run/rootfs
make_rootfs() {
    [ ! -d $rootfs/bin ] || return 0
    for folder in bin sbin usr/bin usr/sbin dev proc sys etc tmp root run; do mkdir -p $rootfs/$folder; done
    cp /bin/busybox $rootfs/bin/busybox
    chroot $rootfs /bin/busybox --install -s
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >$rootfs/etc/passwd
    printf 'root:x:0:\nnogroup:x:65534:\n' >$rootfs/etc/group
}

# bundle NAME 'JSON ARGUMENT ARRAY' [SED-SCRIPT]...: a bundle in $work/NAME with what `runc spec` writes, that argv, no
# terminal, the shared root file system, and whatever the sed scripts change. Prints its path.
bundle() {
    make_rootfs
    bundle_dir=$work/$1 argv=$2
    shift 2
    rm -rf "$bundle_dir"
    mkdir -p "$bundle_dir"
    cp /tests/data/runc-spec.json "$bundle_dir/config.json"
    escaped=$(printf %s "$argv" | sed 's/[&|\\]/\\&/g')
    sed -i -e 's|"terminal": true|"terminal": false|' -e "s|\"path\": \"rootfs\"|\"path\": \"$rootfs\"|" \
        -e "/\"args\": \[/{N;N;s|\[.*\]|$escaped|}" "$bundle_dir/config.json"
    for script in "$@"; do sed -i -e "$script" "$bundle_dir/config.json"; done
    echo "$bundle_dir"
}

# snapshot NAME: what nothing that failed or is over may change: the cgroup tree, the mounts of the guest and of PID 1, how
# many descriptors keeper and agent hold, what lies in /run/berth. expect_unchanged NAME: it is as it was, after a moment
# for what is on its way out. The device programs that the agent keeps of creates that succeeded count with programs_too=1.
# The state file that was written last stays open: one, and none that is deleted.
guest_state() {
    find /sys/fs/cgroup -type d | sort
    cat /proc/1/mountinfo /proc/self/mountinfo
    for pid in $(sort -n /sys/fs/cgroup/berth.agent/cgroup.procs); do
        echo "$(tr '\0' ' ' </proc/$pid/cmdline | cut -d ' ' -f 1): $(ls -l /proc/$pid/fd | grep -vc -e bpf-prog -e '/run/berth/state/[^ ]*$') descriptors"
        [ "$(ls -l /proc/$pid/fd | grep -c '/run/berth/state/[^ ]*$')" -le 1 ] || echo "several state files are open"
        [ -z "${programs_too:-}" ] || echo "$(ls -l /proc/$pid/fd | grep -c bpf-prog) device programs"
    done
    find /run/berth | sort
    find / -xdev \( -path /run/test -o -path /run/vm -o -path "$rootfs" \) -prune -o -print | sort
}
snapshot() {
    berthctl info >/dev/null
    guest_state >$work/state.$1
}
is_unchanged() {
    guest_state >$work/state.now
    cmp -s $work/state.$1 $work/state.now
}
expect_unchanged() {
    tries=10
    until is_unchanged $1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || break
        sleep 0.5
    done
    [ $tries -gt 0 ] || fail "$(diff $work/state.$1 $work/state.now | grep '^[+-][^+-]' | head -n 5 | tr '\n' ' ')"
}
