# What the keeper makes of a guest, and what it keeps through the agent's end.
# kernel: both

agent_pid() {
    for pid in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do
        case $(cat /proc/$pid/cmdline) in berth-agent*) echo $pid ;; esac
    done
}
other_agent_than() {
    pid=$(agent_pid)
    [ -n "$pid" ] && [ "$pid" != "$1" ] && berthctl info >/dev/null 2>&1
}

case_root_can_be_pivoted_and_hides_nothing() {
    expect_has "the root's type" "$(grep ' / / ' /proc/self/mountinfo)" " - tmpfs "
    mkdir -p $work/pivot
    unshare -m sh -c "mount -t tmpfs t $work/pivot && mkdir $work/pivot/old && pivot_root $work/pivot $work/pivot/old" ||
        fail "pivot_root does not work"
}

case_no_trace_of_the_secret() {
    [ ! -e /berth/secret ] || fail "/berth/secret is still there"
    # A driver that is built in leaves its empty folder.
    [ -z "$(find /sys/firmware/qemu_fw_cfg -type f 2>/dev/null)" ] || fail "fw_cfg is still in sysfs"
    ! grep -q secret= /proc/cmdline || fail "a secret is on the command line"
}

case_cgroups_are_set_up() {
    root=/sys/fs/cgroup
    for controller in $(cat $root/cgroup.controllers); do
        expect_has "berth's controllers" " $(cat $root/berth/cgroup.subtree_control) " " $controller "
    done
    expect_eq "memory.min" "$(cat $root/berth.agent/memory.min)" 16777216
    expect_has "berth.agent" " $(cat $root/berth.agent/cgroup.procs | tr '\n' ' ')" " 1 "
    [ -n "$(cat $root/berth.spawner/cgroup.procs)" ] || fail "no spawner in berth.spawner"
    expect_eq "the keeper's oom_score_adj" "$(cat /proc/1/oom_score_adj)" -1000
    expect_eq "the agent's oom_score_adj" "$(cat /proc/$(agent_pid)/oom_score_adj)" -1000
    spawner=$(head -n 1 $root/berth.spawner/cgroup.procs)
    expect_eq "the spawner's oom_score_adj" "$(cat /proc/$spawner/oom_score_adj)" 0
    expect_has "the mount" "$(grep ' /sys/fs/cgroup ' /proc/self/mountinfo)" nsdelegate
}

case_the_kernel_is_hardened() {
    while read -r file value; do
        expect_eq $file "$(cat /proc/sys/$file)" $value
    done <<END
fs/protected_symlinks 1
fs/protected_hardlinks 1
fs/protected_fifos 2
fs/protected_regular 2
kernel/kptr_restrict 2
kernel/dmesg_restrict 1
kernel/unprivileged_bpf_disabled 1
kernel/core_pattern core
END
    for node in /dev/net/tun /dev/fuse; do [ -c $node ] || fail "$node is missing"; done
}

case_orphans_are_reaped() {
    sh -c '(sleep 0.1; exit 3) & (exit 4) &' 2>/dev/null
    sleep 1
    ! grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null || fail "a zombie is left"
}

case_a_killed_agent_comes_back() {
    old=$(agent_pid)
    kill -KILL $old
    wait_for 10 other_agent_than $old || fail "no new agent serves"
    old=$(agent_pid)
    # On purpose, which takes the crash back.
    kill -HUP 1
    wait_for 10 other_agent_than $old || fail "no new agent serves after SIGHUP"
}

case_a_killed_spawner_comes_back() {
    old=$(head -n 1 /sys/fs/cgroup/berth.spawner/cgroup.procs)
    kill -KILL $old
    other_spawner() {
        new=$(head -n 1 /sys/fs/cgroup/berth.spawner/cgroup.procs)
        [ -n "$new" ] && [ "$new" != "$old" ]
    }
    wait_for 10 other_spawner || fail "no new spawner"
    berthctl info >/dev/null || fail "the agent does not answer"
}

case_pid_1_cannot_be_signalled_away() {
    for signal in TERM INT KILL SEGV ABRT USR1 USR2 PIPE; do kill -$signal 1 2>/dev/null; done
    sleep 0.5
    [ -d /proc/1 ] && berthctl info >/dev/null || fail "the keeper is gone"
}
