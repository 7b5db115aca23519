# The device program: tried from inside the container, over a table, through updates and the agent's death.
# limit: 300
# kernel: both

disk=$(cat /sys/block/vd*/dev /sys/block/zram0/dev /sys/block/loop0/dev 2>/dev/null | head -n 1)

# device_box ID RULES: a running container with CAP_MKNOD and /nodes, a folder in which the nodes of the whole table lie.
device_box() {
    make_rootfs
    mkdir -p $work/nodes
    sed -n 's/^\([cb]\) \([0-9$].*\) .*/\1 \2/p' /tests/data/devices.rows | sed -e "s/\$DISK/$disk/" | tr ':' ' ' | sort -u \
        >$work/nodes.list
    while read -r type major minor; do
        [ -e "$work/nodes/$type-$major-$minor" ] || mknod -m 666 "$work/nodes/$type-$major-$minor" $type $major $minor
    done <$work/nodes.list
    cp /tests/bin/try_devices $rootfs/bin/
    mkdir -p $rootfs/nodes $work/$1
    cat >$work/$1/config.json <<END
{"ociVersion":"1.2.0","root":{"path":"$rootfs"},
 "process":{"cwd":"/","args":["/bin/sleep","100000"],"env":["PATH=/bin"],"user":{"uid":0,"gid":0},
  "capabilities":{"bounding":["CAP_MKNOD"],"effective":["CAP_MKNOD"],"permitted":["CAP_MKNOD"]}},
 "mounts":[{"destination":"/proc","type":"proc","source":"proc"},{"destination":"/dev","type":"tmpfs","source":"tmpfs"},
  {"destination":"/tmp","type":"tmpfs","source":"tmpfs"},
  {"destination":"/nodes","type":"bind","source":"$work/nodes","options":["rbind","ro"]}],
 "linux":{"resources":{"devices":$2},"namespaces":[{"type":"pid"},{"type":"mount"}]}}
END
    berthctl delete --force $1
    berthctl create --bundle $work/$1 $1 && berthctl start $1 || fail "$1 does not start"
}
# tried ID: what the table's devices allow in it.
tried() { berthctl exec $1 /bin/try_devices /nodes <$work/nodes.list; }
end_box() { berthctl delete --force $1 || fail "delete $1"; }
rules_of() { sed "s/\$DISK/$disk/" /tests/data/devices.rows | sed -n 's/^rules //p'; }

# check ID N: the answers in $work/tried against the N-th block of the table.
check_rules() {
    sed "s/\$DISK/$disk/" /tests/data/devices.rows |
        awk -v n="$2" '/^rules /{k++; next} k == n && /^[cb] /{print}' >$work/wanted
    while read -r type number may; do
        seen=$(grep "^$type $number " $work/tried | cut -d ' ' -f 3)
        [ "$seen" = "$may" ] || fail "$1, rules $2: $type $number allows '$seen' instead of '$may'"
    done <$work/wanted
}

case_rules_on_create() {
    n=0
    rules_of >$work/rules
    while read -r rules <&3; do
        n=$((n + 1))
        device_box dev "$rules"
        tried dev >$work/tried || fail "try_devices in rules $n"
        end_box dev
        check_rules create $n
    done 3<$work/rules
    [ $n -ge 13 ] || fail "only $n sets of rules"
}

