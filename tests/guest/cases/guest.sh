# The guest itself, as toolchain/vm makes it.
# kernel: both

case_tools_on_path() {
    for tool in berthctl busybox sh awk sha256sum; do
        command -v $tool >/dev/null || fail "$tool is not on PATH"
    done
    [ "$(id -u)" = 0 ] || fail "commands do not run as root"
    expect_eq "the first process" "$(cat /proc/1/comm)" init
}

case_streams_are_separate_and_reopen() {
    echo out >/dev/stdout
    echo err >/dev/stderr
    [ -p /dev/stdout ] || fail "stdout is not a pipe that can be opened again"
}

case_cgroup_v2_is_there() {
    [ -f /sys/fs/cgroup/cgroup.controllers ] || fail "no cgroup2 at /sys/fs/cgroup"
}
