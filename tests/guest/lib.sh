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