case_rules_on_update() {
    n=0
    device_box dev '[]'
    rules_of >$work/rules
    while read -r rules <&3; do
        n=$((n + 1))
        echo "{\"devices\":$rules}" >$work/update.json
        berthctl update --resources $work/update.json dev || fail "update to rules $n"
        tried dev >$work/tried
        check_rules update $n
    done 3<$work/rules
    # One that is refused leaves the program of before: the last set of rules, which allows 4:64.
    echo '{"devices":[{"allow":true,"type":"b","major":'${disk%:*}',"minor":'${disk#*:}',"access":"r"}]}' >$work/update.json
    expect_refused "is not attached to this guest" berthctl update --resources $work/update.json dev
    echo '{"devices":[],"unified":{"memory.foo":"1"}}' >$work/update.json
    expect_refused "is not a key that this agent writes" berthctl update --resources $work/update.json dev
    tried dev >$work/tried
    check_rules "after a refusal" $n
    # One without rules leaves it, too.
    berthctl update --pids-limit 100 dev || fail "update of pids"
    tried dev >$work/tried
    check_rules "after an update without rules" $n
    end_box dev
}

# While rules are replaced again and again, a process that opens all the time is never let through, and never kept out of
# what both sets allow.
case_replaced_without_a_gap() {
    device_box dev '[{"allow":true,"type":"c","major":10,"minor":229,"access":"r"}]'
    cat >$rootfs/bin/open_all_the_time <<'END'
#!/bin/sh
while [ ! -e /tmp/stop ]; do
    (: </nodes/c-4-64) 2>/dev/null && echo "ttyS0 was opened"
    (: </nodes/c-1-3) 2>/dev/null || echo "null was not opened"
    echo . >>/tmp/rounds
done
END
    chmod 755 $rootfs/bin/open_all_the_time
    berthctl exec dev /bin/open_all_the_time >$work/opened 2>&1 &
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        echo '{"devices":[{"allow":true,"type":"c","major":10,"minor":'$((i % 2 * 29 + 200))',"access":"r"}]}' >$work/update.json
        berthctl update --resources $work/update.json dev || fail "update $i"
    done
    rounds=$(berthctl exec dev /bin/sh -c 'wc -l </tmp/rounds; touch /tmp/stop')
    wait
    expect_eq "what slipped through" "$(cat $work/opened)" ""
    [ "$rounds" -gt 5 ] || fail "only $rounds rounds beside the updates"
    end_box dev
}

case_enforced_after_the_agents_death() {
    agent_pid() {
        for pid in $(cat /sys/fs/cgroup/berth.agent/cgroup.procs); do
            case $(cat /proc/$pid/cmdline 2>/dev/null) in berth-agent*) echo $pid ;; esac
        done
    }
    device_box dev '[{"allow":true,"type":"c","major":10,"minor":229,"access":"r"}]'
    # Inside, it goes on trying while there is no agent.
    cat >$rootfs/bin/try_for_ever <<'END'
#!/bin/sh
while :; do try_devices /nodes </tmp/list >/tmp/new && mv /tmp/new /tmp/tried && echo . >>/tmp/count; done
END
    chmod 755 $rootfs/bin/try_for_ever
    berthctl exec dev /bin/sh -c 'cat >/tmp/list; try_for_ever >/dev/null 2>&1 & sleep 0.2' <$work/nodes.list || fail "exec"
    init=$(cat /sys/fs/cgroup/berth/dev/cgroup.procs | head -n 1)
    inside=/proc/$init/root/tmp
    wait_for 20 test -e $inside/tried || fail "nothing was tried"
    old=$(agent_pid)
    rm -f $inside/tried
    kill -KILL $old
    rm -f $inside/tried
    wait_for 20 test -e $inside/tried || fail "nothing was tried after the agent's death"
    cp $inside/tried $work/tried
    grep -q '^c 10:229 mr$' $work/tried || fail "10:229: $(grep '^c 10:229' $work/tried)"
    grep -q '^c 4:64 m$' $work/tried || fail "4:64: $(grep '^c 4:64' $work/tried)"
    other_agent() { new=$(agent_pid) && [ -n "$new" ] && [ "$new" != "$old" ] && berthctl info >/dev/null 2>&1; }
    wait_for 30 other_agent || fail "no new agent"
    # The new agent replaces the program of the old one: one program, not two that are ANDed.
    echo '{"devices":[{"allow":true,"type":"c","major":4,"minor":64,"access":"r"}]}' >$work/update.json
    berthctl update --resources $work/update.json dev || fail "update after the restart"
    tried dev >$work/tried
    grep -q '^c 4:64 mr$' $work/tried || fail "after the restart 4:64: $(grep '^c 4:64' $work/tried)"
    grep -q '^c 10:229 m$' $work/tried || fail "after the restart 10:229: $(grep '^c 10:229' $work/tried)"
    end_box dev
    old=$(agent_pid)
    kill -HUP 1 # takes the crash back
    wait_for 30 other_agent || fail "no new agent after SIGHUP"
}

case_bound_nodes_obey_the_same_rule() {
    make_rootfs
    mkdir -p $work/nodes $work/bound
    [ -e $work/nodes/nothing ] || mknod $work/nodes/nothing c 195 0
    [ -e $work/nodes/disk ] || mknod $work/nodes/disk b ${disk%:*} ${disk#*:}
    for node in nothing disk; do
        cat >$work/bound/config.json <<END
{"ociVersion":"1.2.0","root":{"path":"$rootfs"},"process":{"cwd":"/","args":["/bin/true"],"user":{"uid":0,"gid":0}},
 "mounts":[{"destination":"/tmp/node","type":"bind","source":"$work/nodes/$node","options":["bind"]}],
 "linux":{"namespaces":[{"type":"mount"}]}}
END
        expect_refused "$node" berthctl create --bundle $work/bound bound
    done
    [ ! -e /sys/fs/cgroup/berth/bound ] || fail "the cgroup was left behind"
}
